//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"spillway/experiments/process"
)

// Addresses within a namespace. On 127.0.0.1 the kernel gives a port in TIME_WAIT out again after a second, which hides that ports run
// out between two hosts; on these it does not.
const (
	hostAddress  = "10.99.0.2"
	otherAddress = "10.99.0.3"
	nearAddress  = "10.97.0.1" // of this host, for another one
	farAddress   = "10.97.0.2"
)

// Cores of the processes: the load has the first, with what is not measured.
var (
	loadCores = []int{0}
	workCores = []int{1}
)

// A stage is a network namespace with what a variant started in it. Its methods do nothing after the first error, which err has. close
// ends everything in reverse order. It is used by one goroutine.
type stage struct {
	ctx     context.Context
	o       *options
	dir     string
	network *process.Process
	starts  int
	files   int // limit of open files of what is run inside; 0: the caller's
	undo    *[]func() error
	err     error
}

// newStage makes a namespace with that range of local ports and these kernel settings. The caller must close it.
func newStage(ctx context.Context, o *options, sysctls ...string) *stage {
	s := &stage{ctx: ctx, o: o, undo: new([]func() error)}
	if s.dir, s.err = os.MkdirTemp("", leftPrefix()); s.err != nil {
		return s
	}
	*s.undo = append(*s.undo, func() error { return removeFolder(s.dir) })
	s.check(os.Chmod(s.dir, 0o755)) // databases run as other users
	s.network = s.namespace("host", hostAddress, otherAddress)
	s.sysctl(s.network, sysctls...)
	return s
}

// close ends everything. Its error wraps errLeft, and says what is left behind.
func (s *stage) close() error {
	var all []error
	for _, undo := range slices.Backward(*s.undo) {
		all = append(all, undo())
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}

func (s *stage) check(err error) bool {
	if s.err == nil {
		s.err = err
	}
	return s.err == nil
}

// namespace makes a network namespace that ends with its process. It has these addresses on its loopback device.
func (s *stage) namespace(name string, addresses ...string) *process.Process {
	up := filepath.Join(s.dir, name+".up")
	script := "ip link set lo up"
	for _, address := range addresses {
		script += " && ip address add " + address + "/32 dev lo"
	}
	return s.start(process.Command{
		Name: name, Args: []string{"unshare", "--net", "sh", "-c", script + ` && : >"$0" && exec sleep infinity`, up},
		Ready: func(context.Context) error { _, err := os.Stat(up); return err },
	})
}

// node returns a stage for programs on another host: a namespace with the same kernel settings, which reaches this one at nearAddress and
// is reached at farAddress. It ends with this stage, whose error the caller sets to that of the node.
func (s *stage) node(name string, sysctls ...string) *stage {
	other := *s
	other.network = s.namespace(name, hostAddress)
	other.dir = s.write(name+"/dir", "") // makes the folder
	other.dir = filepath.Dir(other.dir)
	if s.err != nil {
		return s
	}
	s.inside(s.network, "ip", "link", "add", "near0", "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(other.network.PID))
	for _, end := range []struct {
		network         *process.Process
		device, address string
	}{{s.network, "near0", nearAddress}, {other.network, "eth0", farAddress}} {
		s.inside(end.network, "ip", "address", "add", end.address+"/24", "dev", end.device)
		s.inside(end.network, "ip", "link", "set", end.device, "up")
	}
	s.sysctl(other.network, sysctls...)
	other.starts, other.err = 1000, s.err // the logs of both are apart
	return &other
}

// sysctl sets kernel settings of a namespace: "net.core.somaxconn=128".
func (s *stage) sysctl(network *process.Process, sysctls ...string) {
	for _, one := range sysctls {
		name, value, _ := strings.Cut(one, "=")
		s.inside(network, "sysctl", "-q", "-w", name+"="+value)
	}
}

// inside runs a command in a namespace to its end and returns its output.
func (s *stage) inside(network *process.Process, args ...string) []byte {
	if s.err != nil {
		return nil
	}
	p := s.start(process.Command{Name: filepath.Base(args[0]), Args: args, Network: network.PID, Files: s.files})
	if s.err != nil {
		return nil
	}
	out, code, err := p.Wait(s.ctx)
	if err == nil && code != 0 && code != 1 && code != 4 {
		err = fmt.Errorf("exit code %d: %s", code, p.LogTail())
	}
	if err != nil {
		s.check(fmt.Errorf("%s: %w", strings.Join(args, " "), err))
	}
	return out
}

// start launches a process that ends with the stage, in its namespace unless the command names one. A namespace itself is in none.
func (s *stage) start(c process.Command) *process.Process {
	if s.err != nil {
		return nil
	}
	s.starts++
	if c.Dir == "" {
		c.Dir = s.dir
	}
	if c.Network == 0 && s.network != nil {
		c.Network = s.network.PID
	}
	p, err := process.Launch(s.ctx, c, s.log(c.Name))
	if !s.check(err) {
		return nil
	}
	*s.undo = append(*s.undo, func() error { p.End(); return nil })
	return p
}

// log is the file with the standard error of the process that was started last.
func (s *stage) log(name string) string {
	return filepath.Join(s.dir, fmt.Sprintf("%s-%d.log", name, s.starts))
}

// write writes a file in the stage and returns its path.
func (s *stage) write(name, text string) string {
	path := filepath.Join(s.dir, name)
	if s.err == nil {
		s.check(errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	return path
}

// folder makes a directory of a user.
func (s *stage) folder(name string, owner *syscall.Credential) string {
	dir := filepath.Join(s.dir, name)
	if s.err == nil {
		s.check(errors.Join(os.MkdirAll(dir, 0o755), os.Chown(dir, int(owner.Uid), int(owner.Gid))))
	}
	return dir
}

// as is the credential of a user.
func (s *stage) as(name string) *syscall.Credential {
	u, err := user.Lookup(name)
	if !s.check(err) {
		return &syscall.Credential{}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	s.check(err)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	s.check(err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// find returns a program from PATH or, failing that, the last match of a pattern.
func (s *stage) find(name, debianPackage, pattern string) string {
	if path, err := exec.LookPath(name); err == nil && pattern == "" {
		return path
	}
	paths, _ := filepath.Glob(pattern) // the patterns are constants
	if len(paths) == 0 {
		s.check(fmt.Errorf("%s is not installed: apt-get install %s", name, debianPackage))
		return name
	}
	return paths[len(paths)-1]
}

// answers is a ready function: an address in the stage's namespace accepts a connection.
func (s *stage) answers(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		done := make(chan error, 1)
		go func() {
			done <- inNamespace(s.network.PID, func() error {
				conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
				if err != nil {
					return err
				}
				return conn.Close()
			})
		}()
		return <-done
	}
}

// inNamespace calls fn on a thread in the network namespace of a process, which ends with it.
func inNamespace(pid int, fn func() error) error {
	done := make(chan error)
	go func() {
		lockThread()
		if err := (process.Command{Network: pid}).Enter(); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// watch is the flags that watch processes.
func watch(processes ...*process.Process) []string {
	var flags []string
	for _, p := range processes {
		if p != nil {
			flags = append(flags, "--watch", p.Name+"="+strconv.Itoa(p.PID))
		}
	}
	return flags
}
