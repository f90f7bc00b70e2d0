package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"spillway/internal/exit"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// ForgetUser deletes all that is known about a user of popups and prints how much that was. It
// asks the process at an admin listener, whose address and token are found as by ReloadConfig.
func ForgetUser(ctx context.Context, user, path, address string, stdout io.Writer) error {
	cfg, err := configAt(path, config.Default)
	if err != nil {
		return err
	}
	address = cmp.Or(address, cfg.Admin.Listen)
	done, err := admin.ForgetUser(ctx, address, adminToken(cfg.Admin), user)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return exit.UsageError(fmt.Errorf("no process answers at %s: start the server, or name its admin listener with --admin or its "+
			"configuration with --config", address))
	}
	if errors.Is(err, popup.ErrRequest) {
		return exit.UsageError(err)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "user %s: %d states and %d rows deleted\n", done.User, done.States, done.Rows)
	return err
}

// forgetWait is how long states may take to be ready, and events to reach the database.
const forgetWait = 20 * time.Second

// forget deletes all that is known about a user. Errors that wrap popup.ErrRequest are the
// caller's.
func (p *popupPart) forget(ctx context.Context, user string) (admin.Forgotten, error) {
	done := admin.Forgotten{User: user}
	var err error
	if p.cfg.UserType != string(param.Text) {
		if done.User, err = param.Parse(param.Param{Name: "user", Type: param.Type(p.cfg.UserType)}, user); err != nil {
			return done, fmt.Errorf("%w: %w", popup.ErrRequest, err)
		}
	}
	if err := popup.CheckUser(done.User); err != nil {
		return done, err
	}
	all, _, err := p.campaigns.Read(ctx)
	if err != nil {
		return done, err
	}
	placements := slices.Clone(p.cfg.PlacementNames())
	for _, c := range all {
		if !slices.Contains(placements, c.Placement) {
			placements = append(placements, c.Placement)
		}
	}
	if done.States, err = p.forgetStates(ctx, done.User, placements); err != nil {
		return done, err
	}
	since := time.Now()
	if err := p.awaitDrained(ctx, since); err != nil {
		return done, fmt.Errorf("nothing is deleted in the database: %w", err)
	}
	if done.Rows, err = p.tables.Forget(ctx, done.User); err != nil {
		return done, err
	}
	// A request may have read a state from the database meanwhile.
	again, err := p.forgetStates(ctx, done.User, placements)
	done.States += again
	return done, err
}

// forgetStates removes a user's states from memory or Redis.
func (p *popupPart) forgetStates(ctx context.Context, user string, placements []string) (int, error) {
	if p.local != nil {
		return p.local.Forget(user, placements), nil
	}
	return p.redis.Forget(ctx, user, placements)
}

// errEventsWait: the database does not have all events yet.
var errEventsWait = errors.New("events wait for the database")

// drained returns nil once the database has all events that were recorded before a time.
func (p *popupPart) drained(since time.Time) error {
	if p.redis != nil {
		if !p.redis.Drained(since) {
			return errEventsWait
		}
		return nil
	}
	events := p.spool.Load()
	if events == nil {
		return errStopped
	}
	age := time.Since(since).Seconds()
	for _, s := range events.Stats().Names {
		if s.Rows > 0 && s.OldestSeconds >= age {
			return errEventsWait
		}
	}
	return nil
}

// awaitDrained waits until drained returns nil, at most for forgetWait, and returns its last error.
func (p *popupPart) awaitDrained(ctx context.Context, since time.Time) error {
	for deadline := time.Now().Add(forgetWait); ; queue.Sleep(ctx, 50*time.Millisecond) {
		err := p.drained(since)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("after %s: %w", forgetWait, err)
		}
	}
}
