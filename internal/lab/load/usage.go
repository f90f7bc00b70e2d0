package load

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"spillway/internal/controlgroup"
	"spillway/internal/lab/cores"
)

// usage is the resource usage of a thread or process since its start.
type usage struct {
	user, system time.Duration
	memoryMax    int64         // bytes
	wait         time.Duration // runnable but not running; zero if unknown
}

func (u usage) since(before usage) usage {
	return usage{user: u.user - before.user, system: u.system - before.system, memoryMax: u.memoryMax, wait: max(u.wait-before.wait, 0)}
}

func (u usage) cpu() time.Duration { return u.user + u.system }

// processUsage reads the usage of this process.
func processUsage() usage {
	u := readUsage(unix.RUSAGE_SELF)
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return u
	}
	threads, err := proc.AllThreads(os.Getpid())
	if err != nil {
		return u
	}
	for _, thread := range threads {
		u.wait += runQueueWait(thread)
	}
	return u
}

// readUsage calls getrusage. It leaves wait at zero.
func readUsage(who int) usage {
	var r unix.Rusage
	if err := unix.Getrusage(who, &r); err != nil {
		return usage{}
	}
	memory := r.Maxrss
	if runtime.GOOS == "linux" {
		memory <<= 10 // Linux counts in KiB
	}
	return usage{user: time.Duration(r.Utime.Nano()), system: time.Duration(r.Stime.Nano()), memoryMax: memory}
}

// runQueueWait returns how long a thread was runnable but not running; zero if
// unknown.
func runQueueWait(thread procfs.Proc) time.Duration {
	stat, err := thread.Schedstat()
	if err != nil {
		return 0
	}
	return time.Duration(stat.WaitingNanoseconds)
}

// cpuPressure returns how long at least one task of this host has waited for a CPU, 0 if the kernel does not report it.
func cpuPressure() time.Duration {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	stats, err := proc.PSIStatsForResource("cpu")
	if err != nil || stats.Some == nil {
		return 0
	}
	return time.Duration(stats.Some.Total) * time.Microsecond
}

// hostCPU is the CPU time of all CPUs of a host since its start, in seconds.
type hostCPU struct {
	stolen float64 // the hypervisor ran something else while a task of this host was ready
	all    float64 // in every mode, also idle
	here   float64 // of all programs on the CPUs that this process may use; NaN if not known
}

// readHostCPU reads /proc/stat.
func readHostCPU(proc procfs.FS) (hostCPU, error) {
	stat, err := proc.Stat()
	if err != nil {
		return hostCPU{}, fmt.Errorf("read the CPU time of this host: %w", err)
	}
	c := stat.CPUTotal // User includes Guest
	return hostCPU{
		stolen: c.Steal, all: c.User + c.Nice + c.System + c.Idle + c.Iowait + c.IRQ + c.SoftIRQ + c.Steal, here: allowedCPU(&stat),
	}, nil
}

// allowedCPU is the CPU time of programs on the CPUs that this process may use, NaN if that is not known.
func allowedCPU(stat *procfs.Stat) float64 {
	allowed, err := cores.AffinityOf(os.Getpid())
	if err != nil {
		return math.NaN()
	}
	used := 0.0
	for _, id := range allowed {
		c, ok := stat.CPU[int64(id)]
		if !ok {
			return math.NaN()
		}
		used += c.User + c.Nice + c.System
	}
	return used
}

// stealShare is the share of the CPU time since before that was stolen, 0 if no time passed. The counters have ticks of 10 ms.
func (c hostCPU) stealShare(before hostCPU) float64 {
	if !(c.all > before.all) {
		return 0
	}
	return max(0, c.stolen-before.stolen) / (c.all - before.all)
}

// contention is what takes CPU time from this host, and whether that can be seen.
type contention struct {
	cpu        hostCPU
	steal      float64       // share of the time of all CPUs
	stolen     time.Duration // of all CPUs
	quota      float64       // cores that the control group of this process may use, +Inf without a limit
	throttled  time.Duration // how long that stopped it, summed over CPUs
	unreadable error         // the kernel does not tell how long threads wait for a CPU
	own        time.Duration // CPU time of this process
	foreign    float64       // CPU time of other programs on the CPUs that this process may use, in seconds, if foreignKnown

	foreignKnown bool
}

// readContention reads /proc.
func readContention() contention {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return contention{unreadable: err}
	}
	cpu, err := readHostCPU(proc)
	c := contention{
		cpu: cpu, unreadable: errors.Join(err, checkSchedstat(proc)), quota: math.Inf(1), own: readUsage(unix.RUSAGE_SELF).cpu(),
	}
	for _, dir := range controlgroup.Of(procfs.DefaultMountPoint, controlgroup.Mount, os.Getpid(), "cpu") {
		if quota := controlgroup.Quota(dir); quota < c.quota {
			if throttled, err := controlgroup.Throttled(dir); err == nil {
				c.quota, c.throttled = quota, throttled
			}
		}
	}
	return c
}

// since returns the contention between two readings.
func (c contention) since(before contention) contention {
	c.steal = c.cpu.stealShare(before.cpu)
	c.throttled = max(c.throttled-before.throttled, 0)
	c.stolen = time.Duration(max(c.cpu.stolen-before.cpu.stolen, 0) * float64(time.Second))
	c.foreign = max(c.cpu.here-before.cpu.here-(c.own-before.own).Seconds(), 0)
	c.foreignKnown = !math.IsNaN(c.foreign)
	return c
}

// checkSchedstat returns an error if this kernel does not tell how long a thread waited for a CPU: it is built without
// CONFIG_SCHED_INFO, or it counts nothing.
func checkSchedstat(proc procfs.FS) error {
	self, err := proc.Self()
	if err != nil {
		return fmt.Errorf("read the waits for a CPU: %w", err)
	}
	stat, err := self.Schedstat()
	if err != nil {
		return fmt.Errorf("read the waits for a CPU: %w", err)
	}
	if stat.RunningNanoseconds == 0 {
		return errors.New("read the waits for a CPU: the kernel does not count them")
	}
	return nil
}
