package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"spillway/internal/exit"
)

// A MissingError lists the programs that are not installed.
type MissingError struct{ Needs []Need }

// Error returns one line with the command that installs them.
func (e *MissingError) Error() string {
	names := make([]string, len(e.Needs))
	for i, n := range e.Needs {
		names[i] = n.Name
	}
	return fmt.Sprintf("not installed: %s; run: apt-get install -y %s", strings.Join(names, ", "), strings.Join(e.packages(), " "))
}

func (e *MissingError) packages() []string {
	var packages []string
	for _, n := range e.Needs {
		packages = append(packages, n.Package)
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// Programs finds the programs that the experiment needs. The error is a MissingError.
func (f *File) Programs(ctx context.Context) ([]Program, error) {
	needs := f.Needs
	if f.separate() {
		needs = append([]Need{{Name: "ip", Package: "iproute2", Find: []string{"ip"}, Version: []string{"-V"}}}, needs...)
	}
	var programs []Program
	missing := &MissingError{}
	for _, n := range needs {
		path := n.find()
		if path == "" {
			missing.Needs = append(missing.Needs, n)
			continue
		}
		programs = append(programs, Program{Name: n.Name, Path: path, Package: n.Package, Version: version(ctx, path, n.Version)})
	}
	if len(missing.Needs) > 0 {
		return nil, exit.UsageError(missing)
	}
	return programs, nil
}

// find returns the path of the program, "" if it is not installed.
func (n *Need) find() string {
	for _, name := range n.Find {
		if !strings.Contains(name, "/") {
			for _, path := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} { // not in every user's PATH
				if found, err := exec.LookPath(path); err == nil {
					return found
				}
			}
			continue
		}
		if paths, err := filepath.Glob(name); err == nil && len(paths) > 0 {
			return paths[len(paths)-1]
		}
	}
	return ""
}

// version returns the first line of a program's version output.
func version(ctx context.Context, path string, arguments []string) string {
	if len(arguments) == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	output, _ := exec.CommandContext(ctx, path, arguments...).CombinedOutput() // some exit with 1 after printing it
	line, _, _ := bytes.Cut(bytes.TrimSpace(output), []byte("\n"))
	return string(line[:min(len(line), 200)])
}

// Install installs the missing packages. It needs root.
func (e *MissingError) Install(ctx context.Context, log io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("--install needs root")
	}
	for _, arguments := range [][]string{{"update"}, append([]string{"install", "-y"}, e.packages()...)} {
		cmd := exec.CommandContext(ctx, "apt-get", arguments...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", strings.Join(arguments, " "), err)
		}
	}
	return nil
}

// checkRoot returns an error if something in the file needs root and the caller is not root.
func (f *File) checkRoot() error {
	if os.Geteuid() == 0 {
		return nil
	}
	if f.separate() {
		return errors.New("hosts are network namespaces, which only root can create: run spillway as root")
	}
	for i := range f.Services {
		if s := &f.Services[i]; s.User != "" {
			if _, err := credentialOf(s.User); err != nil {
				return fmt.Errorf("service %s: %w", s.Name, err)
			}
		}
	}
	return nil
}
