package apptest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// directoryPrefix is the prefix of the names of all directories created here. The id of the
// test process follows it.
const directoryPrefix = "spillway-test-"

// Directory returns an empty directory where the servers' files are, which is in memory if
// there is room. It exists until the test ends.
func Directory(t testing.TB) string {
	t.Helper()
	dir, err := newDirectory(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newDirectory creates a directory that owner can write; nil: the caller. It first removes
// directories of test processes that no longer exist.
func newDirectory(owner *syscall.Credential) (string, error) {
	parent := parentDirectory(owner)
	removeOrphans(parent)
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("%s%d-", directoryPrefix, os.Getpid()))
	if err != nil {
		return "", err
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return dir, nil
}

// parentDirectory returns the directory for the servers' files. It is in memory where the
// caller's TMPDIR asks for none and there is enough, because servers create and remove
// thousands of files. It is /tmp if owner cannot enter the caller's, or if that has characters
// that configuration files must quote. A directory whose name makes the path of a Unix socket
// too long is replaced by /tmp, too.
func parentDirectory(owner *syscall.Credential) string {
	if os.Getenv("TMPDIR") == "" && hasMemory(memoryDirectory) {
		return memoryDirectory
	}
	parent := os.TempDir()
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"
	if len(parent) > 50 || strings.Trim(parent, plain) != "" {
		return "/tmp"
	}
	if owner == nil {
		return parent
	}
	for dir := parent; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return parent
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); info.Mode()&0o001 == 0 && ok && stat.Uid != owner.Uid {
			return "/tmp"
		}
		if dir == filepath.Dir(dir) {
			return parent
		}
	}
}

// memoryDirectory is Linux's file system in memory.
const memoryDirectory = "/dev/shm"

// writeFile writes a file into the server's directory that its user can read, and returns the
// path.
func (s *Server) writeFile(name, text string) (string, error) {
	file := filepath.Join(s.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return "", err
	}
	if s.credential == nil {
		return file, nil
	}
	return file, os.Chown(file, int(s.credential.Uid), int(s.credential.Gid))
}

func removeOrphans(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, directoryPrefix+"*"))
	for _, dir := range dirs {
		rest := strings.TrimPrefix(filepath.Base(dir), directoryPrefix)
		owner, _, _ := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(owner)
		if err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		_ = os.RemoveAll(dir) // another test process may do the same
	}
}

// FreeAddr returns a loopback address that nothing listens on. It belongs to this process
// until that ends, so that a test can start its server again on it: other test processes do
// not get it, and the port is outside of the ranges for outgoing connections and of experiments.
func FreeAddr() (string, error) {
	last := errors.New("all are taken by other tests")
	for range 1000 {
		port := strconv.Itoa(10000 + rand.IntN(6384))
		mine, err := claim(port)
		if err != nil {
			return "", fmt.Errorf("claim a port: %w", err)
		}
		if !mine {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return l.Addr().String(), l.Close()
		}
		last = err
	}
	return "", fmt.Errorf("find a free port: %w", last)
}

// claim binds an abstract Unix socket that stands for a port, and holds it until the process
// ends. It reports whether nobody else has it: the name belongs to the same network namespace
// as the port, whoever the user is. Other systems than Linux have no such names.
func claim(port string) (bool, error) {
	if runtime.GOOS != "linux" {
		return true, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return false, err
	}
	unix.CloseOnExec(fd)
	switch err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + directoryPrefix + "port-" + port}); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EADDRINUSE):
		return false, unix.Close(fd)
	default:
		return false, errors.Join(err, unix.Close(fd))
	}
}

// findBinary returns the path of a program from PATH, or else the newest match of patterns.
// Its error says which package to install.
func findBinary(name, debianPackage string, patterns ...string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(pattern)
		if len(paths) > 0 {
			return paths[len(paths)-1], nil
		}
	}
	return "", fmt.Errorf("%s is not installed: apt-get install %s", name, debianPackage)
}

// unprivileged returns the credential of the named user if the caller is root, otherwise
// nil. It is for programs that refuse to run as root.
func unprivileged(name string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// killTree kills a child of this process and its descendants. It first stops the child, so
// that the child cannot replace its own children. The descendants are gone when killTree
// returns. The caller must wait for the child.
func killTree(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	descendants := children(pid)
	for _, child := range descendants {
		killTree(child)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	deadline := time.Now().Add(stopTimeout)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for slices.ContainsFunc(descendants, isAlive) && time.Now().Before(deadline) {
		<-poll.C
	}
}

// isAlive reports whether a process runs. A zombie does not, because its memory and files
// are released.
func isAlive(pid int) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := p.Stat()
	return err == nil && stat.State != "Z" && stat.State != "X"
}

func children(pid int) []int {
	processes, _ := procfs.AllProcs()
	var pids []int
	for _, p := range processes {
		if stat, err := p.Stat(); err == nil && stat.PPID == pid {
			pids = append(pids, p.PID)
		}
	}
	return pids
}
