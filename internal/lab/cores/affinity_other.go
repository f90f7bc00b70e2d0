//go:build !linux

package cores

import (
	"errors"

	"github.com/prometheus/procfs"
)

var errLinux = errors.New("the cores of a process can only be set on Linux")

// Available returns an error.
func Available() (Set, error) { return nil, errLinux }

// AffinityOf returns an error.
func AffinityOf(int) (Set, error) { return nil, errLinux }

func setAffinity(int, Set) error { return errLinux }

func threadsOf(int) []int { return nil }

func statOf(int) (procfs.ProcStat, error) { return procfs.ProcStat{}, errLinux }

func restrictSelf(Set) error { return errLinux }
