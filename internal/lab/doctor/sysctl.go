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

// ErrForeignFile says that a file is there that doctor did not write.
var ErrForeignFile = errors.New("a file is there that doctor did not write")

// WriteSysctl writes a file for /etc/sysctl.d with the settings that findings
// would change, worst first, each once, with its reason, and returns how many
// there are. Notes change nothing. Without a setting no file is written. A file that
// something else wrote is left alone: the error is ErrForeignFile.
func (r *Report) WriteSysctl(file string) (int, error) {
	text, n := r.sysctl()
	if n == 0 {
		return 0, nil
	}
	old, err := os.ReadFile(file)
	if err == nil && !strings.HasPrefix(string(old), sysctlHeader) {
		return 0, fmt.Errorf("write %s: %w; name another or remove it", file, ErrForeignFile)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("write sysctl file: %w", err)
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".sysctl-*")
	if err != nil {
		return 0, fmt.Errorf("write sysctl file: %w", err)
	}
	defer os.Remove(out.Name()) // gone already when all went well
	_, err = out.WriteString(text)
	if err = errors.Join(err, out.Chmod(0o644), out.Close()); err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err != nil {
		return 0, fmt.Errorf("write sysctl file: %w", err)
	}
	return n, nil
}

// sysctl is the file's text and the number of settings in it. What a
// prediction asks for goes first, as it knows the load.
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
