package cores

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Available returns the cores that this process may use.
func Available() (Set, error) { return AffinityOf(0) }

// AffinityOf returns the cores that a thread may use, or the main thread of a process; 0 is the calling thread.
func AffinityOf(tid int) (Set, error) {
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &mask); err != nil {
		return nil, fmt.Errorf("read the cores that thread %d may use: %w", tid, err)
	}
	var set Set
	for core := range len(mask) * 64 {
		if mask.IsSet(core) {
			set = append(set, core)
		}
	}
	return set, nil
}

// setAffinity sets the cores that a thread may use. A thread that has ended is no error.
func setAffinity(tid int, set Set) error {
	var mask unix.CPUSet
	for _, core := range set {
		mask.Set(core)
	}
	err := unix.SchedSetaffinity(tid, &mask)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// threadsOf returns the threads of a process, none if it has ended.
func threadsOf(pid int) []int {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	var tids []int
	for _, path := range paths {
		if tid, err := strconv.Atoi(filepath.Base(path)); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// statOf reads the stat of a process or a thread.
func statOf(tid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(tid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

// restrictSelf moves every thread of this process to the cores.
func restrictSelf(set Set) error {
	moved := map[int]bool{}
	for again := true; again; { // a thread that was not moved yet may have started another
		again = false
		for _, tid := range threadsOf(os.Getpid()) {
			if moved[tid] {
				continue
			}
			if err := setAffinity(tid, set); err != nil {
				return fmt.Errorf("move the load generator to cores %s: %w", set, err)
			}
			moved[tid], again = true, true
		}
	}
	return nil
}
