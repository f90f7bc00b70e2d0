package popup

import (
	"context"
	"slices"
	"time"
)

// ListQuery is a list of users that a statement returns. It is not stored.
type ListQuery struct {
	Name string
	// Users calls yield for each user, and stops at an error of it, which it returns. skipped
	// is the number of rows that are no user's id.
	Users func(ctx context.Context, yield func(user string) error) (skipped int, err error)
}

// queryRetry is the longest time between a failed read of a ListQuery and the next.
const queryRetry = 10 * time.Second

// Query adds lists by SQL, which Run reads at once and then at an interval. They take
// precedence over stored lists of the same names. It must be called before Reload.
func (c *Campaigns) Query(queries []ListQuery, every time.Duration) {
	c.lists.queries, c.queryEvery = queries, every
}

func (l *listReader) bySQL(name string) bool {
	return slices.ContainsFunc(l.queries, func(q ListQuery) bool { return q.Name == name })
}

// query reads the lists by SQL at an interval, one after the other, until ctx ends.
func (l *listReader) query(ctx context.Context, every time.Duration) {
	failing, skipping := map[string]bool{}, map[string]bool{}
	next := make([]time.Time, len(l.queries))
	for len(l.queries) > 0 {
		for i := range l.queries {
			q := &l.queries[i]
			if time.Now().Before(next[i]) {
				continue
			}
			begun := time.Now()
			skipped, err := l.readQuery(ctx, q)
			if ctx.Err() != nil {
				return
			}
			next[i] = begun.Add(every)
			if err != nil {
				next[i] = time.Now().Add(min(every, queryRetry))
			}
			l.reportQuery(q.Name, failing, skipping, skipped, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(slices.MinFunc(next, time.Time.Compare))):
		}
	}
}

// readQuery reads a list by SQL and puts it in force.
func (l *listReader) readQuery(ctx context.Context, q *ListQuery) (skipped int, err error) {
	hashes, err := collectUsers(func(yield func(string) error) (err error) {
		skipped, err = q.Users(ctx, yield)
		return err
	})
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queried[q.Name] = hashes
	l.popup.ChangeLists(func(lists *Lists) *Lists {
		if lists == nil {
			return nil // until it is known which others exist
		}
		return lists.with(q.Name, hashes)
	})
	return skipped, nil
}

// reportQuery logs the first of several failures, and their end.
func (l *listReader) reportQuery(name string, failing, skipping map[string]bool, skipped int, err error) {
	switch {
	case err != nil:
		l.failed.Add(1)
		if !failing[name] {
			l.log.Error("list of users cannot be read by SQL; its last users stay", "list", name, "error", err)
		}
	case failing[name]:
		l.log.Info("list of users can be read again", "list", name)
	}
	failing[name] = err != nil
	if err != nil {
		return
	}
	if skipped > 0 && !skipping[name] {
		l.log.Warn("rows of a list of users are no ids and were skipped", "list", name, "rows", skipped)
	}
	skipping[name] = skipped > 0
}
