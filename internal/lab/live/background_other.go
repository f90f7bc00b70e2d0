//go:build !linux

package live

// inBackground runs work. Only Linux has priorities of threads.
func inBackground(work func()) { work() }
