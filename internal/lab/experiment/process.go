package experiment

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startSpec describes a process to start.
type startSpec struct {
	command   []string
	env       []string // added to the caller's
	directory string
	user      string // "" is the caller
	namespace string // "" is this host
	log       string // file that its output is appended to
	signal    syscall.Signal
	cgroup    *cgroup // nil: the group of this process
}

// running is a started process. Its goroutine ends with the process.
type running struct {
	pid   int
	done  chan struct{} // closed when the process has been waited for
	state error         // how it ended, once done is closed
	spec  startSpec
}

// start starts a process in its own process group. The kernel sends it spec.signal when the thread that started it ends, so
// that thread waits for the process: the signal comes when this process dies.
func start(spec startSpec) (*running, error) {
	log, err := os.OpenFile(spec.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	credential, err := credentialOf(spec.user)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(spec.command[0], spec.command[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = spec.directory, log, log
	cmd.Env = append(os.Environ(), spec.env...)
	cmd.SysProcAttr = attributes(credential, spec.signal)
	r := &running{done: make(chan struct{}), spec: spec}
	if err := r.launch(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.command[0], err)
	}
	r.pid = cmd.Process.Pid
	return r, nil
}

// launch starts cmd on a thread that waits for it.
func (r *running) launch(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread may be in another namespace
		var err error
		if r.spec.namespace != "" {
			err = enter(r.spec.namespace)
		}
		if err == nil {
			err = startIn(cmd, r.spec.cgroup)
		}
		started <- err
		if err == nil {
			r.state = cmd.Wait()
		}
		close(r.done)
	}()
	return <-started
}

// credentialOf returns the credential of a user, nil for the caller.
func credentialOf(name string) (*syscall.Credential, error) {
	if name == "" {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("find user: %w", err)
	}
	if strconv.Itoa(os.Geteuid()) == u.Uid {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("run as user %s: only root can do that: run spillway as root", name)
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("find groups of user %s: %w", name, err)
	}
	credential := &syscall.Credential{}
	for _, id := range append([]string{u.Uid, u.Gid}, ids...) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("find user %s: %w", name, err)
		}
		credential.Groups = append(credential.Groups, uint32(n))
	}
	credential.Uid, credential.Gid, credential.Groups = credential.Groups[0], credential.Groups[1], credential.Groups[2:]
	return credential, nil
}

// ended reports whether the process has ended.
func (r *running) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// run starts a process and waits for its end. It stops the process if ctx ends first.
func run(ctx context.Context, spec startSpec, grace time.Duration) error {
	r, err := start(spec)
	if err != nil {
		return err
	}
	select {
	case <-r.done:
		killGroup(r.pid)
		return r.state
	case <-ctx.Done():
		r.stop(grace)
		return ctx.Err()
	}
}

// processes returns the members of the control group, or the descendants if there is no group.
func (r *running) processes() []identity {
	switch {
	case r.spec.cgroup != nil:
		return r.spec.cgroup.members()
	case r.ended():
		return nil // its pid may be in use again
	}
	return descendants(r.pid)
}

// watchSpec returns the value for --watch that names the process.
func (r *running) watchSpec() string {
	if r.spec.cgroup != nil {
		return "cgroup:" + r.spec.cgroup.dir
	}
	return strconv.Itoa(r.pid)
}

// stop sends the signal, waits up to grace for the process and all that belong to it, and kills what is left. It returns ""
// if everything ended in time after the signal, and otherwise what happened.
func (r *running) stop(grace time.Duration) string {
	if r.ended() {
		killGroup(r.pid)
		killAll(r.spec.cgroup.members())
		return fmt.Sprintf("ended by itself: %v", exitText(r.state))
	}
	related := r.processes()
	_ = unix.Kill(r.pid, r.spec.signal) // it may just have ended
	deadline := time.After(grace)
	poll := time.Tick(20 * time.Millisecond)
	for {
		related = merge(related, r.processes())
		if r.ended() && !anyAlive(related) {
			return ""
		}
		select {
		case <-poll:
		case <-deadline:
			killAll(append(related, identify(r.pid)))
			killGroup(r.pid)
			<-r.done
			return fmt.Sprintf("still there after %v, killed", grace)
		}
	}
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}
