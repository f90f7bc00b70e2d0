package query

import (
	"slices"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// Values returns at most that many values one of whose arguments contains a text, and how many there are: those that are paused, and
// then those of the cached answers, the last used first.
func (q *Query) Values(text string, most int) (values []feed.Value, all int) {
	var names []string
	q.pauses.Each(func(name string) { names = append(names, name) })
	paused := len(names)
	if q.cache != nil {
		cached := q.cache.names()
		slices.Reverse(cached)
		names = append(names, slices.DeleteFunc(cached, q.pauses.Has)...)
	}
	for i, name := range names {
		if len(values) >= most {
			break
		}
		v := feed.Value{Arguments: q.cfg.Arguments(name), Paused: i < paused}
		if !v.Contains(text) {
			continue
		}
		if a := q.cached(name); a != nil {
			v.AgeSeconds, v.Rows, v.Bytes, v.ReadSeconds = new(time.Since(a.ReadAt).Seconds()), a.Rows, int64(size(name, a)), a.took.Seconds()
		}
		values = append(values, v)
	}
	return values, len(names)
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
// answer is served as long as its age permits.
func (q *Query) Pause(args []string, paused bool) { q.pauses.Set(args, paused) }

// Drop forgets the cached answer of a value in this process, and reports whether there was one.
func (q *Query) Drop(args []string) bool {
	if q.cache == nil {
		return false
	}
	q.cache.mu.Lock()
	defer q.cache.mu.Unlock()
	return q.cache.entries.Remove(string(param.AppendArgs(nil, args)))
}
