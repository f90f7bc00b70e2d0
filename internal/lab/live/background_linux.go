package live

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// inBackground runs work on a thread of the lowest priority and waits for it.
func inBackground(work func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, so nothing else gets its priority
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 19)
		work()
	}()
	<-done
}
