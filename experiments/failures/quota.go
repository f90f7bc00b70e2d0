//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// groupRoot is where control groups are mounted.
const groupRoot = "/sys/fs/cgroup"

// groupParent is where groups with a quota of CPU are made: the hierarchy of version 2, or that of the CPU in version 1.
func groupParent() string {
	if _, err := os.Stat(filepath.Join(groupRoot, "cgroup.controllers")); err == nil {
		return groupRoot
	}
	return filepath.Join(groupRoot, "cpu")
}

// slice makes a control group with a quota of CPU, in cores.
func (s *stage) slice(cores float64) string {
	if s.err != nil {
		return ""
	}
	parent := groupParent()
	if parent == groupRoot {
		s.check(os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+cpu"), 0))
	}
	dir, err := os.MkdirTemp(parent, leftPrefix())
	if !s.check(err) {
		return ""
	}
	*s.undo = append(*s.undo, func() error { return removeGroup(dir) })
	s.check(limitGroup(dir, cores))
	return dir
}

// quotaPeriod is that of a quota, in microseconds.
const quotaPeriod = 20000

// limitGroup sets the quota of a group of version 1 or 2. Its weight is high: the quota limits it, not other programs.
func limitGroup(dir string, cores float64) error {
	quota, period := strconv.Itoa(int(cores*quotaPeriod)), strconv.Itoa(quotaPeriod)
	settings := [][2]string{{"cpu.max", quota + " " + period}, {"cpu.weight", "10000"}}
	if _, err := os.Stat(filepath.Join(dir, "cpu.max")); err != nil {
		settings = [][2]string{{"cpu.cfs_period_us", period}, {"cpu.shares", "65536"}, {"cpu.cfs_quota_us", quota}}
	}
	for _, one := range settings {
		file, err := os.OpenFile(filepath.Join(dir, one[0]), os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteString(one[1])
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			return fmt.Errorf("limit a control group: %w", err)
		}
	}
	return nil
}

// removeGroup removes a control group. The thread that started the process in it leaves it when it ends.
func removeGroup(dir string) error {
	err := syscall.Rmdir(dir)
	for range leftWait / leftPause {
		if !errors.Is(err, syscall.EBUSY) {
			break
		}
		time.Sleep(leftPause)
		err = syscall.Rmdir(dir)
	}
	if err != nil {
		return fmt.Errorf("remove control group %s: %w", dir, err)
	}
	return nil
}
