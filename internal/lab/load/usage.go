package load

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what a thread or a process has used since it began.
type usage struct {
	user, system           time.Duration
	voluntary, involuntary int64
	memoryMax              int64
	wait                   time.Duration // runnable, but not running
}

func (u usage) since(before usage) usage {
	return usage{
		user: u.user - before.user, system: u.system - before.system, voluntary: u.voluntary - before.voluntary,
		involuntary: u.involuntary - before.involuntary, memoryMax: u.memoryMax, wait: max(u.wait-before.wait, 0),
	}
}

func (u usage) cpu() time.Duration { return u.user + u.system }

// threadUsage reads the usage of the calling thread. Files that cannot be read
// leave wait at zero.
func threadUsage() usage {
	u := readUsage(unix.RUSAGE_THREAD)
	u.wait = runQueueWait(fmt.Sprintf("/proc/self/task/%d/schedstat", unix.Gettid()))
	return u
}

// processUsage reads the usage of all threads of this process.
func processUsage() usage {
	u := readUsage(unix.RUSAGE_SELF)
	tasks, err := filepath.Glob("/proc/self/task/*/schedstat")
	if err != nil {
		return u
	}
	for _, path := range tasks {
		u.wait += runQueueWait(path)
	}
	return u
}

func readUsage(who int) usage {
	var r unix.Rusage
	if err := unix.Getrusage(who, &r); err != nil {
		return usage{}
	}
	return usage{
		user: time.Duration(r.Utime.Nano()), system: time.Duration(r.Stime.Nano()),
		voluntary: r.Nvcsw, involuntary: r.Nivcsw, memoryMax: r.Maxrss << 10,
	}
}

// runQueueWait reads the second field of a schedstat file.
func runQueueWait(path string) time.Duration {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	n, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n)
}

// cpuPressure reads how long some task of this host has waited for a CPU.
// known is false on a kernel that does not tell.
func cpuPressure() (total time.Duration, known bool) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, false
	}
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	_, digits, found := bytes.Cut(line, []byte("total="))
	n, err := strconv.ParseInt(string(digits), 10, 64)
	if !found || err != nil {
		return 0, false
	}
	return time.Duration(n) * time.Microsecond, true
}
