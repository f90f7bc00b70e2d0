package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

const (
	popupGroup   = "database"             // the consumer group
	drainEvery   = 100 * time.Millisecond // between two reads that found little
	drainShard   = 250                    // events of a shard that are read at once
	claimEvery   = 5 * time.Second        // between two looks for events of dead processes
	forgetAfter  = time.Hour              // a consumer that did nothing for so long is removed
	retryMin     = 100 * time.Millisecond // before a failed batch is tried again, at first
	retryMax     = 5 * time.Second        // and at most
	drainTimeout = 30 * time.Second       // for one attempt to store a batch
	stopGrace    = 5 * time.Second        // for the last batch at the end
)

// PopupStats is a snapshot of what popups in Redis have done, for metrics.
type PopupStats struct {
	Applied  uint64 // events stored in the database and forgotten here
	Claimed  uint64 // of those, taken over from a process that did not store them
	Bad      uint64 // events that could not be read and were set aside
	Failures uint64 // attempts to store a batch that failed
	Full     uint64 // swaps refused because too many events wait
	Loaded   uint64 // states read from the database for one user
	Rebuilds uint64 // times that this process put the states back
	Durable  bool   // the server syncs what it answers, by its settings of within a minute

	Backlog int64         // events that wait for the database, of all processes, as of the last look; -1: not known
	Oldest  time.Duration // how long the oldest of them has waited; 0 where there is none, or Backlog is not known
}

type popupCounters struct {
	applied, claimed, bad, failures, full, loaded, rebuilds atomic.Uint64
	backlog                                                 atomic.Int64
	durable                                                 atomic.Bool
}

// unknown is a backlog that could not be counted.
const unknown = -1

// Stats returns the counters.
func (p *Popups) Stats() PopupStats {
	c := &p.counters
	s := PopupStats{
		Applied: c.applied.Load(), Claimed: c.claimed.Load(), Bad: c.bad.Load(), Failures: c.failures.Load(), Full: c.full.Load(),
		Loaded: c.loaded.Load(), Rebuilds: c.rebuilds.Load(), Backlog: c.backlog.Load(),
		Durable: c.durable.Load(),
	}
	if s.Backlog > 0 {
		s.Oldest = p.waited()
	}
	return s
}

// Run keeps the states ready and takes events to the database until ctx ends. It is
// called once; calls fail before and after.
func (p *Popups) Run(ctx context.Context) {
	go p.sender.run()
	defer p.sender.close()
	var running sync.WaitGroup
	running.Go(func() { p.watch(ctx) })
	running.Go(func() { p.serveLoads(ctx) })
	running.Go(func() { p.drain(ctx) })
	running.Wait()
}

// queued is an event and where it waits.
type queued struct {
	shard int
	id    string
	event popup.Event
}

// drain takes events to the database until ctx ends.
func (p *Popups) drain(ctx context.Context) {
	ticker := time.NewTicker(drainEvery)
	defer ticker.Stop()
	claimed := time.Now()
	for ctx.Err() == nil {
		n, err := p.take(ctx, p.readNew)
		if err == nil && time.Since(claimed) > min(claimEvery, p.cfg.ClaimAfter) {
			claimed = time.Now()
			n, err = p.take(ctx, p.readStale)
			p.counters.claimed.Add(uint64(n))
			p.forgetConsumers(ctx)
		}
		if err != nil && ctx.Err() == nil {
			p.cfg.Log.Debug("popup events wait in Redis", "err", err)
		}
		if n >= drainShard {
			continue // there is more, most likely
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	for i := range p.keys {
		_ = p.leave.Exec(last, p.db.client, []string{p.keys[i].events}, []string{popupGroup, p.consumer}).Error() // others remove it later
	}
}

// take reads events, stores them and forgets them. It returns how many.
func (p *Popups) take(ctx context.Context, read func(context.Context) ([]queued, error)) (int, error) {
	limited, cancel := context.WithTimeout(ctx, 2*commandTimeout)
	batch, err := read(limited)
	cancel()
	if err != nil || len(batch) == 0 {
		return 0, err
	}
	if !p.store(ctx, batch) {
		return 0, context.Cause(ctx) // the events stay with this consumer until another claims them
	}
	if err := p.forget(context.WithoutCancel(ctx), batch); err != nil {
		return 0, err // stored: they come again and change nothing
	}
	p.counters.applied.Add(uint64(len(batch)))
	return len(batch), nil
}

// store writes a batch to the database, however long that takes. When ctx ends, the
// attempt under way, or else a last one, has stopGrace.
func (p *Popups) store(ctx context.Context, batch []queued) bool {
	events := make([]popup.Event, len(batch))
	for i, q := range batch {
		events[i] = q.event
	}
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		last := ctx.Err() != nil
		limited, cancel := boundedByStop(ctx)
		err := p.cfg.Table.Apply(limited, popup.Mark{}, events)
		last = last || limited.Err() != nil && ctx.Err() != nil
		cancel()
		if err == nil {
			return true
		}
		if p.counters.failures.Add(1); last {
			return false
		}
		if wait == retryMin || wait == retryMax {
			p.cfg.Log.Warn("popup events wait for the database", "events", len(events), "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// boundedByStop returns a context that ends after drainTimeout, and stopGrace after ctx
// has.
func boundedByStop(ctx context.Context) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	return limited, func() {
		stop()
		cancel()
	}
}

// readNew takes events that no process has taken.
func (p *Popups) readNew(ctx context.Context) ([]queued, error) {
	client := p.db.client
	var reads rueidis.Commands
	for i := range p.keys {
		reads = append(reads, client.B().Xreadgroup().Group(popupGroup, p.consumer).Count(drainShard).Streams().Key(p.keys[i].events).Id(">").Build())
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

// createGroup makes a shard's stream and its group, from the first event on.
func (p *Popups) createGroup(ctx context.Context, shard int) error {
	client := p.db.client
	err := client.Do(ctx, client.B().XgroupCreate().Key(p.keys[shard].events).Group(popupGroup).Id("0").Mkstream().Build()).Error()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return p.db.wrap("create a group on", err)
	}
	return nil
}

// readStale takes events over that were with a process for too long.
func (p *Popups) readStale(ctx context.Context) ([]queued, error) {
	client := p.db.client
	idle := strconv.FormatInt(p.cfg.ClaimAfter.Milliseconds(), 10)
	var claims rueidis.Commands
	for i := range p.keys {
		claims = append(claims, client.B().Xautoclaim().Key(p.keys[i].events).Group(popupGroup).Consumer(p.consumer).MinIdleTime(idle).Start("0-0").Count(drainShard).Build())
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

// decode appends the events of entries. What cannot be read is set aside: it must
// neither be lost nor keep others from the database.
func (p *Popups) decode(ctx context.Context, batch []queued, shard int, entries []rueidis.XRangeEntry) []queued {
	for _, entry := range entries {
		text := entry.FieldValues["e"]
		event, err := popup.DecodeEvent([]byte(text))
		if err == nil {
			batch = append(batch, queued{shard, entry.ID, event})
			continue
		}
		k := &p.keys[shard]
		p.cfg.Log.Error("a popup event in Redis cannot be read and is set aside", "stream", k.bad, "id", entry.ID, "err", err)
		p.counters.bad.Add(1)
		err = p.setAside.Exec(ctx, p.db.client, []string{k.events, k.bad}, []string{popupGroup, entry.ID, text}).Error()
		if err != nil && !errors.Is(err, context.Canceled) {
			p.cfg.Log.Warn("set a popup event aside", "err", p.db.wrap("write to", err)) // it is claimed again
		}
	}
	return batch
}

// forget removes stored events from their streams.
func (p *Popups) forget(ctx context.Context, batch []queued) error {
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
	ctx, cancel := context.WithTimeout(ctx, 2*commandTimeout)
	defer cancel()
	for _, result := range p.ack.ExecMulti(ctx, p.db.client, calls...) {
		if err := result.Error(); err != nil {
			return p.db.wrap("forget events of", err)
		}
	}
	return nil
}

// forgetConsumers removes the consumers of processes that are gone.
func (p *Popups) forgetConsumers(ctx context.Context) {
	client := p.db.client
	for i := range p.keys {
		consumers, err := client.Do(ctx, client.B().XinfoConsumers().Key(p.keys[i].events).Group(popupGroup).Build()).ToArray()
		if err != nil {
			return // the next look does it
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
			if err == nil && n == 0 && id != p.consumer && time.Duration(ms)*time.Millisecond > forgetAfter {
				_ = p.leave.Exec(ctx, client, []string{p.keys[i].events}, []string{popupGroup, id}).Error() // the next look does it
			}
		}
	}
}

// Durability returns what an acknowledged event is worth: "" where the server has synced
// it, else in words what a crash of the server or its host may lose.
func (p *Popups) Durability(ctx context.Context) (string, error) {
	client := p.db.client
	ctx, cancel := context.WithTimeout(ctx, 2*commandTimeout)
	defer cancel()
	settings, err := client.Do(ctx, client.B().ConfigGet().Parameter("appendonly", "appendfsync").Build()).AsStrMap()
	if err != nil {
		var refused *rueidis.RedisError
		if errors.As(err, &refused) {
			return "an unknown amount (the server does not tell appendonly and appendfsync)", nil
		}
		return "", p.db.wrap("read the settings of", err)
	}
	switch {
	case settings["appendonly"] != "yes":
		return "all that is not in the database yet (appendonly = no)", nil
	case settings["appendfsync"] == "always":
		return "", nil
	case settings["appendfsync"] == "everysec":
		return "up to two seconds when the host crashes (appendfsync = everysec)", nil
	}
	return "up to half a minute when the host crashes (appendfsync = " + settings["appendfsync"] + ")", nil
}
