package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sysctlHeader opens every file that WriteSysctl writes.
const sysctlHeader = "# Written by spillway doctor.\n"

// ErrForeignFile means that the file exists and was not written by doctor.
var ErrForeignFile = errors.New("the file exists and was not written by doctor")

// WriteSysctl writes a file for /etc/sysctl.d with the settings that warnings and
// failures recommend, worst first, each once, with its reason. It returns their
// number and writes no file if there are none. A file that doctor did not write
// is not changed; the error is ErrForeignFile.
func (r *Report) WriteSysctl(file string) (int, error) {
	text, n := r.sysctl()
	if n == 0 {
		return 0, nil
	}
	old, err := os.ReadFile(file)
	if err == nil && !strings.HasPrefix(string(old), sysctlHeader) {
		return 0, fmt.Errorf("write %s: %w: remove it, or name another file", file, ErrForeignFile)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("write sysctl file: %w", err)
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".sysctl-*")
	if err != nil {
		return 0, fmt.Errorf("write sysctl file: %w", err)
	}
	defer os.Remove(out.Name()) // fails after a successful rename
	_, err = out.WriteString(text)
	if err = errors.Join(err, out.Chmod(0o644), out.Close()); err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err != nil {
		return 0, fmt.Errorf("write sysctl file: %w", err)
	}
	return n, nil
}

// sysctl returns the file's text and the number of settings. Settings from a
// prediction come first, because they are made for the load.
func (r *Report) sysctl() (string, int) {
	var b strings.Builder
	b.WriteString(sysctlHeader)
	b.WriteString("# Read it, then: install it in /etc/sysctl.d and run sysctl --system.\n")
	written := map[string]bool{}
	write := func(f Finding) {
		for _, s := range f.Settings {
			if written[s.Key] || f.Status.rank() < Warn.rank() {
				continue
			}
			written[s.Key] = true
			fmt.Fprintf(&b, "\n# %s: %s\n# %s\n%s = %s\n", f.Name, f.Observed, f.Why, s.Key, s.Value)
		}
	}
	for _, f := range r.Findings {
		if f.Group == "prediction" {
			write(f)
		}
	}
	for _, f := range r.Findings {
		write(f)
	}
	return b.String(), len(written)
}
