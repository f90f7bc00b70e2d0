package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

const (
	watchEvery      = 500 * time.Millisecond // between two looks at the server
	durabilityEvery = time.Minute            // between two looks at how it syncs
	rebuildLease    = 30 * time.Second       // a process that rebuilds and dies is replaced after so long
	rebuildBatch    = 2000                   // states that are written at once
)

// serverFacts is what INFO says.
type serverFacts struct {
	runID string // of this run of this server
}

var infoLine = regexp.MustCompile(`(?m)^([a-z_0-9]+):([^\r\n]*)`)

// server reads what the server is and refuses those that lose states by themselves.
func (p *Popups) server(ctx context.Context) (serverFacts, error) {
	client := p.db.client
	ctx, cancel := context.WithTimeout(ctx, 2*commandTimeout)
	defer cancel()
	// All sections: a server before 7.0 refuses a choice of them, and it must be told that it is too old.
	text, err := client.Do(ctx, client.B().Info().Build()).ToString()
	if err != nil {
		return serverFacts{}, err
	}
	facts := make(map[string]string)
	for _, line := range infoLine.FindAllStringSubmatch(text, -1) {
		facts[line[1]] = line[2]
	}
	version := facts["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return serverFacts{}, fmt.Errorf("%w: it is version %q, and 7.0 is the oldest that works", ErrPopupServer, version)
	}
	if policy := facts["maxmemory_policy"]; policy != "noeviction" {
		return serverFacts{}, fmt.Errorf("%w: its maxmemory-policy is %s, which may throw away what users saw; "+
			"run CONFIG SET maxmemory-policy noeviction, and write it into its configuration", ErrPopupServer, policy)
	}
	if facts["role"] != "master" {
		return serverFacts{}, fmt.Errorf("the server is a %s", facts["role"])
	}
	if facts["loading"] == "1" {
		return serverFacts{}, errors.New("the server is loading its data")
	}
	return serverFacts{runID: facts["run_id"]}, nil
}

// mark is the value of the key ready: the shard holds what users saw, as of this run of
// the server.
func (p *Popups) mark(s serverFacts) string {
	if p.cfg.StateTTL == 0 {
		return "complete " + s.runID
	}
	return "partial " + s.runID
}

// watch keeps verified true to the server until ctx ends.
func (p *Popups) watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	last, loses := "", ""
	var asked time.Time
	for {
		err := p.verify(ctx)
		if err == nil && time.Since(asked) > durabilityEvery {
			asked, loses = time.Now(), p.lookAtDurability(ctx, loses)
		}
		switch {
		case ctx.Err() != nil:
			p.unready(fmt.Errorf("%w: they are being closed", errNotReady))
			return
		case err != nil:
			p.unready(fmt.Errorf("%w: %w", errNotReady, err))
			asked = time.Time{} // it may be another server then
		}
		if text := fmt.Sprint(err); text != last {
			if err != nil {
				p.cfg.Log.Warn("popup states in Redis are not ready", "err", err)
			} else {
				p.cfg.Log.Info("popup states in Redis are ready")
			}
			last = text
		}
		wake := p.wake
		if err != nil {
			wake = nil // a server that takes connections and drops them must not be looked at all the time
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-wake:
		}
	}
}

// lookAtDurability logs what a crash of the server may lose when that is not what it was
// before, and returns it.
func (p *Popups) lookAtDurability(ctx context.Context, before string) string {
	loses, err := p.Durability(ctx)
	if err != nil {
		return before // the next look is at what is wrong
	}
	p.counters.durable.Store(loses == "")
	switch {
	case loses == before:
	case loses != "":
		p.cfg.Log.Warn("Redis may lose popup events that were answered when it crashes: set appendonly yes and appendfsync always", "loses", loses)
	default:
		p.cfg.Log.Info("Redis keeps popup events that were answered")
	}
	return loses
}

// verify looks at the server, has states put back where some may be missing, and says
// in verified that all is well.
func (p *Popups) verify(ctx context.Context) error {
	dials := p.dials.Load()
	server, err := p.server(ctx)
	if err == nil {
		err = p.count(ctx)
	}
	if err != nil {
		p.counters.backlog.Store(unknown)
		return p.db.wrap("look at", err)
	}
	want := p.mark(server)
	whole, survived, err := p.marked(ctx, want)
	if err != nil {
		return err
	}
	if !whole {
		p.unready(fmt.Errorf("%w: they are being put back from the database", errNotReady))
		if err := p.rebuild(ctx, want, survived); err != nil {
			return err
		}
	}
	if p.cfg.Cache != nil && !p.warmed {
		p.warmed = true
		p.warm(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = nil
	p.verified.Store(dials) // a connection made since has the next look decide
	return nil
}

// count looks how many events wait for the database, and since when. It does not depend
// on the database.
func (p *Popups) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*commandTimeout)
	defer cancel()
	client := p.db.client
	commands := rueidis.Commands{client.B().Time().Build()} // the server's clock, which entries are named by
	for i := range p.keys {
		commands = append(commands, client.B().Xlen().Key(p.keys[i].events).Build(),
			client.B().Xrange().Key(p.keys[i].events).Start("-").End("+").Count(1).Build())
	}
	asked := time.Since(p.opened)
	results := client.DoMulti(ctx, commands...)
	clock, err := results[0].AsIntSlice()
	if err != nil || len(clock) != 2 {
		return cmp.Or(err, errors.New("read its clock"))
	}
	now, age, backlog := clock[0]*1000+clock[1]/1000, int64(0), int64(0)
	for i := range p.keys {
		n, err := results[1+2*i].AsInt64()
		if err != nil {
			return err
		}
		backlog += n
		first, err := results[2+2*i].AsXRange()
		if err != nil {
			return err
		}
		if len(first) > 0 {
			text, _, _ := strings.Cut(first[0].ID, "-")
			born, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return fmt.Errorf("read an entry's id: %w", err)
			}
			age = max(age, now-born)
		}
	}
	p.oldest.Store(int64(asked) - age*int64(time.Millisecond))
	p.counters.backlog.Store(backlog)
	return nil
}

// waited returns a time that no event has waited longer than.
func (p *Popups) waited() time.Duration {
	return time.Since(p.opened) - time.Duration(p.oldest.Load())
}

// marked reports whether all shards are marked so, and whether any is marked at all.
func (p *Popups) marked(ctx context.Context, want string) (whole, survived bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*commandTimeout)
	defer cancel()
	client := p.db.client
	var gets rueidis.Commands
	for i := range p.keys {
		gets = append(gets, client.B().Get().Key(p.keys[i].ready).Build())
	}
	whole = true
	for _, result := range client.DoMulti(ctx, gets...) {
		mark, err := result.ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			return false, false, p.db.wrap("get", err)
		}
		whole = whole && mark == want
		survived = survived || mark != ""
	}
	return whole, survived, nil
}

// errElsewhere: another process rebuilds.
var errElsewhere = errors.New("another process puts them back from the database")

// rebuild puts states from the database into Redis, those that are newer than what is
// here, and sets the marks. survived says that some states are here: the server was
// restarted, or is another one. With a StateTTL a state that is not here is read when
// it is asked for, so only those that are here are replaced, and after a loss of
// everything nothing is to be done.
func (p *Popups) rebuild(ctx context.Context, mark string, survived bool) error {
	token, err := p.beginRebuild(ctx)
	if err != nil {
		return err
	}
	defer p.endRebuild(ctx, token)
	if whole, _, err := p.marked(ctx, mark); err != nil || whole { // another process was quicker
		return err
	}
	start, total := time.Now(), 0
	if survived || p.cfg.StateTTL == 0 {
		r := p.newRestorer(p.cfg.StateTTL > 0)
		extended := start
		guard := func(k *shardKeys) string { return k.rebuild }
		err = p.cfg.Table.Restore(ctx, func(key popup.Key, state popup.State) error {
			total++
			if r.add(key, state); r.count < rebuildBatch {
				return nil
			}
			if time.Since(extended) > rebuildLease/10 {
				p.extendRebuild(ctx)
				extended = time.Now()
			}
			return r.flush(ctx, guard)
		})
		if err == nil {
			err = r.flush(ctx, guard)
		}
		if err != nil {
			return fmt.Errorf("put popup states back: %w", err)
		}
	}
	if err := p.finishRebuild(ctx, token, mark); err != nil {
		return err
	}
	p.counters.rebuilds.Add(1)
	p.cfg.Log.Info("popup states are back in Redis", "states", total, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// beginRebuild makes this process the one that rebuilds, for a lease. Each shard gets a
// key that a loss of its states takes along.
func (p *Popups) beginRebuild(ctx context.Context) (token string, err error) {
	token = rand.Text()
	client := p.db.client
	for i := range p.keys {
		set := client.B().Set().Key(p.keys[i].rebuild).Value(token).Px(rebuildLease).Build()
		if i == 0 {
			set = client.B().Set().Key(p.keys[i].rebuild).Value(token).Nx().Px(rebuildLease).Build()
		}
		err := client.Do(ctx, set).Error()
		if rueidis.IsRedisNil(err) {
			return "", errElsewhere
		}
		if err != nil {
			return "", p.db.wrap("set", err)
		}
	}
	return token, nil
}

// extendRebuild renews the lease. What fails here shows when the rebuild is finished.
func (p *Popups) extendRebuild(ctx context.Context) {
	client := p.db.client
	var commands rueidis.Commands
	for i := range p.keys {
		commands = append(commands, client.B().Pexpire().Key(p.keys[i].rebuild).Milliseconds(rebuildLease.Milliseconds()).Build())
	}
	client.DoMulti(ctx, commands...)
}

// finishRebuild sets the marks of the shards whose key is still there.
func (p *Popups) finishRebuild(ctx context.Context, token, mark string) error {
	var calls []rueidis.LuaExec
	for i := range p.keys {
		calls = append(calls, rueidis.LuaExec{Keys: []string{p.keys[i].ready, p.keys[i].rebuild}, Args: []string{token, mark}})
	}
	for _, result := range p.ready.ExecMulti(ctx, p.db.client, calls...) {
		done, err := result.AsInt64()
		if err != nil {
			return p.db.wrap("set", err)
		}
		if done != 1 {
			return errors.New("states were lost again while they were put back")
		}
	}
	return nil
}

// endRebuild lets others rebuild.
func (p *Popups) endRebuild(ctx context.Context, token string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	client := p.db.client
	for i := range p.keys {
		key := p.keys[i].rebuild
		if value, err := client.Do(ctx, client.B().Get().Key(key).Build()).ToString(); err != nil || value != token {
			return // another process's, or gone with its lease
		}
		_ = client.Do(ctx, client.B().Del().Key(key).Build()).Error() // the lease ends it
	}
}
