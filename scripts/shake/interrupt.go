package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Interruptions are this long, and this far apart on average.
const (
	pause    = 50 * time.Millisecond
	interval = 700 * time.Millisecond
)

// interrupt stops a test process together with some of its descendants at random moments,
// until it has ended.
func interrupt(pid int, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(time.Duration(rand.ExpFloat64() * float64(interval))):
		}
		stopped := stop(pid)
		time.Sleep(pause)
		for i := len(stopped) - 1; i >= 0; i-- {
			_ = syscall.Kill(stopped[i], syscall.SIGCONT)
		}
	}
}

// stop stops the test process first, so that it cannot stop or continue one of its own
// meanwhile, then about half of the descendants. It leaves processes alone that were stopped
// before, or that have not obeyed yet, and returns those that it stopped.
func stop(pid int) []int {
	if state(pid) == "T" || syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return nil
	}
	for range int(pause / time.Millisecond) {
		if state(pid) == "T" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	stopped := []int{pid}
	for _, child := range descendants(pid) {
		if rand.IntN(2) == 0 && state(child) != "T" && !stopPending(child) && syscall.Kill(child, syscall.SIGSTOP) == nil {
			stopped = append(stopped, child)
		}
	}
	return stopped
}

// state returns the state of a process as in /proc/PID/stat, "" if there is none.
func state(pid int) string {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return ""
	}
	stat, err := p.Stat()
	if err != nil {
		return ""
	}
	return stat.State
}

// stopPending reports whether a process was told to stop and has not run since.
func stopPending(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(text), "\nShdPnd:\t")
	pending, _, _ := strings.Cut(after, "\n")
	mask, err := strconv.ParseUint(pending, 16, 64)
	return err == nil && mask&(1<<(syscall.SIGSTOP-1)) != 0
}

func descendants(root int) []int {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, p := range processes {
		if stat, err := p.Stat(); err == nil {
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	var all []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return all
}
