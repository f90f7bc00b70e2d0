package cores

import (
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// kernelThreads adds up how long the kernel's own threads ran on each core: those that receive packets, write files back and
// free memory, for the hosts and for everyone else. They belong to no program.
//
// A thread's time counts for the core that it is on when it is read. Most threads are bound to a core. The few that are not are
// read more often, by sample.
type kernelThreads struct {
	proc  procfs.FS
	known map[int]kernelThread // by pid
	other map[int]bool         // processes of programs, by pid
	used  map[int]time.Duration
}

// kernelThread is a thread as last read.
type kernelThread struct {
	start uint64
	used  time.Duration
	roams bool // not bound to a core
}

// parentOfKernel is the pid of kthreadd, which starts all threads of the kernel.
const parentOfKernel = 2

// scan reads all threads. What a thread used before it was first seen counts only if it started after the first scan.
func (k *kernelThreads) scan() error {
	processes, err := k.proc.AllProcs()
	if err != nil {
		return err
	}
	first, listed := len(k.other) == 0, map[int]bool{}
	for _, p := range processes {
		listed[p.PID] = true
		if !k.other[p.PID] {
			k.read(p.PID, first)
		}
	}
	for pid := range k.other {
		if !listed[pid] {
			delete(k.other, pid)
		}
	}
	return nil
}

// sample reads the threads that are not bound to a core.
func (k *kernelThreads) sample() {
	for pid, t := range k.known {
		if t.roams {
			k.read(pid, false)
		}
	}
}

func (k *kernelThreads) read(pid int, first bool) {
	stat, err := statOf(pid)
	if err != nil {
		delete(k.known, pid)
		return
	}
	if stat.PPID != parentOfKernel || stat.PID == parentOfKernel {
		k.other[pid] = true
		delete(k.known, pid)
		return
	}
	before, known := k.known[pid]
	now := kernelThread{start: stat.Starttime, used: time.Duration(stat.CPUTime() * 1e9), roams: strings.HasPrefix(stat.Comm, "kworker/u")}
	switch {
	case known && before.start == now.start:
		k.used[int(stat.Processor)] += max(now.used-before.used, 0)
	case !first:
		k.used[int(stat.Processor)] += now.used
	}
	k.known[pid] = now
}
