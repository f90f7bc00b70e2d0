package watch

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU is the CPU time of the calling thread.
func threadCPU() time.Duration {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// processCPU is the CPU time of a process and its ended threads, without its children; 0 if it has ended. Anyone may read it.
func processCPU(pid int) time.Duration {
	var used unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|2), &used) != nil { // clock_getcpuclockid(3)
		return 0
	}
	return time.Duration(used.Nano())
}

// bootTicks is the time since boot in clock ticks, as in the start times of processes.
func bootTicks() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	return uint64(now.Nano()) / (1e9 / ticksPerSecond)
}
