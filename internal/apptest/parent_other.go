//go:build !linux

package apptest

import "syscall"

// stopWithParent does nothing, because only Linux has such a signal.
func stopWithParent(*syscall.SysProcAttr, syscall.Signal) {}
