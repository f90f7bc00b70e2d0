package cores

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// A source says how long each core was busy, and with which of it the kernel's threads were.
//
// It reads the root group of cpuacct, which counts the nanoseconds of every task by core, if this process sees it. Otherwise it
// reads /proc/stat, for which the kernel looks at each core once per clock tick: over five seconds a share of a core is off by
// two percentage points or so. Most kernels bill time in interrupts to no task (CONFIG_IRQ_TIME_ACCOUNTING), so that reading
// leaves it out; it never counts too much.
type source struct {
	proc    procfs.FS
	counter string // file of the cpuacct root, "" for /proc/stat
	kernel  *kernelThreads
}

func openSource() (source, error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return source{}, fmt.Errorf("needs Linux: %w", err)
	}
	kernel := kernelThreads{proc: proc, known: map[int]kernelThread{}, other: map[int]bool{}, used: map[int]time.Duration{}}
	s := source{proc: proc, kernel: &kernel}
	mounts, err := procfs.GetMounts()
	if err != nil {
		return source{}, err
	}
	for _, mount := range mounts {
		if _, counts := mount.SuperOptions["cpuacct"]; counts && mount.FSType == "cgroup" && mount.Root == "/" {
			s.counter = filepath.Join(mount.MountPoint, "cpuacct.usage_percpu")
		}
	}
	if _, err := s.busyTime(); err != nil {
		s.counter = ""
	}
	return s, s.kernel.scan()
}

// read returns how long each core was busy since the start of the machine, and how long with threads of the kernel since the
// source was opened.
func (s source) read() (busy, kernel map[int]time.Duration, err error) {
	if busy, err = s.busyTime(); err != nil {
		return nil, nil, err
	}
	if err := s.kernel.scan(); err != nil {
		return nil, nil, err
	}
	return busy, maps.Clone(s.kernel.used), nil
}

func (s source) busyTime() (map[int]time.Duration, error) {
	if s.counter != "" {
		text, err := os.ReadFile(s.counter)
		if err != nil {
			return nil, err
		}
		return parsePerCore(string(text))
	}
	stat, err := s.proc.Stat()
	if err != nil {
		return nil, err
	}
	times := map[int]time.Duration{}
	for core, cpu := range stat.CPU {
		times[int(core)] = time.Duration((cpu.User + cpu.Nice + cpu.System) * 1e9)
	}
	if len(times) == 0 {
		return nil, errors.New("/proc/stat lists no core")
	}
	return times, nil
}

// parsePerCore reads cpuacct.usage_percpu: nanoseconds for core 0, 1, …
func parsePerCore(text string) (map[int]time.Duration, error) {
	times := map[int]time.Duration{}
	for core, field := range strings.Fields(text) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("cpuacct.usage_percpu: %w", err)
		}
		times[core] = time.Duration(n)
	}
	if len(times) == 0 {
		return nil, errors.New("cpuacct.usage_percpu is empty")
	}
	return times, nil
}
