package experiment

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// identity identifies a process: a pid can be reused, pid and start time together cannot.
type identity struct {
	pid   int
	start string // in ticks since boot
}

// identify returns the process with that pid; start is "" if there is none.
func identify(pid int) identity {
	_, start := processStat(pid)
	return identity{pid: pid, start: start}
}

// processStat returns the state letter and the start time of a process, "" if there is none.
func processStat(pid int) (state, start string) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return "", ""
	}
	stat, err := process.Stat()
	if err != nil {
		return "", ""
	}
	return stat.State, strconv.FormatUint(stat.Starttime, 10)
}

// alive reports whether the process runs. A zombie does not.
func (i identity) alive() bool {
	state, start := processStat(i.pid)
	return start != "" && start == i.start && state != "Z" && state != "X"
}

func (i identity) kill() {
	if i.alive() {
		_ = unix.Kill(i.pid, unix.SIGKILL)
	}
}

// children returns the child processes of a process.
func children(pid int) []int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var pids []int
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// descendants returns all processes below a process.
func descendants(pid int) []identity {
	var found []identity
	for _, child := range children(pid) {
		found = append(found, identify(child))
		found = append(found, descendants(child)...)
	}
	return found
}

func merge(a, b []identity) []identity {
	for _, one := range b {
		if !slices.Contains(a, one) {
			a = append(a, one)
		}
	}
	return a
}

func anyAlive(processes []identity) bool {
	return slices.ContainsFunc(processes, identity.alive)
}

// killAll kills processes and their descendants, and waits until they are gone.
func killAll(processes []identity) {
	for range 500 { // 10 s
		for _, one := range processes {
			if one.alive() {
				processes = merge(processes, descendants(one.pid))
			}
		}
		for _, one := range processes {
			one.kill()
		}
		if !anyAlive(processes) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// killGroup kills what is left of the process group of a process.
func killGroup(pid int) { _ = unix.Kill(-pid, unix.SIGKILL) }
