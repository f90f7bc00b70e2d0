//go:build !linux

package experiment

import (
	"errors"
	"os/exec"
	"syscall"
)

// errNotLinux says what does not work here. Files can be checked and results read on every system.
var errNotLinux = errors.New("running an experiment needs Linux: it uses control groups, network namespaces and /proc")

func adoptOrphans() error { return errNotLinux }

func attributes(*syscall.Credential, syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

func startIn(*exec.Cmd, *cgroup) error { return errNotLinux }

func enter(string) error { return errNotLinux }
