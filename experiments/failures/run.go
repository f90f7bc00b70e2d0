//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"spillway/experiments/process"
)

func lockThread() { runtime.LockOSThread() } // never unlocked: the thread ends with its goroutine

// abs is the path of a file of the repository, which the program is started in.
func (s *stage) abs(path string) string {
	all, err := filepath.Abs(path)
	s.check(err)
	return all
}

// append adds text to a file.
func (s *stage) append(path, text string) {
	if s.err != nil {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if s.check(err) {
		_, err = file.WriteString(text)
		s.check(err)
		s.check(file.Close())
	}
}

// runAs runs a command as a user, outside of the namespace.
func (s *stage) runAs(user *syscall.Credential, args ...string) {
	if s.err != nil {
		return
	}
	cmd := exec.CommandContext(s.ctx, args[0], args[1:]...)
	cmd.Dir, cmd.SysProcAttr = s.dir, &syscall.SysProcAttr{Credential: user}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.check(fmt.Errorf("%s: %w: %s", args[0], err, out))
	}
}

// try runs a command in the stage's namespace, for ready functions.
func (s *stage) try(args ...string) error {
	args = append([]string{"nsenter", "--net", "--target", strconv.Itoa(s.network.PID)}, args...)
	if out, err := exec.CommandContext(s.ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", args[4], err, out)
	}
	return nil
}

// answersIn is answers in another namespace; nil is the stage's own.
func (s *stage) answersIn(network *process.Process, address string) func(context.Context) error {
	if network == nil {
		return s.answers(address)
	}
	other := *s
	other.network = network
	return other.answers(address)
}

// exists is a ready function: a file exists.
func (s *stage) exists(path string) func(context.Context) error {
	return func(context.Context) error { _, err := os.Stat(path); return err }
}
