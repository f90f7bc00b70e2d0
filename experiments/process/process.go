//go:build linux

// Package process starts the processes of a study. Each has a process group of its own, and leaves nothing behind: it is ended
// with its study, and the kernel stops it when the study dies.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startTimeout = 30 * time.Second // until a server answers
	stopGrace    = 10 * time.Second // until a process that was asked to end is killed
)

// Command describes a process.
type Command struct {
	Name  string // of its log and in messages
	Args  []string
	Env   []string                        // added to the caller's
	Dir   string                          // working directory; "": the caller's
	User  *syscall.Credential             // nil: the caller
	Stop  syscall.Signal                  // asks it to end; 0: SIGTERM
	Ready func(ctx context.Context) error // nil: it is ready when it has begun

	Network int    // pid of a process whose network namespace it runs in; 0: the caller's
	Cores   []int  // that it may use; nil: those of the caller
	Group   string // directory of a control group that it starts in
	Files   int    // limit of open files; 0: the caller's
}

// Process is a running command in a process group of its own. Its goroutine ends with it. The kernel stops the process when
// this program dies.
type Process struct {
	Command
	PID    int
	out    bytes.Buffer // standard output; complete when done is closed
	log    string       // file with standard error
	done   chan struct{}
	result error // how it ended; set before done is closed
}

// Launch starts a command and waits until it is ready.
func Launch(ctx context.Context, c Command, log string) (*Process, error) {
	p := &Process{Command: c, log: log, done: make(chan struct{})}
	if p.Stop == 0 {
		p.Stop = syscall.SIGTERM
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	defer file.Close()
	args := c.Args
	if c.Files > 0 {
		args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, c.Files), "sh"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.Dir, &p.out, file
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.WaitDelay = time.Second // a descendant may keep standard output open
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.User, Setpgid: true, Pdeathsig: p.Stop}
	if c.Group != "" && !c.threads() {
		group, err := os.Open(c.Group)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", c.Name, err)
		}
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread's settings are the process's, and its end is the signal of death
		err := c.Enter()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			p.result = cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	p.PID = cmd.Process.Pid
	if err := p.awaitReady(ctx); err != nil {
		p.End()
		return nil, fmt.Errorf("start %s: %w\n%s", c.Name, err, p.LogTail())
	}
	return p, nil
}

// threads reports whether single threads can enter the control group, as in version 1. In version 2 the process is made in it.
func (c Command) threads() bool {
	_, err := os.Stat(filepath.Join(c.Group, "tasks"))
	return err == nil
}

// Enter moves the calling thread to where the command is to run: a process is born with the cores, the namespace and the
// control groups of the thread that starts it.
func (c Command) Enter() error {
	if c.Group != "" && c.threads() {
		if err := os.WriteFile(filepath.Join(c.Group, "tasks"), []byte("0"), 0); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	if len(c.Cores) > 0 {
		var set unix.CPUSet
		for _, core := range c.Cores {
			set.Set(core)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("set cores: %w", err)
		}
	}
	if c.Network == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(c.Network, 0)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

func (p *Process) awaitReady(ctx context.Context) error {
	if p.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := p.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended: %w", errors.Join(p.result, err))
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-poll.C:
		}
	}
}

// Wait returns the standard output and the exit code when the process has ended. It ends the process when ctx does.
func (p *Process) Wait(ctx context.Context) (out []byte, code int, err error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		p.End()
		return nil, 0, ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(p.result, &exit) && exit.ExitCode() >= 0 {
		return p.out.Bytes(), exit.ExitCode(), nil
	}
	return p.out.Bytes(), 0, p.result
}

// End asks the process to end, waits for it, and kills what is left of its group.
func (p *Process) End() {
	_ = syscall.Kill(p.PID, p.Stop) // it may have ended
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.done:
	case <-grace.C:
	}
	_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	<-p.done
}

// LogTail returns the end of what the process wrote to standard error.
func (p *Process) LogTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 1000
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

// FreeAddress returns a loopback address that nothing listens on, below the range for outgoing connections.
func FreeAddress() (string, error) {
	var last error
	for range 100 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000))))
		if err == nil {
			return l.Addr().String(), l.Close()
		}
		last = err
	}
	return "", fmt.Errorf("find a free port: %w", last)
}

// Answers is a ready function for a server at an address.
func Answers(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Choose returns the scenarios with these names, all without names.
func Choose[S any](all []S, names []string, nameOf func(S) string) (chosen []S, err error) {
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(s S) bool { return nameOf(s) == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown scenario %q: -list lists them", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
