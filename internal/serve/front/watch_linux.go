//go:build !portable

package front

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Loop is the event loop of an Answerer. Its methods are for the thread of the loop, except Post.
type Loop struct {
	on      *loop
	watched map[int]Watcher
	after   []func()
	alarms  []*Alarm
	posted  []func() // guarded by loop.mu, as over
	over    bool
}

// Watch polls a descriptor, which must not block, until Unwatch.
func (l *Loop) Watch(fd int, w Watcher) error {
	if err := l.on.poll(fd, unix.EPOLLIN); err != nil {
		return err
	}
	if l.watched == nil {
		l.watched = make(map[int]Watcher)
	}
	l.watched[fd] = w
	return nil
}

// Unwatch precedes the end of a descriptor.
func (l *Loop) Unwatch(fd int) {
	if l.watched[fd] != nil {
		_ = unix.EpollCtl(l.on.poller, unix.EPOLL_CTL_DEL, fd, nil) // it is polled
		delete(l.watched, fd)
	}
}

// AwaitRoom has Ready called also when a watched descriptor can be written to.
func (l *Loop) AwaitRoom(fd int, room bool) error {
	events := uint32(unix.EPOLLIN)
	if room {
		events |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(l.on.poller, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// After calls f once, after the events that the loop has taken.
func (l *Loop) After(f func()) { l.after = append(l.after, f) }

// Add adds an alarm, until Remove.
func (l *Loop) Add(a *Alarm) { l.alarms = append(l.alarms, a) }

// Remove removes an alarm. It is not called by one that rings.
func (l *Loop) Remove(a *Alarm) {
	l.alarms = slices.DeleteFunc(l.alarms, func(other *Alarm) bool { return other == a })
}

// Now returns when the loop took the events that it handles.
func (l *Loop) Now() time.Time { return l.on.now }

// Answered says that an answer is known that is Inside. The loop sends it.
func (l *Loop) Answered(later *Later) {
	if !later.over {
		l.on.finish(later, false)
	}
}

// Post has the loop call f. It returns false if the loop has ended.
func (l *Loop) Post(f func()) bool {
	l.on.mu.Lock()
	defer l.on.mu.Unlock()
	if l.over {
		return false
	}
	if l.posted = append(l.posted, f); len(l.posted) == 1 {
		l.on.ring()
	}
	return true
}

// takePosted calls what was posted.
func (l *Loop) takePosted() {
	l.on.mu.Lock()
	posted := l.posted
	l.posted = nil
	l.on.mu.Unlock()
	for _, f := range posted {
		f()
	}
}

// settle calls what is due after a round.
func (l *Loop) settle() {
	for _, a := range l.alarms {
		if !a.At.IsZero() && !l.on.now.Before(a.At) {
			a.At = time.Time{}
			a.Ring()
		}
	}
	for len(l.after) > 0 {
		after := l.after
		l.after = nil
		for _, f := range after {
			f()
		}
		if clear(after); l.after == nil {
			l.after = after[:0]
		}
	}
}

// end tells all watchers that the loop ends.
func (l *Loop) end() {
	l.takePosted()
	l.on.mu.Lock()
	l.over = true
	l.on.mu.Unlock()
	l.takePosted()
	for _, w := range l.watched {
		w.Ended()
	}
}

// due returns when the next alarm rings; zero: none does.
func (l *Loop) due() (due time.Time) {
	for _, a := range l.alarms {
		if !a.At.IsZero() && (due.IsZero() || a.At.Before(due)) {
			due = a.At
		}
	}
	return due
}

// Receive reads what has arrived at a descriptor that does not block. n is 0 at the end, and -1 if nothing has.
func Receive(fd int, p []byte) (n int, err error) { return result(receive(fd, p)) }

// Send writes to a descriptor that does not block. n is -1 if it has no room.
func Send(fd int, p []byte) (n int, err error) { return result(send(fd, p)) }

func result(n int, errno unix.Errno) (int, error) {
	switch errno {
	case 0:
		return n, nil
	case unix.EAGAIN:
		return -1, nil
	}
	return 0, errno
}
