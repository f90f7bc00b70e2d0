package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/queue"
)

const (
	checkEvery      = 500 * time.Millisecond // of the server
	durabilityEvery = time.Minute            // between two checks of how it syncs
)

var infoLine = regexp.MustCompile(`(?m)^([a-z_0-9]+):([^\r\n]*)`)

// server reads INFO and returns the id of this run of this server. It refuses servers that are
// too old or may evict states.
func (p *Popups) server(ctx context.Context) (runID string, err error) {
	client := p.db.client
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	// All sections: before 7.0 INFO accepts only one, and the version must be read.
	text, err := client.Do(ctx, client.B().Info().Build()).ToString()
	if isDenied(err) {
		return "", cmp.Or(p.rights(ctx), err) // which names all that is missing
	}
	if err != nil {
		return "", err
	}
	facts := make(map[string]string)
	for _, line := range infoLine.FindAllStringSubmatch(text, -1) {
		facts[line[1]] = line[2]
	}
	version := facts["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return "", fmt.Errorf("%w: it is version %q, and 7.0 or newer is required", ErrPopupServer, version)
	}
	if policy := facts["maxmemory_policy"]; policy != "noeviction" {
		return "", fmt.Errorf("%w: its maxmemory-policy is %s, which may evict states; "+
			"run CONFIG SET maxmemory-policy noeviction, and add it to its configuration", ErrPopupServer, policy)
	}
	if facts["role"] != "master" {
		return "", fmt.Errorf("the server is a %s", facts["role"])
	}
	if facts["loading"] == "1" {
		return "", errors.New("the server is loading its data")
	}
	return facts["run_id"], p.rights(ctx)
}

// mark is the value of the key ready. It says that the server has the states, and since
// which run of it.
func (p *Popups) mark(runID string) string {
	if p.cfg.StateTTL == 0 {
		return "complete " + runID
	}
	return "partial " + runID
}

// watch checks the server until ctx ends.
func (p *Popups) watch(ctx context.Context) {
	ticker := time.Tick(checkEvery)
	last, loses := "", ""
	var asked time.Time
	for {
		err := p.verify(ctx)
		if err == nil && time.Since(asked) > durabilityEvery {
			asked, loses = time.Now(), p.checkDurability(ctx, loses)
		}
		switch {
		case ctx.Err() != nil:
			p.unready(notReady("the server is stopping"))
			return
		case err != nil:
			p.unready(&queue.Unready{Why: errNotReady, Cause: err})
			asked = time.Time{} // the next one may be another server
		}
		if text := fmt.Sprint(err); text != last {
			if err != nil {
				p.cfg.Log.Warn("popup states in Redis are not ready", "error", err)
			} else {
				p.cfg.Log.Info("popup states in Redis are ready")
			}
			last = text
		}
		wake := p.wake
		if err != nil {
			wake = nil // no busy loop with a server that accepts and drops connections
		}
		select {
		case <-ctx.Done():
		case <-ticker:
		case <-wake:
		}
	}
}

// checkDurability returns what a crash of the server may lose, and logs it if it changed.
func (p *Popups) checkDurability(ctx context.Context, before string) string {
	loses, err := p.Durability(ctx)
	if err != nil {
		return before // the next check reports the error
	}
	p.durable.Store(loses == "")
	switch {
	case loses == before:
	case loses != "":
		p.cfg.Log.Warn("Redis may lose acknowledged popup events in a crash: set appendonly yes and appendfsync always", "loses", loses)
	default:
		p.cfg.Log.Info("Redis syncs popup events before it acknowledges them")
	}
	return loses
}

// verify checks the server and restores states that may be missing. If it succeeds, calls
// are answered.
func (p *Popups) verify(ctx context.Context) error {
	dials := p.dials.Load()
	runID, err := p.server(ctx)
	if err == nil {
		err = p.own(ctx)
	}
	if err == nil {
		err = p.count(ctx)
	}
	if err != nil {
		p.backlog.Store(unknown)
		return p.db.wrap("check", err)
	}
	if err := p.checkWrites(ctx); err != nil {
		return err
	}
	if err := p.complete(ctx, p.mark(runID)); err != nil {
		return err
	}
	p.checked.Store(&check{dials: dials}) // a connection made since then is checked first
	return nil
}

// checkWrites finds out whether the server writes.
func (p *Popups) checkWrites(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	probe := p.db.client.B().Set().Key(p.keys.probe).Value("").Px(time.Minute).Build()
	err := p.db.wrap("write to", p.db.client.Do(limited, probe).Error())
	refused := refusedWrite(err)
	if err != nil && refused == nil {
		return err
	}
	p.noteRefused(refused)
	return nil
}

// complete restores states that may be missing.
func (p *Popups) complete(ctx context.Context, want string) error {
	found, err := p.found(ctx)
	if err != nil || found == want {
		return err
	}
	p.unready(notReady("they are being restored from the database"))
	return p.rebuild(ctx, want, found != "")
}

// count reads how many events wait for the database, and the age of the oldest, by the clock of the server.
func (p *Popups) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	asked, client := time.Now(), p.db.client
	results := client.DoMulti(ctx, client.B().Time().Build(), client.B().Xlen().Key(p.keys.events).Build(),
		client.B().Xrange().Key(p.keys.events).Start("-").End("+").Count(1).Build())
	answered := time.Now()
	clock, err := results[0].AsIntSlice()
	backlog, lengthErr := results[1].AsInt64()
	first, firstErr := results[2].AsXRange()
	if err := cmp.Or(err, lengthErr, firstErr); err != nil {
		return err
	}
	if len(clock) != 2 {
		return errors.New("read the time of the server")
	}
	now := time.Unix(clock[0], clock[1]*1000)
	if p.cfg.Clock != nil {
		p.cfg.Clock.Sample(asked, answered, now)
		p.cfg.Clock.Report(p.cfg.Log)
	}
	age := time.Duration(0)
	if len(first) > 0 {
		text, _, _ := strings.Cut(first[0].ID, "-")
		born, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("parse the id of an event: %w", err)
		}
		age = max(0, now.Sub(time.UnixMilli(born)))
	}
	p.oldest.Store(int64(asked.Sub(p.opened) - age))
	p.backlog.Store(backlog)
	return nil
}

// oldestAge returns an upper bound of the age of the events that wait.
func (p *Popups) oldestAge() time.Duration {
	return time.Since(p.opened) - time.Duration(p.oldest.Load())
}

// found returns the mark that the server has; "" if it has none.
func (p *Popups) found(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	mark, err := p.db.client.Do(ctx, p.db.client.B().Get().Key(p.keys.ready).Build()).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		return "", p.db.wrap("get", err)
	}
	return mark, nil
}

// Durability returns in words what a crash of the server or its host may lose; "" if every
// acknowledged event is synced.
func (p *Popups) Durability(ctx context.Context) (string, error) {
	client := p.db.client
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	settings, err := client.Do(ctx, client.B().ConfigGet().Parameter("appendonly", "appendfsync").Build()).AsStrMap()
	if err != nil {
		if _, ok := errors.AsType[*rueidis.RedisError](err); ok {
			return "an unknown amount (CONFIG GET is not permitted)", nil
		}
		return "", p.db.wrap("read the settings of", err)
	}
	switch {
	case settings["appendonly"] != "yes":
		return "all events that are not in the database yet (appendonly = no)", nil
	case settings["appendfsync"] == "always":
		return "", nil
	case settings["appendfsync"] == "everysec":
		return "up to two seconds when the host crashes (appendfsync = everysec)", nil
	}
	return "up to half a minute when the host crashes (appendfsync = " + settings["appendfsync"] + ")", nil
}
