package apptest

import "syscall"

// stopWithParent makes the kernel send the signal when the thread that starts the process ends.
func stopWithParent(attributes *syscall.SysProcAttr, signal syscall.Signal) {
	attributes.Pdeathsig = signal
}
