package load

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes a goroutine on time. A timer of the Go runtime is up to 1 ms late,
// because the runtime waits for whole milliseconds.
type alarm struct {
	fd   int
	file *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "timer")}, nil
}

// wait blocks for d, which is positive. It returns false if stop was called.
func (a *alarm) wait(d time.Duration) bool {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(a.fd, 0, &at, nil); err != nil {
		panic("bug: set timer: " + err.Error())
	}
	var expirations [8]byte
	_, err := a.file.Read(expirations[:])
	return err == nil
}

// stop ends wait, also later ones. It may be called from another goroutine.
func (a *alarm) stop() { _ = a.file.SetReadDeadline(time.Unix(1, 0)) }

func (a *alarm) close() { a.file.Close() }
