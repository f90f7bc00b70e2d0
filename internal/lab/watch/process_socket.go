package watch

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"
)

// listensAt is the bit in /proc/net/unix of a socket that accepts connections.
const listensAt = 1 << 16

// socketProcesses returns the processes that listen on the target's Unix socket.
func (t ProcessTarget) socketProcesses(proc procfs.FS) ([]int, error) {
	own, err := procfs.NewFS(filepath.Join(procfs.DefaultMountPoint, "thread-self")) // the network namespace of this thread
	if err != nil {
		return nil, fmt.Errorf("list Unix sockets: %w", err)
	}
	sockets, err := own.NetUNIX()
	if err != nil {
		return nil, fmt.Errorf("list Unix sockets: %w", err)
	}
	var inodes []uint32
	for _, s := range sockets.Rows {
		if s.Path == t.socket && s.Flags&listensAt != 0 {
			inodes = append(inodes, uint32(s.Inode))
		}
	}
	if len(inodes) == 0 {
		return nil, fmt.Errorf("nothing listens on %s: start the process first (ss -lx lists listeners)", t.socket)
	}
	return ownersOf(proc, t.socket, inodes)
}

// Members returns the processes of the target and all their descendants, at least one.
func (t ProcessTarget) Members() ([]int, error) {
	proc, err := openProc()
	if err != nil {
		return nil, err
	}
	roots, err := t.resolve(proc)
	if err != nil {
		return nil, err
	}
	stats, err := newTree(proc).read(roots)
	if err != nil {
		return nil, err
	}
	pids := make([]int, len(stats))
	for i := range stats {
		pids[i] = stats[i].PID
	}
	return pids, nil
}

// CPUTime returns a function that reads how much CPU time the target and all its descendants have used so far, as Process
// counts it.
func (t ProcessTarget) CPUTime() (func() (time.Duration, error), error) {
	sampler, err := Process(t)
	if err != nil {
		return nil, err
	}
	return func() (time.Duration, error) {
		samples, err := sampler.Read(context.Background())
		if len(samples) == 0 {
			return 0, err
		}
		values := samples[0].Values
		return time.Duration((values["cpu_user_seconds_total"] + values["cpu_system_seconds_total"]) * 1e9), nil
	}, nil
}
