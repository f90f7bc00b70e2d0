package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

const (
	popupGroup    = "database"             // the consumer group
	readEvery     = 100 * time.Millisecond // between two reads that found little
	readMax       = 250                    // events per shard and read
	claimEvery    = 5 * time.Second        // between two searches for events of dead processes
	consumerIdle  = time.Hour              // after which a consumer is removed
	retryMin      = 100 * time.Millisecond // before the first retry of a batch
	retryMax      = 5 * time.Second        // before each later one
	shutdownGrace = 5 * time.Second        // for the last batch
)

// queued is an event and its place in a stream.
type queued struct {
	shard int
	id    string
	event popup.Event
}

// consume moves events to the database until ctx ends.
func (p *Popups) consume(ctx context.Context) {
	claimed := time.Now()
	for ctx.Err() == nil {
		n, err := p.take(ctx, p.readNew)
		if err == nil && time.Since(claimed) > min(claimEvery, p.cfg.ClaimAfter) {
			claimed = time.Now()
			n, err = p.take(ctx, p.readStale)
			p.counters.claimed.Add(uint64(n))
			p.removeConsumers(ctx)
		}
		if err != nil && ctx.Err() == nil {
			p.cfg.Log.Debug("popup events wait in Redis", "error", err)
		}
		if n < readMax { // or else more events are likely
			queue.Sleep(ctx, readEvery)
		}
	}
	if p.owned.Load() == 0 {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	for i := range p.keys {
		// other processes remove it later
		_ = leaveScript.Exec(last, p.db.client, []string{p.keys[i].events}, []string{popupGroup, p.consumer}).Error()
	}
}

// take reads a batch of events, stores them and deletes them. It returns how many. It does
// nothing unless the keys are known to belong to the database.
func (p *Popups) take(ctx context.Context, read func(context.Context) ([]queued, error)) (int, error) {
	dials, database := p.dials.Load(), p.database.known()
	if !p.owns(dials) {
		return 0, errNotReady
	}
	limited, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	batch, err := read(limited)
	cancel()
	switch {
	case err != nil || len(batch) == 0:
		return 0, err
	case !p.confirm(ctx, dials):
		return 0, errNotReady // another process claims the events
	case !p.store(ctx, database, batch):
		return 0, context.Cause(ctx) // another process claims the events
	}
	if err := p.remove(context.WithoutCancel(ctx), batch); err != nil {
		return 0, err // they are read again, and Apply skips them
	}
	p.counters.applied.Add(uint64(len(batch)))
	return len(batch), nil
}

// store writes a batch to the database with an id and retries until that succeeds. When ctx
// ends, the current attempt, or one more, gets shutdownGrace. It reports whether the batch was
// stored.
func (p *Popups) store(ctx context.Context, database string, batch []queued) bool {
	events := make([]popup.Event, len(batch))
	for i, q := range batch {
		events[i] = q.event
	}
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		last := ctx.Err() != nil
		limited, cancel := withGrace(ctx)
		var err error
		if wait > retryMin { // it was away
			err = p.sameDatabase(limited, database)
		}
		if err == nil {
			err = p.cfg.Table.Apply(limited, events)
		}
		last = last || limited.Err() != nil && ctx.Err() != nil
		cancel()
		if err == nil {
			return true
		}
		if p.counters.failures.Add(1); last {
			return false
		}
		if wait == retryMin || wait == retryMax {
			p.cfg.Log.Warn("popup events wait for the database", "events", len(events), "error", err)
		}
		queue.Sleep(ctx, wait)
	}
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

// readNew reads events that no process has read.
func (p *Popups) readNew(ctx context.Context) ([]queued, error) {
	client := p.db.client
	var reads rueidis.Commands
	for i := range p.keys {
		reads = append(reads, client.B().Xreadgroup().Group(popupGroup,
			p.consumer).Count(readMax).Streams().Key(p.keys[i].events).Id(">").Build())
	}
	var batch []queued
	for i, result := range client.DoMulti(ctx, reads...) {
		streams, err := result.AsXRead()
		switch {
		case rueidis.IsRedisNil(err):
			continue
		case err != nil && strings.HasPrefix(err.Error(), "NOGROUP"):
			if err := p.createGroup(ctx, i); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, p.db.wrap("read events of", err)
		}
		batch = p.decode(ctx, batch, i, streams[p.keys[i].events])
	}
	return batch, nil
}

// createGroup creates a shard's stream and its consumer group, from the first event on.
func (p *Popups) createGroup(ctx context.Context, shard int) error {
	client := p.db.client
	err := client.Do(ctx, client.B().XgroupCreate().Key(p.keys[shard].events).Group(popupGroup).Id("0").Mkstream().Build()).Error()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return p.db.wrap("create a group on", err)
	}
	return nil
}

// readStale claims events that a process has held for too long.
func (p *Popups) readStale(ctx context.Context) ([]queued, error) {
	client := p.db.client
	idle := strconv.FormatInt(p.cfg.ClaimAfter.Milliseconds(), 10)
	var claims rueidis.Commands
	for i := range p.keys {
		claims = append(claims, client.B().Xautoclaim().Key(p.keys[i].events).Group(popupGroup).Consumer(p.consumer).
			MinIdleTime(idle).Start("0-0").Count(readMax).Build())
	}
	results := client.DoMulti(ctx, claims...)
	var batch []queued
	for i := range p.keys {
		answer, err := results[i].ToArray()
		if err != nil || len(answer) < 2 {
			if err != nil && !strings.HasPrefix(err.Error(), "NOGROUP") {
				return nil, p.db.wrap("claim events of", err)
			}
			continue
		}
		entries, err := answer[1].AsXRange()
		if err != nil {
			return nil, fmt.Errorf("read claimed events: %w", err)
		}
		batch = p.decode(ctx, batch, i, entries)
	}
	return batch, nil
}

// setAsideScript moves an event that cannot be decoded to the stream "bad".
//
//	KEYS events, bad; ARGV group, id, event
var setAsideScript = rueidis.NewLuaScript(`
redis.call('XADD', KEYS[2], '*', 'e', ARGV[3])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return redis.call('XDEL', KEYS[1], ARGV[2])`)

// decode appends the events of entries. An entry that cannot be decoded is set aside, so
// that it is not lost and does not block the others.
func (p *Popups) decode(ctx context.Context, batch []queued, shard int, entries []rueidis.XRangeEntry) []queued {
	for _, entry := range entries {
		text := entry.FieldValues["e"]
		event, err := popup.DecodeEvent([]byte(text))
		if err == nil {
			batch = append(batch, queued{shard, entry.ID, event})
			continue
		}
		k := &p.keys[shard]
		p.cfg.Log.Error("popup event in Redis cannot be decoded and is set aside", "stream", k.bad, "id", entry.ID, "error", err)
		p.counters.bad.Add(1)
		err = setAsideScript.Exec(ctx, p.db.client, []string{k.events, k.bad}, []string{popupGroup, entry.ID, text}).Error()
		if err != nil && !errors.Is(err, context.Canceled) {
			p.cfg.Log.Warn("popup event could not be set aside", "error", p.db.wrap("write to", err)) // it is claimed and tried again
		}
	}
	return batch
}

// ackScript deletes events that are stored in the database.
//
//	KEYS events; ARGV group, ids
var ackScript = rueidis.NewLuaScript(`
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))`)

// remove deletes stored events from their streams.
func (p *Popups) remove(ctx context.Context, batch []queued) error {
	var ids [popupShards][]string
	for _, q := range batch {
		ids[q.shard] = append(ids[q.shard], q.id)
	}
	var calls []rueidis.LuaExec
	for i := range ids {
		if len(ids[i]) > 0 {
			calls = append(calls, rueidis.LuaExec{Keys: []string{p.keys[i].events}, Args: append([]string{popupGroup}, ids[i]...)})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	for _, result := range ackScript.ExecMulti(ctx, p.db.client, calls...) {
		if err := result.Error(); err != nil {
			return p.db.wrap("delete events of", err)
		}
	}
	return nil
}

// leaveScript removes a consumer without pending events.
//
//	KEYS events; ARGV group, consumer
var leaveScript = rueidis.NewLuaScript(`
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
return redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])`)

// removeConsumers removes the consumers of processes that have ended.
func (p *Popups) removeConsumers(ctx context.Context) {
	client := p.db.client
	for i := range p.keys {
		consumers, err := client.Do(ctx, client.B().XinfoConsumers().Key(p.keys[i].events).Group(popupGroup).Build()).ToArray()
		if err != nil {
			return // tried again later
		}
		for _, c := range consumers {
			facts, err := c.AsMap()
			if err != nil {
				return
			}
			name, idle, pending := facts["name"], facts["idle"], facts["pending"]
			id, _ := name.ToString()
			ms, _ := idle.AsInt64()
			n, err := pending.AsInt64()
			if err == nil && n == 0 && id != p.consumer && time.Duration(ms)*time.Millisecond > consumerIdle {
				_ = leaveScript.Exec(ctx, client, []string{p.keys[i].events}, []string{popupGroup, id}).Error() // tried again later
			}
		}
	}
}
