package redis

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

const (
	moveEvery     = 100 * time.Millisecond // between two reads that found little
	moveMax       = 4000                   // events at once
	drainerLease  = 10 * time.Second       // after which another process moves the events of one that has died
	retryMax      = 5 * time.Second        // between two attempts that failed
	shutdownGrace = 5 * time.Second        // for the last batch
)

// consume moves events to the database until ctx ends.
func (p *Popups) consume(ctx context.Context) {
	wait, again := moveEvery, false
	for ctx.Err() == nil {
		n, err := p.move(ctx, again)
		switch {
		case err == nil:
			wait, again = moveEvery, again && n == 0 // another process may be at it
		case ctx.Err() == nil:
			if !again {
				p.cfg.Log.Warn("popup events cannot be moved to the database; retried", "error", err)
			}
			wait, again = min(2*wait, retryMax), true
			p.leave(ctx)
		}
		if n < moveMax { // or else more events are likely
			queue.Sleep(ctx, wait)
		}
	}
	p.leave(context.WithoutCancel(ctx))
}

// leave lets another process move the events, at once.
func (p *Popups) leave(ctx context.Context) {
	_ = p.db.Release(ctx, p.keys.drainer, p.token) // the lease ends otherwise
}

// move stores events in the database and then deletes them. It returns how many. It does nothing
// while another process does it, or the keys do not belong to the database. again says
// that the last attempt with events failed. When ctx ends, storing gets shutdownGrace.
func (p *Popups) move(ctx context.Context, again bool) (int, error) {
	database := *p.database.Load()
	events, ids, err := p.take(ctx, database)
	if err != nil || len(events) == 0 {
		return 0, err
	}
	limited, cancel := withGrace(ctx)
	defer cancel()
	if again { // it was away, and may be another one
		err = p.sameDatabase(limited, database)
	}
	if err == nil {
		err = p.cfg.Table.Apply(limited, events)
	}
	if err != nil {
		return 0, err
	}
	return len(events), p.remove(context.WithoutCancel(ctx), ids)
}

// withGrace returns a context that ends shutdownGrace after ctx. It has no deadline, because
// a COMMIT is not to be ended: the database limits the other statements.
func withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(shutdownGrace, cancel) })
	return limited, func() {
		stop()
		cancel()
	}
}

var takeScript = rueidis.NewLuaScript(script("take"))

// take returns the oldest events, with their ids, if this process may move them.
func (p *Popups) take(ctx context.Context, database string) (events []popup.Event, ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	client, dials := p.db.client, p.dials.Load()
	args := []string{p.token, strconv.FormatInt(drainerLease.Milliseconds(), 10), database}
	mine, err := takeScript.Exec(ctx, client, []string{p.keys.drainer, p.keys.events, p.keys.database}, args).AsBool()
	if err != nil || !mine {
		return nil, nil, p.db.wrap("lease the events of", err)
	}
	entries, err := client.Do(ctx, client.B().Xrange().Key(p.keys.events).Start("-").End("+").Count(moveMax).Build()).AsXRange()
	if err == nil && dials != p.dials.Load() {
		err = errors.New("the connection is new, and may be to another server")
	}
	if err != nil {
		return nil, nil, p.db.wrap("read the events of", err)
	}
	for _, entry := range entries {
		event, err := popup.DecodeEvent([]byte(entry.FieldValues["e"]))
		if err != nil {
			p.setAside(ctx, entry, err)
			continue
		}
		events, ids = append(events, event), append(ids, entry.ID)
	}
	return events, ids, nil
}

var setAsideScript = rueidis.NewLuaScript(script("set_aside"))

// setAside sets an event aside that cannot be decoded, so that it is not lost. Others do not wait for it.
func (p *Popups) setAside(ctx context.Context, entry rueidis.XRangeEntry, why error) {
	err := setAsideScript.Exec(ctx, p.db.client, []string{p.keys.events, p.keys.bad}, []string{entry.ID, entry.FieldValues["e"]}).Error()
	if err != nil {
		p.cfg.Log.Debug("popup event could not be set aside", "id", entry.ID, "error", p.db.wrap("write to", err)) // tried again
		return
	}
	p.bad.Add(1)
	p.cfg.Log.Error("popup event in Redis cannot be decoded and was set aside", "stream", p.keys.bad, "id", entry.ID, "error", why)
}

// remove deletes events that the database has.
func (p *Popups) remove(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	return p.db.wrap("delete events of", p.db.client.Do(ctx, p.db.client.B().Xdel().Key(p.keys.events).Id(ids...).Build()).Error())
}
