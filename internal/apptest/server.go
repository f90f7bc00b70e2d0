// Package apptest starts the real programs that tests use: PostgreSQL, MariaDB, MySQL,
// PgBouncer, nginx, Redis and the spillway binary. Each runs in a temporary directory on a free
// loopback port. It ends with the test process, and its directory is removed. If a program
// is not installed, the test fails with an error that names the Debian package. It also holds what
// the tests of the built program share: requests over HTTP, configurations and a small disk.
//
// The functions that take a testing.TB stop the server when the test ends. The Start
// functions are for TestMain: they return errors, and the caller must call Close.
package apptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Limits on how long a server may take to answer its first request, and to stop.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = time.Minute
	pollInterval = 10 * time.Millisecond
)

// Server is a program that a test runs. It keeps its address and its files across restarts.
// Its methods may be called concurrently.
type Server struct {
	name       string   // of the program, for messages
	binary     string   // its path
	args       []string // of the command line
	env        []string // in addition to that of the test
	dir        string   // working directory, removed by Close
	addr       string   // host:port it listens on
	scheme     string   // of its URLs, with the user: "postgres://postgres@"
	query      string   // of its URLs
	release    func()   // gives back what the kernel keeps of a process that was killed; may be nil
	credential *syscall.Credential
	stopSignal syscall.Signal // requests a fast and clean stop
	ready      func(ctx context.Context) error
	recover    func() error // prepares the files for another start; nil: nothing to do

	mu      sync.Mutex
	process *process // nil while it does not run
}

// process is one run of a server. Its goroutine ends when the program ends.
type process struct {
	pid   int
	done  chan struct{} // closed when the program has ended
	state error         // its exit status; set before done is closed
}

// Addr returns the host:port that the server listens on.
func (s *Server) Addr() string { return s.addr }

// Dir returns the server's directory.
func (s *Server) Dir() string { return s.dir }

// URL returns the server's URL with a path, such as the name of a database or a page.
func (s *Server) URL(path string) string { return s.scheme + s.addr + "/" + path + s.query }

// PID returns the process id, 0 when the server does not run.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid
}

// Start starts the server and returns when it answers. It does nothing if the server is
// running.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		return nil
	}
	if s.recover != nil {
		if err := s.recover(); err != nil {
			return fmt.Errorf("start %s: %w", s.name, err)
		}
	}
	p, err := s.launch()
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	s.process = p
	if err := s.awaitReady(p); err != nil {
		killTree(p.pid)
		<-p.done
		s.process = nil
		return fmt.Errorf("start %s: %w\n%s", s.name, err, s.logTail())
	}
	return nil
}

// launch starts the program from a locked thread, because the kernel sends the parent-death
// signal when the thread that forked ends.
func (s *Server) launch() (*process, error) {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := s.command(log)
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		for errors.Is(err, syscall.ETXTBSY) { // what has just built the program may still have it open
			runtime.Gosched()
			cmd = s.command(log)
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			p.state = cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// command returns the command that runs the program and writes to a log.
func (s *Server) command(log *os.File) *exec.Cmd {
	cmd := exec.Command(s.binary, s.args...)
	cmd.Dir = s.dir
	if s.env != nil {
		cmd.Env = append(os.Environ(), s.env...)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: s.credential,
		Setpgid:    true, // Ctrl-C in the terminal reaches only the test
	}
	stopWithParent(cmd.SysProcAttr, s.stopSignal)
	return cmd
}

func (s *Server) awaitReady(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return errors.New("the program ended before it answered")
		case <-ctx.Done():
			return fmt.Errorf("no answer within %v: %w", startTimeout, err)
		case <-poll.C:
		}
	}
}

// Stop asks the server to end and waits for it. It returns an error if the server had to be
// killed after a timeout, or had ended before. It does nothing if the server is not running.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	p := s.process
	s.process = nil
	select {
	case <-p.done:
		return fmt.Errorf("stop %s: it had already ended: %v\n%s", s.name, p.state, s.logTail())
	default:
	}
	if err := syscall.Kill(p.pid, s.stopSignal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s: %w", s.name, err)
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
		return nil
	case <-timeout.C:
		killTree(p.pid)
		<-p.done
		return fmt.Errorf("stop %s: killed, because it was still running after %v", s.name, stopTimeout)
	}
}

// Kill kills the server and its children immediately, like a crash.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return
	}
	killTree(s.process.pid)
	<-s.process.done
	s.process = nil
}

// Restart stops the server and starts it again on the same address.
func (s *Server) Restart() error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.Start()
}

// Close stops the server and removes its directory.
func (s *Server) Close() error {
	err := s.Stop()
	if s.release != nil {
		s.release()
	}
	if removeErr := os.RemoveAll(s.dir); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("remove %s: %w", s.dir, removeErr))
	}
	return err
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// logTail returns the end of what the server printed.
func (s *Server) logTail() string {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	const most = 2000
	return string(bytes.TrimSpace(text[max(0, len(text)-most):]))
}
