package front

import (
	"slices"
	"sync"
	"time"
)

// Loop is the event loop of an Answerer. Its methods are for the thread of the loop, except Post.
type Loop struct {
	poll     func(fd int, events uint32) error // 0: no more
	ring     func()
	finish   func(later *Later, over bool)
	now      time.Time
	watchers map[int]Watcher
	after    []func()
	alarms   []*Alarm

	mu     sync.Mutex // guards what follows
	posted []func()
	over   bool
}

// Watcher uses a descriptor in a Loop, which calls its methods.
type Watcher interface {
	Ready() // something has arrived, or the connection has ended
	Ended() // the loop ends, and with it Watch
}

// Alarm has a Loop call Ring at a time; zero: never. Ring may set the next time.
type Alarm struct {
	At   time.Time
	Ring func()
}

// Watch polls a descriptor, which must not block, until Unwatch.
func (l *Loop) Watch(fd int, w Watcher) error {
	if err := l.poll(fd, readable); err != nil {
		return err
	}
	if l.watchers == nil {
		l.watchers = make(map[int]Watcher)
	}
	l.watchers[fd] = w
	return nil
}

// Unwatch precedes the end of a descriptor.
func (l *Loop) Unwatch(fd int) {
	_ = l.poll(fd, 0) // it is polled
	delete(l.watchers, fd)
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
func (l *Loop) Now() time.Time { return l.now }

// Answered says that an answer is known that is Inside. The loop sends it.
func (l *Loop) Answered(later *Later) {
	if !later.over {
		l.finish(later, false)
	}
}

// Post has the loop call f. It returns false if the loop has ended.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	if l.posted = append(l.posted, f); len(l.posted) == 1 {
		l.ring()
	}
	return true
}

// takePosted calls what was posted. With last, nothing more can be.
func (l *Loop) takePosted(last bool) {
	l.mu.Lock()
	posted := l.posted
	l.posted, l.over = nil, last
	l.mu.Unlock()
	for _, f := range posted {
		f()
	}
}

// settle calls what is due after a round.
func (l *Loop) settle() {
	for _, a := range l.alarms {
		if !a.At.IsZero() && !l.now.Before(a.At) {
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
	l.takePosted(true)
	for _, w := range l.watchers {
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
