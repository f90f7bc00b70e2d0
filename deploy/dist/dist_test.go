package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// repository is the root directory of the source, seen from here.
const repository = "../.."

// arch is the architecture of the tests.
const arch = "amd64"

// Two builds from different directories, under another umask, are the same bytes. An archive and a package hold what they name.
func TestSameSourceSameBytes(t *testing.T) {
	r, err := describe(t.Context(), repository, t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.build(t.Context(), arch); err != nil {
		t.Fatal(err)
	}
	again := r
	again.root, again.out = copySource(t), t.TempDir()
	before := syscall.Umask(0o077)
	err = again.build(t.Context(), arch)
	syscall.Umask(before)
	if err != nil {
		t.Fatal(err)
	}
	var sums [2]string
	for i, dir := range []string{r.out, again.out} {
		if err := writeSums(dir); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(text)
	}
	if diff := cmp.Diff(sums[0], sums[1]); diff != "" || strings.Count(sums[0], "\n") != 3 {
		t.Errorf("two builds of three files differ:\n%s%s", sums[0], diff)
	}
	run(t, r.out, "sha256sum", "--check", "--quiet", "SHA256SUMS")
	name := "spillway_" + r.version + "_linux_" + arch + ".tar.gz"
	if out := run(t, r.out, "tar", "-tzf", name); !strings.Contains(out, "/completion/_spillway\n") || !strings.Contains(out, "/spillway\n") {
		t.Errorf("%s has\n%s", name, out)
	}
}

// copySource copies the files that git knows to another directory.
func copySource(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	for name := range strings.SplitSeq(run(t, repository, "git", "ls-files", "-co", "--exclude-standard"), "\n") {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil || name == "" {
			continue // deleted, but known to git
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// run runs a command that must succeed and returns what it prints.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := try(t, dir, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// try runs a command and returns what it prints.
func try(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// Each completion is a script that its shell takes and that completes commands.
func TestCompletions(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join(repository, "deploy", "package"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ shell, script, want string }{
		{"bash", `. $0/spillway.bash; COMP_WORDS=(spillway spool st); COMP_CWORD=2; _spillway; echo "${COMPREPLY[@]}"`, "status"},
		{"bash", `. $0/spillway.bash; COMP_WORDS=(spillway load --dur); COMP_CWORD=2; _spillway; echo "${COMPREPLY[@]}"`, "--duration="},
		{"zsh", `fpath=($0 $fpath); autoload -Uz compinit; compinit -u -D; autoload +X _spillway && echo ${_comps[spillway]}`, "_spillway"},
		{"fish", `source $argv[1]/spillway.fish; complete -C "spillway spool st"`, "status\tShow what waits in the spool, and its dead letters."},
	} {
		args := []string{"-c", c.script, dir}
		if c.shell == "zsh" {
			args = append([]string{"-f"}, args...)
		}
		if out := strings.TrimSpace(run(t, dir, c.shell, args...)); out != c.want {
			t.Errorf("%s completes %q, want %q", c.shell, out, c.want)
		}
	}
	if out := run(t, dir, "man", "--warnings", "-l", "spillway.1"); !strings.Contains(out, "spillway spool status") {
		t.Errorf("the man page:\n%s", out)
	}
}

// total returns the size of the files below a directory.
func total(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(fmt.Errorf("measure %s: %w", dir, err))
	}
	return bytes
}
