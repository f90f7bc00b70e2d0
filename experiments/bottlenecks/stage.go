//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"spillway/experiments/process"
)

// A stage holds what one round of a scenario started: a temporary directory, processes, control groups. close removes all of
// it in reverse order. It is used by one goroutine.
type stage struct {
	ctx            context.Context
	dir            string
	self, spillway string // programs
	starts         int
	undo           []func()
}

// newStage makes an empty stage. The caller must close it.
func newStage(ctx context.Context, spillway string) (*stage, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if spillway, err = filepath.Abs(spillway); err != nil {
		return nil, fmt.Errorf("find spillway: %w", err)
	}
	if _, err := os.Stat(spillway); err != nil {
		return nil, fmt.Errorf("find spillway: %w; make build makes it", err)
	}
	dir, err := os.MkdirTemp("", "bottlenecks-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	s := &stage{ctx: ctx, dir: dir, self: self, spillway: spillway}
	s.undo = append(s.undo, func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // databases run as other users
		s.close()
		return nil, fmt.Errorf("make directory: %w", err)
	}
	return s, nil
}

// close ends everything, also after ctx has ended.
func (s *stage) close() {
	for _, undo := range slices.Backward(s.undo) {
		undo()
	}
	s.undo = nil
}

// start launches a process that ends with the stage.
func (s *stage) start(c process.Command) (*process.Process, error) {
	s.starts++
	if c.Dir == "" {
		c.Dir = s.dir
	}
	p, err := process.Launch(s.ctx, c, filepath.Join(s.dir, fmt.Sprintf("%s-%d.log", c.Name, s.starts)))
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, p.End)
	return p, nil
}

// run runs a command to its end.
func (s *stage) run(user *syscall.Credential, args ...string) error {
	cmd := exec.CommandContext(s.ctx, args[0], args[1:]...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// folder makes a directory in the stage that belongs to user; nil: the caller.
func (s *stage) folder(name string, owner *syscall.Credential) (string, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("make directory: %w", err)
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", fmt.Errorf("make directory: %w", err)
		}
	}
	return dir, nil
}

// write writes a file in the stage and returns its path.
func (s *stage) write(name, text string) (string, error) {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return "", fmt.Errorf("write %s: %w", name, err)
	}
	return path, nil
}

// serve starts this program as a planted server, at a free port.
func (s *stage) serve(p plant, c process.Command) (*process.Process, string, error) {
	if p.listen == "" {
		address, err := process.FreeAddress()
		if err != nil {
			return nil, "", err
		}
		p.listen = address
	}
	if c.Name == "" {
		c.Name = "app"
	}
	c.Args = append([]string{s.self}, p.args()...)
	if c.Network == 0 {
		c.Ready = func(ctx context.Context) error { return get(ctx, "http://"+p.listen+"/ready") }
	} else {
		c.Ready = readyInside(c.Network, p.listen)
	}
	server, err := s.start(c)
	return server, "http://" + p.listen + "/", err
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// get requests url once, over a connection of its own, and returns an error unless the status is 200.
func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20)); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// runAs returns the credential of a user for programs that refuse to run as root; nil if the caller is not root.
func runAs(name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("find user: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("find user %s: %w", name, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("find user %s: %w", name, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// find returns the path of a program from PATH or, failing that, the last match of pattern.
func find(name, debianPackage, pattern string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	paths, _ := filepath.Glob(pattern) // the patterns are constants
	if len(paths) == 0 {
		return "", fmt.Errorf("%s is not installed: apt-get install %s", name, debianPackage)
	}
	return paths[len(paths)-1], nil
}
