package popup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ListTables is where a database stores lists of users.
type ListTables interface {
	// Lists returns the lists by name.
	Lists(context.Context) ([]ListVersion, error)
	// ListUsers calls yield for each user of a list. Errors are yield's, or wrap ErrNoList
	// or ErrListChanged.
	ListUsers(ctx context.Context, name string, yield func(user string) error) error
	// ReplaceList makes a list have these users. Errors are those of users, or wrap ErrList
	// or ErrListAbandoned.
	ReplaceList(ctx context.Context, name string, users iter.Seq2[string, error]) (ListVersion, error)
	// DeleteList deletes a list. The error wraps ErrNoList if there is none.
	DeleteList(ctx context.Context, name string) error
}

// ErrListUsed: campaigns that are not archived use the list.
var ErrListUsed = errors.New("the list is used")

const (
	smallLists = 100_000     // users; so many are read before the campaigns of the same version are put in force
	listRetry  = time.Second // between two attempts to read the others
)

// listReader keeps the lists of a Popup equal to those of a database.
type listReader struct {
	tables  ListTables
	popup   *Popup
	log     *slog.Logger
	behind  atomic.Bool // there is more to read
	reading sync.Mutex  // one list at a time is read

	mu      sync.Mutex       // guards the fields below
	current map[string]int64 // versions of the lists of the database
	read    map[string]int64 // versions of those in force
	failing bool

	queried map[string][]uint64 // by SQL, in force or waiting for the names of the others
	queries []ListQuery         // does not change
	failed  atomic.Uint64       // reads
}

// follow reads which lists there are, and small ones that have changed. The others stay in
// force as they are until run has read them; what was never read waits.
func (l *listReader) follow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	l.update(ctx, smallLists)
}

// run reads what follow has left, until ctx ends.
func (l *listReader) run(ctx context.Context) {
	ticker := time.NewTicker(listRetry)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if l.behind.Swap(false) {
			l.update(ctx, math.MaxInt64)
		}
	}
}

// update reads lists that have changed, with at most so many users together.
func (l *listReader) update(ctx context.Context, users int64) {
	changed, err := l.list(ctx)
	for _, list := range changed {
		if list.Size > users || !l.reading.TryLock() {
			l.behind.Store(true)
			continue
		}
		users -= list.Size
		one := l.readList(ctx, list)
		l.reading.Unlock()
		if errors.Is(one, ErrListChanged) || errors.Is(one, ErrNoList) {
			l.behind.Store(true)
			continue
		}
		err = errors.Join(err, one)
	}
	if err != nil {
		l.failed.Add(1)
		l.behind.Store(true)
	}
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		l.report(err)
	}
}

// report logs the first of several failures, and their end.
func (l *listReader) report(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil && !l.failing:
		l.log.Warn("lists of users cannot be read; those in force stay", "error", err)
	case err == nil && l.failing:
		l.log.Info("lists of users can be read again")
	}
	l.failing = err != nil
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
	l.popup.ChangeLists(func(lists *Lists) *Lists {
		next := lists.only(names)
		for name, hashes := range l.queried {
			next = next.with(name, hashes)
		}
		return next
	})
	return changed, nil
}

// readList reads a list and puts it in force, unless it has changed meanwhile.
func (l *listReader) readList(ctx context.Context, list ListVersion) error {
	hashes, err := collectUsers(func(yield func(string) error) error { return l.tables.ListUsers(ctx, list.Name, yield) })
	if err != nil {
		return fmt.Errorf("list %s: %w", list.Name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current[list.Name] != list.Version {
		return ErrListChanged
	}
	l.read[list.Name] = list.Version
	l.popup.ChangeLists(func(lists *Lists) *Lists { return lists.with(list.Name, hashes) })
	return nil
}

// collectUsers returns the sorted hashes of the users that read yields.
func collectUsers(read func(yield func(user string) error) error) ([]uint64, error) {
	errStop := errors.New("stop")
	return hashUsers(func(yield func(string, error) bool) {
		err := read(func(user string) error {
			if !yield(user, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield("", err)
		}
	}, ListUsersMax)
}

// Lists returns the lists of the database.
func (c *Campaigns) Lists(ctx context.Context) ([]ListVersion, error) {
	return c.lists.tables.Lists(ctx)
}

// ReplaceList makes a list have exactly these users, or creates it, and puts it in force here
// if it is small. Errors wrap ErrList for a list by SQL, or are those of ListTables.ReplaceList.
func (c *Campaigns) ReplaceList(ctx context.Context, name string, users iter.Seq2[string, error]) (ListVersion, error) {
	if c.lists.bySQL(name) {
		return ListVersion{}, fmt.Errorf("%w: %s is one of popups.lists in the configuration: change its statement, or upload another name", ErrList, name)
	}
	list, err := c.lists.tables.ReplaceList(ctx, name, users)
	if err == nil {
		c.log.Info("list of users saved", "list", name, "users", list.Size, "version", list.Version)
		c.followChange(ctx)
	}
	return list, err
}

// DeleteList deletes a list. Errors wrap ErrListUsed and name the campaigns, or are those of
// ListTables.DeleteList. A campaign that is saved meanwhile may lose its list.
func (c *Campaigns) DeleteList(ctx context.Context, name string) error {
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
	if err := c.lists.tables.DeleteList(ctx, name); err != nil {
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
