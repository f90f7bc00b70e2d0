package query

import (
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Values returns at most that many values one of whose arguments contains a text, and how many there are: those that are paused, and
// then those of the cached answers, the last used first.
func (q *Query) Values(text string, most int) (values []feed.Value, all int) {
	now, paused := time.Now(), q.pauses.Names()
	add := func(name string, a *Answer) {
		v := feed.Value{Arguments: q.cfg.Arguments(name), Paused: paused[name]}
		if len(values) >= most || !v.Contains(text) {
			return
		}
		if a != nil {
			v.AgeSeconds, v.Rows, v.ReadSeconds = new(now.Sub(a.ReadAt).Seconds()), a.Rows, a.took.Seconds()
			v.Bytes = int64(size(name, a))
		}
		values = append(values, v)
	}
	for name := range paused {
		a := q.cached(name)
		if add(name, a); a == nil {
			all++
		}
	}
	if q.cache == nil {
		return values, all
	}
	names := q.cache.names()
	for i := len(names) - 1; i >= 0 && len(values) < most; i-- {
		if a := q.cached(names[i]); a != nil && !paused[names[i]] {
			add(names[i], a)
		}
	}
	return values, all + len(names)
}

// cached returns the cached answer of a value without using it; nil: there is none.
func (q *Query) cached(name string) *Answer {
	if q.cache == nil {
		return nil
	}
	q.cache.mu.Lock()
	defer q.cache.mu.Unlock()
	a, _ := q.cache.entries.Peek(name)
	return a
}

// names returns the names of the answers, the last used last.
func (c *cache) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries.Keys()
}

// Pause has the statement not run with a value from now on, or again. args are the arguments (param.Argument) of the parameters. Its
// answer is served as long as its age permits. The error is feed.ErrTooManyPaused.
func (q *Query) Pause(args []string, paused bool) error {
	return q.pauses.Set(string(param.AppendArgs(nil, args)), paused)
}

// Drop forgets the cached answer of a value in this process, and reports whether there was one.
func (q *Query) Drop(args []string) bool {
	if q.cache == nil {
		return false
	}
	q.cache.mu.Lock()
	defer q.cache.mu.Unlock()
	return q.cache.entries.Remove(string(param.AppendArgs(nil, args)))
}
