//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// busyMost is the share of the CPUs that other programs may use before a scenario starts. What they use is a neighbour, and
// would be named so.
const busyMost = 0.1

// awaitQuiet waits until the machine has been nearly idle for a second, at most for limit. It returns the last share of the
// CPUs that was in use.
func awaitQuiet(ctx context.Context, limit time.Duration) (busy float64, err error) {
	deadline := time.Now().Add(limit)
	second := time.NewTicker(time.Second)
	defer second.Stop()
	before, err := readCPU()
	if err != nil {
		return 0, err
	}
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-second.C:
		}
		after, err := readCPU()
		if err != nil {
			return 0, err
		}
		if busy = busyShare(before, after); busy <= busyMost || time.Now().After(deadline) {
			return busy, nil
		}
		before = after
	}
}

func readCPU() (procfs.CPUStat, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return procfs.CPUStat{}, fmt.Errorf("read CPU time: %w", err)
	}
	stat, err := fs.Stat()
	if err != nil {
		return procfs.CPUStat{}, fmt.Errorf("read CPU time: %w", err)
	}
	return stat.CPUTotal, nil
}

// busyShare returns the share of the CPU time between two readings that was not idle.
func busyShare(before, after procfs.CPUStat) float64 {
	total := func(s procfs.CPUStat) float64 {
		return s.User + s.Nice + s.System + s.Idle + s.Iowait + s.IRQ + s.SoftIRQ + s.Steal
	}
	idle := func(s procfs.CPUStat) float64 { return s.Idle + s.Iowait }
	elapsed := total(after) - total(before)
	if elapsed <= 0 {
		return 0
	}
	return 1 - (idle(after)-idle(before))/elapsed
}
