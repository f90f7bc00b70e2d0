//go:build !linux

package apptest

import "syscall"

// stopWithParent does nothing: only Linux has such a signal.
func stopWithParent(*syscall.SysProcAttr, syscall.Signal) {}
