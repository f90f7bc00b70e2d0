package feed

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"spillway/internal/serve/param"
)

// ErrLive means that as many values of the parameters have listeners as may, in all or of one
// user. Retry later.
var ErrLive = errors.New("too many values of the parameters have listeners")

// Event is a window's first page in its default size, as all listeners get it. It is
// immutable.
type Event struct {
	// ID is the hash in the page's entity tag.
	ID string
	// Text is the page in the format text/event-stream, with ID; not to be changed. It is nil
	// if there are no more events. The listener must then be closed.
	Text []byte

	tag  uint64
	next chan struct{}
}

// Next returns a channel that is closed when there is a later event.
func (e *Event) Next() <-chan struct{} { return e.next }

// newEvent returns the event of a snapshot's first page, which is previous if the page has
// not changed. Without a snapshot, or if the page is not in it, the event has no text.
func newEvent(s *snapshot, previous *Event) *Event {
	var p Page
	ok := s != nil
	if ok {
		p, ok = s.page(&Request{Limit: s.usual})
	}
	if !ok {
		return &Event{next: make(chan struct{})}
	}
	tag := p.Tag()
	if previous != nil && previous.Text != nil && previous.tag == tag {
		return previous
	}
	id := string(bytes.Trim(AppendETag(nil, tag), `"`))
	return &Event{ID: id, Text: appendEvent(nil, id, p.Append(nil)), tag: tag, next: make(chan struct{})}
}

// appendEvent appends an event in the format text/event-stream. In JSON, the ends of lines are
// white space between values; the format makes all of them line feeds, and empty lines are
// left out.
func appendEvent(dst []byte, id string, data []byte) []byte {
	dst = append(append(append(dst, "id: "...), id...), '\n')
	for len(data) > 0 {
		end := bytes.IndexAny(data, "\r\n")
		if end < 0 {
			end = len(data)
		}
		if end > 0 {
			dst = append(append(append(dst, "data: "...), data[:end]...), '\n')
		}
		data = data[min(end+1, len(data)):]
	}
	return append(dst, '\n')
}

// Listener follows the first page of one window. While it is open, the window is refreshed
// and stays. Its methods may be called concurrently, but not after Close.
type Listener struct{ window *window }

// Listen returns a listener of the window for args. It waits for the window's rows like
// Page, and returns the same errors, or ErrLive. address identifies a client whose args have no
// claim; "" is a client without a limit of its own. The owner must call Close.
func (f *Feed) Listen(ctx context.Context, now time.Time, args []string, address string) (*Listener, error) {
	var err error
	for range attemptsMax {
		var l *Listener
		if l, err = f.listen(ctx, now, args, address); err == nil {
			return l, nil
		}
		if !errors.Is(err, errDropped) {
			break
		}
	}
	switch {
	case errors.Is(err, ErrRequest):
		return nil, err
	case errors.Is(err, errDropped):
		err = ErrBusy
	}
	_, err = f.answered(Page{}, err)
	return nil, err
}

func (f *Feed) listen(ctx context.Context, now time.Time, args []string, address string) (*Listener, error) {
	w, err := f.join(args, now, address)
	if err != nil {
		return nil, err
	}
	l := &Listener{window: w}
	if _, err = w.get(ctx, now); err == nil {
		err = w.announce()
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// join returns the window for args with one more listener.
func (f *Feed) join(args []string, now time.Time, address string) (*window, error) {
	name := string(param.AppendArgs(nil, args))
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(args) > 0 && f.cfg.LiveMax == 0 {
		return nil, fmt.Errorf("%w: this list sends no events, because it has parameters or filters and its live_max is 0", ErrRequest)
	}
	w, ok := (*f.windows.Load())[name]
	first := !ok || !w.live()
	user := cmp.Or(f.user(args), address)
	if first && len(args) > 0 && !f.mayLiveLocked(user) {
		return nil, ErrLive
	}
	if !ok {
		var err error
		if w, err = f.newWindowLocked(name, args, now, true); err != nil {
			return nil, err
		}
		if w == nil {
			return nil, fmt.Errorf("%w: requests wait for all windows", ErrBusy)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return nil, errDropped
	}
	if w.listeners++; w.listeners == 1 {
		w.opener = user
		f.lives++
		f.livesOf[user]++
	}
	return w, nil
}

// mayLiveLocked reports whether one more value may have listeners: LiveMax in all, and a quarter
// of them for one user, so that none takes all.
func (f *Feed) mayLiveLocked(user string) bool {
	return f.lives < f.cfg.LiveMax && (user == "" || f.livesOf[user] < max(1, f.cfg.LiveMax/4))
}

// user returns what identifies a user: the claims among the values; "" if there are none.
func (f *Feed) user(args []string) string {
	var claims []string
	for i, p := range f.cfg.Params {
		if _, isClaim := p.Claim(); isClaim {
			claims = append(claims, args[i])
		}
	}
	return string(param.AppendArgs(nil, claims))
}

// Close ends the listener. It must be called once.
func (l *Listener) Close() {
	w, f := l.window, l.window.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners--; w.listeners > 0 {
		return
	}
	f.lives--
	if f.livesOf[w.opener]--; f.livesOf[w.opener] == 0 {
		delete(f.livesOf, w.opener)
	}
	w.event.Store(nil)
	w.asked.Store(time.Now().UnixNano())
}

// Event returns the last event.
func (l *Listener) Event() *Event { return l.window.event.Load() }

// CountEvent counts an event that a listener got.
func (l *Listener) CountEvent() { l.window.feed.counters.events.Add(1) }

// CountDropped counts a listener that was dropped because its client did not read.
func (l *Listener) CountDropped() { l.window.feed.counters.listenersDropped.Add(1) }

// live reports whether the window has listeners.
func (w *window) live() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listeners > 0
}

// announce makes the event of the current snapshot, for a listener that has joined.
func (w *window) announce() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return errDropped
	}
	if w.event.Load() == nil {
		w.event.Store(newEvent(w.current.Load(), nil))
	}
	if w.event.Load().Text == nil {
		return fmt.Errorf("%w: this list sends no events, because its window is smaller than its first page", ErrRequest)
	}
	return nil
}

// announceLocked wakes the listeners, if there are any, with the event of s if its first page
// differs from the last event. Without a snapshot there are no more events.
func (w *window) announceLocked(s *snapshot) {
	previous := w.event.Load()
	if previous == nil {
		return
	}
	if e := newEvent(s, previous); e != previous {
		w.event.Store(e)
		close(previous.next)
	}
}
