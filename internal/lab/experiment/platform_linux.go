package experiment

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of every descendant whose own parent ends.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	return nil
}

// attributes has a process run in a process group of its own, and get the signal when the thread that started it ends.
func attributes(credential *syscall.Credential, signal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: credential, Setpgid: true, Pdeathsig: signal}
}

// startIn starts a process in a control group, or in that of this process if group is nil. The caller has locked its
// goroutine to its thread.
func startIn(cmd *exec.Cmd, group *cgroup) error {
	if group == nil {
		return cmd.Start()
	}
	if group.source == CPUControlGroup2 {
		dir, err := os.Open(group.dir)
		if err != nil {
			return fmt.Errorf("open control group: %w", err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	// In version 1 a thread can enter a group alone, and a process is born in the groups of the thread that starts it.
	for _, j := range group.joins {
		if err := enterGroup(j.dir); err != nil {
			return err
		}
		defer func() { _ = enterGroup(j.back) }() // otherwise the group cannot be removed before the thread has ended
	}
	return cmd.Start()
}

// enterGroup moves the calling thread into a control group of version 1.
func enterGroup(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte("0"), 0); err != nil {
		return fmt.Errorf("enter control group: %w", err)
	}
	return nil
}

// enter moves the calling thread into a network namespace.
func enter(file string) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", filepath.Base(file), err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", filepath.Base(file), err)
	}
	return nil
}
