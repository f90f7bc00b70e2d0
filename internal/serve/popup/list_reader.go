package popup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/audit"
	"spillway/internal/serve/queue"
)

// ErrListUsed: campaigns that are not archived use the list.
var ErrListUsed = errors.New("the list is used")

// ListQuery is a list of users that a statement returns. It is not stored.
type ListQuery struct {
	Name string
	// Users calls yield for each user, and stops at an error of it, which it returns. skipped
	// is the number of rows that are no user's id.
	Users func(ctx context.Context, yield func(user string) error) (skipped int, err error)
}

const (
	smallList  = 100_000          // users; such lists are read before the campaigns of the same version are put in force
	listRetry  = time.Second      // between two attempts to read the others
	queryRetry = 10 * time.Second // the longest time between a failed read of a ListQuery and the next
)

// listReader keeps the lists of a Popup equal to those of a database and of statements.
type listReader struct {
	tables  ListTables
	queries []ListQuery   // do not change
	every   time.Duration // between two reads of a ListQuery
	popup   *Popup
	log     *slog.Logger
	behind  atomic.Bool // there is more to read
	failed  atomic.Uint64

	mu      sync.Mutex       // guards the fields below
	current map[string]int64 // versions of the lists of the database
	read    map[string]int64 // versions of those in force
	failing map[string]bool  // by the name of a ListQuery; "": the lists of the database
}

// Query adds lists by SQL, which Run reads at once and then at an interval. They take
// precedence over stored lists of the same names. It must be called before Reload.
func (c *Campaigns) Query(queries []ListQuery, every time.Duration) {
	c.lists.queries, c.lists.every = queries, every
}

func (l *listReader) bySQL(name string) bool {
	return slices.ContainsFunc(l.queries, func(q ListQuery) bool { return q.Name == name })
}

// follow reads which lists there are, and small ones that have changed. The others stay in
// force as they are until run has read them; what was never read waits.
func (l *listReader) follow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	l.update(ctx, smallList)
}

// run reads what follow has left, and the lists by SQL at their interval, until ctx ends.
func (l *listReader) run(ctx context.Context) {
	next := make([]time.Time, len(l.queries))
	skipping := map[string]bool{}
	for ctx.Err() == nil {
		if l.behind.Swap(false) {
			l.update(ctx, ListUsersMax)
		}
		for i := range l.queries {
			if begun := time.Now(); !begun.Before(next[i]) {
				next[i] = begun.Add(l.every)
				if err := l.readQuery(ctx, &l.queries[i], skipping); err != nil {
					next[i] = time.Now().Add(min(l.every, queryRetry))
				}
			}
		}
		queue.Sleep(ctx, listRetry)
	}
}

// update reads those lists of the database that have changed and have at most so many users.
func (l *listReader) update(ctx context.Context, users int64) {
	changed, err := l.list(ctx)
	for _, list := range changed {
		if list.Size > users {
			l.behind.Store(true)
			continue
		}
		err = errors.Join(err, l.readList(ctx, list.Name))
	}
	if err != nil {
		l.behind.Store(true)
	}
	l.report(ctx, "", err)
}

// list puts in force which lists there are, and returns those that must be read.
func (l *listReader) list(ctx context.Context) (changed []ListVersion, err error) {
	l.mu.Lock() // no older answer comes late
	defer l.mu.Unlock()
	all, err := l.tables.Lists(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	l.current = map[string]int64{}
	for i := range l.queries {
		names = append(names, l.queries[i].Name)
	}
	for _, list := range all {
		if l.bySQL(list.Name) {
			continue
		}
		names = append(names, list.Name)
		l.current[list.Name] = list.Version
		if version, known := l.read[list.Name]; !known || version != list.Version {
			changed = append(changed, list)
		}
	}
	for name := range l.read {
		if !slices.Contains(names, name) {
			delete(l.read, name)
		}
	}
	l.popup.ChangeLists(func(lists *Lists) *Lists { return lists.only(names) })
	return changed, nil
}

// readList reads a list of the database and puts it in force. If it has changed meanwhile, run
// reads it again.
func (l *listReader) readList(ctx context.Context, name string) error {
	list, hashes, err := l.tables.ListUsers(ctx, name)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, ErrNoList), errors.Is(err, ErrListChanged), err == nil && l.current[name] != list.Version:
		l.behind.Store(true)
		return nil
	case err != nil:
		return fmt.Errorf("list %s: %w", name, err)
	}
	l.read[name] = list.Version
	l.popup.ChangeLists(func(lists *Lists) *Lists { return lists.with(name, hashes) })
	return nil
}

// errUnlisted: a list by SQL is not in force before it is known which other lists exist.
var errUnlisted = errors.New("the lists of the database have not been read yet")

// readQuery reads a list by SQL and puts it in force. skipping has the lists of which rows were
// skipped the last time.
func (l *listReader) readQuery(ctx context.Context, q *ListQuery, skipping map[string]bool) error {
	if l.popup.Lists() == nil {
		return errUnlisted
	}
	users := listBuilder{limit: ListUsersMax}
	skipped, err := q.Users(ctx, users.add)
	l.report(ctx, q.Name, err)
	if err != nil {
		return err
	}
	hashes := slices.Clone(users.sorted())
	l.popup.ChangeLists(func(lists *Lists) *Lists { return lists.with(q.Name, hashes) })
	if skipped > 0 && !skipping[q.Name] {
		l.log.Warn("rows of a list of users are no ids and were skipped", "list", q.Name, "rows", skipped)
	}
	skipping[q.Name] = skipped > 0
	return nil
}

// report counts failures, and logs the first of several and their end. query is the name of a
// ListQuery; "": the lists of the database.
func (l *listReader) report(ctx context.Context, query string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	if err != nil {
		l.failed.Add(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch failing := l.failing[query]; {
	case err != nil && !failing && query == "":
		l.log.Warn("lists of users cannot be read; those in force stay", "error", err)
	case err != nil && !failing:
		l.log.Error("list of users cannot be read by SQL; its last users stay", "list", query, "error", err)
	case err == nil && failing:
		l.log.Info("list of users can be read again", "list", query)
	}
	l.failing[query] = err != nil
}

// Lists returns the lists of the database.
func (c *Campaigns) Lists(ctx context.Context) ([]ListVersion, error) {
	return c.lists.tables.Lists(ctx)
}

// ReplaceList makes a list have exactly these users, in any order and repeated or not, or
// creates it, and puts it in force here if it is small. It reads all users before it writes,
// one list at a time, because a list takes much memory until then. Errors wrap ErrList, or are
// those of users or of ListTables.ReplaceList.
func (c *Campaigns) ReplaceList(ctx context.Context, name string, users iter.Seq2[string, error], by audit.Author) (ListVersion, error) {
	if c.lists.bySQL(name) {
		return ListVersion{}, fmt.Errorf("%w: %s is one of popups.lists in the configuration: change its statement, or upload another name",
			ErrList, name)
	}
	select {
	case c.uploading <- struct{}{}:
		defer func() { <-c.uploading }()
	case <-ctx.Done():
		return ListVersion{}, fmt.Errorf("wait for the upload of another list: %w", context.Cause(ctx))
	}
	all, err := c.lists.tables.Lists(ctx)
	if err == nil {
		err = checkNewList(name, all)
	}
	if err != nil {
		return ListVersion{}, err
	}
	list := listBuilder{limit: ListUsersMax}
	for user, err := range users {
		if err != nil {
			return ListVersion{}, fmt.Errorf("read users of the list: %w", err)
		}
		if err := list.add(user); err != nil {
			return ListVersion{}, err
		}
	}
	saved, err := c.lists.tables.ReplaceList(ctx, name, list.sorted(), by)
	if err != nil {
		return ListVersion{}, err
	}
	c.log.Info("list of users saved", "list", name, "users", saved.Size, "version", saved.Version)
	c.followChange(ctx)
	return saved, nil
}

// DeleteList deletes a list. Errors wrap ErrListUsed and name the campaigns, or are those of
// ListTables.DeleteList. A campaign that is saved meanwhile may lose its list.
func (c *Campaigns) DeleteList(ctx context.Context, name string, by audit.Author) error {
	_, all, err := c.tables.Campaigns(ctx)
	if err != nil {
		return err
	}
	var users []CampaignID
	for i := range all {
		one := &all[i]
		if one.Status == Archived {
			continue
		}
		target, err := compileTarget(c.popup.Set().Schema(), one.Target, one.Zone, nil)
		if err == nil && slices.Contains(target.lists, name) {
			users = append(users, one.ID)
		}
	}
	if len(users) > 0 {
		return fmt.Errorf("%w by %s: change or archive first", ErrListUsed, campaignList(users))
	}
	if err := c.lists.tables.DeleteList(ctx, name, by); err != nil {
		return err
	}
	c.log.Info("list of users deleted", "list", name)
	c.followChange(ctx)
	return nil
}

// followChange puts a change of a list in force here.
func (c *Campaigns) followChange(ctx context.Context) {
	if err := c.poll(ctx); err != nil {
		c.log.Warn("changed list is not in force yet", "error", err)
	}
}
