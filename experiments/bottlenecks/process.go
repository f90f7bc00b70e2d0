//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startTimeout = 30 * time.Second // until a server answers
	stopGrace    = 10 * time.Second // until a process that was asked to end is killed
)

// A command describes a process.
type command struct {
	name  string // of its log and in messages
	args  []string
	env   []string // added to the caller's
	dir   string   // working directory; "": the stage's
	user  *syscall.Credential
	stop  syscall.Signal // asks it to end; 0: SIGTERM
	ready func(ctx context.Context) error

	network int    // pid of a process whose network namespace it runs in; 0: the caller's
	cores   []int  // that it may use; nil: those of the caller
	group   string // directory of a control group (version 1) that it starts in
	files   int    // limit of open files; 0: the caller's
}

// A process is a running command in a process group of its own. Its goroutine ends with it. The kernel stops the process when
// this program dies.
type process struct {
	command
	pid    int
	out    bytes.Buffer // standard output; complete when done is closed
	log    string       // file with standard error
	done   chan struct{}
	result error // how it ended; set before done is closed
}

// launch starts a command and waits until it is ready.
func launch(ctx context.Context, c command, log string) (*process, error) {
	p := &process{command: c, log: log, done: make(chan struct{})}
	if p.stop == 0 {
		p.stop = syscall.SIGTERM
	}
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	defer file.Close()
	args := c.args
	if c.files > 0 {
		args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, c.files), "sh"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, &p.out, file
	cmd.Env = append(os.Environ(), c.env...)
	cmd.WaitDelay = time.Second // a descendant may keep standard output open
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.user, Setpgid: true, Pdeathsig: p.stop}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread's settings are the process's, and its end is the signal of death
		err := c.enter()
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
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	p.pid = cmd.Process.Pid
	if err := p.awaitReady(ctx); err != nil {
		p.end()
		return nil, fmt.Errorf("start %s: %w\n%s", c.name, err, p.logTail())
	}
	return p, nil
}

// enter moves the calling thread to where the command is to run: a process is born with the cores, the namespace and the
// control groups of the thread that starts it.
func (c command) enter() error {
	if c.group != "" {
		if err := os.WriteFile(filepath.Join(c.group, "tasks"), []byte("0"), 0); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	if len(c.cores) > 0 {
		var set unix.CPUSet
		for _, core := range c.cores {
			set.Set(core)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("set cores: %w", err)
		}
	}
	if c.network == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(c.network, 0)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

func (p *process) awaitReady(ctx context.Context) error {
	if p.ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := p.ready(ctx)
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

// wait returns the standard output and the exit code when the process has ended. It ends the process when ctx does.
func (p *process) wait(ctx context.Context) (out []byte, code int, err error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		p.end()
		return nil, 0, ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(p.result, &exit) && exit.ExitCode() >= 0 {
		return p.out.Bytes(), exit.ExitCode(), nil
	}
	return p.out.Bytes(), 0, p.result
}

// end asks the process to end, waits for it, and kills what is left of its group.
func (p *process) end() {
	_ = syscall.Kill(p.pid, p.stop) // it may have ended
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.done:
	case <-grace.C:
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	<-p.done
}

// logTail returns the end of what the process wrote to standard error.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 1000
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}
