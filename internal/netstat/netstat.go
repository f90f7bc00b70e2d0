// Package netstat asks the Linux kernel about TCP in one network namespace: which sockets there are (sock_diag, as ss
// does), which processes own them, and which local ports it gives to connections. Counters come from procfs. Nothing here
// needs a privilege, except finding the owner of another user's socket.
//
// The package has its own sock_diag client because the netlink libraries hold every socket in memory, take up to twice
// the CPU time, and cannot have the kernel select sockets by port.
package netstat

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// States of a TCP socket, linux/tcp_states.h.
const (
	Established = 1
	synReceived = 3
	TimeWait    = 6
	Listen      = 10
	newReceived = 12 // how the kernel keeps synReceived
)

// AnyState asks for sockets in every state. A socket that is bound and neither listens nor connects is in no table that
// the kernel searches.
const AnyState = 1<<13 - 1

// A Socket is a TCP socket.
type Socket struct {
	State   uint8
	Local   netip.AddrPort
	Remote  netip.AddrPort // zero address and port of one that listens
	Queued  uint32         // listening: connections that wait to be accepted; else bytes that the owner has not read
	Backlog uint32         // listening: how many may wait; else bytes that the other side has not confirmed
	Inode   uint32         // as in the link "socket:[INODE]" of its owners' open files
}

// A Query selects sockets. The kernel filters before it copies anything.
type Query struct {
	States    uint32 // a set of bits 1<<state
	PortFirst uint16 // of the local port; 0, 0 selects all ports
	PortLast  uint16
}

// Listening selects the sockets that listen on a port.
func Listening(port uint16) Query {
	return Query{States: 1 << Listen, PortFirst: port, PortLast: port}
}

// Arriving selects connections to a port that the kernel still opens.
func Arriving(port uint16) Query {
	return Query{States: 1<<synReceived | 1<<newReceived, PortFirst: port, PortLast: port}
}

// Owners returns the processes that have one of the sockets open. denied is how many processes did not let this user
// read their open files. It reads the open files of every process of the host.
func Owners(proc procfs.FS, inodes ...uint32) (pids []int, denied int, err error) {
	links := make([]string, len(inodes))
	for i, inode := range inodes {
		links[i] = fmt.Sprintf("socket:[%d]", inode)
	}
	processes, err := proc.AllProcs()
	if err != nil {
		return nil, 0, err
	}
	for _, p := range processes {
		files, err := p.FileDescriptorTargets()
		switch {
		case errors.Is(err, fs.ErrPermission):
			denied++
		case err == nil && slices.ContainsFunc(files, func(file string) bool { return slices.Contains(links, file) }):
			pids = append(pids, p.PID)
		}
	}
	return pids, denied, nil
}

// A Task is a thread of this process, through which procfs reads the network namespace that the thread is in.
type Task struct {
	procfs.Proc           // net/snmp and net/netstat
	Net         procfs.FS // net/sockstat and net/sockstat6
}

// CurrentTask returns a task in the network namespace of the calling thread, below the directory where procfs is
// mounted. If that is the namespace of the process, the task is its first thread, which lives as long as the process.
func CurrentTask(mount string) (Task, error) {
	thread, err := os.Readlink(filepath.Join(mount, "thread-self")) // PID/task/TID
	if err != nil {
		return Task{}, fmt.Errorf("find the thread in %s, which needs Linux: %w", mount, err)
	}
	if same, err := sameNamespace(filepath.Join(mount, "self"), filepath.Join(mount, thread)); err == nil && same {
		pid, _, _ := strings.Cut(thread, "/")
		thread = filepath.Join(pid, "task", pid)
	}
	net, err := procfs.NewFS(filepath.Join(mount, thread))
	if err != nil {
		return Task{}, err
	}
	tasks, err := procfs.NewFS(filepath.Join(mount, filepath.Dir(thread)))
	if err != nil {
		return Task{}, err
	}
	tid, err := strconv.Atoi(filepath.Base(thread))
	if err != nil {
		return Task{}, fmt.Errorf("%s/thread-self leads to %q, not to PID/task/TID", mount, thread)
	}
	proc, err := tasks.Proc(tid)
	return Task{Proc: proc, Net: net}, err
}

// TimeWait returns how many sockets are in TIME_WAIT, false if the kernel does not tell.
func (t Task) TimeWait() (n int, known bool, err error) {
	sockets, err := t.Net.NetSockstat()
	if err != nil {
		return 0, false, err
	}
	for _, p := range sockets.Protocols {
		if p.Protocol == "TCP" && p.TW != nil {
			return *p.TW, true, nil
		}
	}
	return 0, false, nil
}

func sameNamespace(a, b string) (bool, error) {
	first, err := os.Readlink(filepath.Join(a, "ns/net"))
	if err != nil {
		return false, err
	}
	second, err := os.Readlink(filepath.Join(b, "ns/net"))
	return first == second, err
}

// IsLoopback reports whether a host, a name or an address, is this machine's loopback.
func IsLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}
