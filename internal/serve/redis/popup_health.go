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

// mark is the value of the key ready. It says that the shard has the states, and since
// which run of the server.
func (p *Popups) mark(runID string) string {
	if p.cfg.StateTTL == 0 {
		return "complete " + runID
	}
	return "partial " + runID
}

// watch checks the server until ctx ends. It first waits for a moment until the database was
// asked for its id.
func (p *Popups) watch(ctx context.Context, identified <-chan struct{}) {
	select {
	case <-identified:
	case <-time.After(startWait):
	case <-ctx.Done():
	}
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
	p.counters.durable.Store(loses == "")
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
		p.foreign.Store(errors.Is(err, ErrPopupDatabase))
		if err != nil {
			p.owned.Store(0)
		} else {
			p.owned.Store(dials)
		}
	}
	if err == nil {
		err = p.count(ctx)
	}
	if err != nil {
		p.counters.backlog.Store(unknown)
		return p.db.wrap("check", err)
	}
	if err := p.checkWrites(ctx); err != nil {
		return err
	}
	if err := p.complete(ctx, p.mark(runID)); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = nil
	p.verified.Store(dials) // a connection made since then is checked first
	return nil
}

// checkWrites finds out whether the server writes, and keeps the campaigns if it does.
func (p *Popups) checkWrites(ctx context.Context) error {
	err := p.probeWrite(ctx)
	if err == nil {
		err = p.keepCampaigns(ctx)
	}
	refused := refusedWrite(err)
	if err != nil && refused == nil {
		return err
	}
	p.noteRefused(refused)
	return nil
}

// probeWrite writes a key, as a swap would.
func (p *Popups) probeWrite(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	client := p.db.client
	return p.db.wrap("write to", client.Do(ctx, client.B().Set().Key(p.keys[0].probe).Value("").Px(time.Minute).Build()).Error())
}

// complete restores states that may be missing. If the server only was restarted, and the
// database is away, the states that it has are used until they can be compared.
func (p *Popups) complete(ctx context.Context, want string) error {
	marks, err := p.marked(ctx, want)
	if err != nil {
		return err
	}
	if marks.whole {
		p.uncompared.Store(false)
		return nil
	}
	if marks.everywhere && !p.databaseAnswers(ctx) {
		p.useUncompared()
		return nil
	}
	p.unready(notReady("they are being restored from the database"))
	err = p.rebuild(ctx, want, marks.somewhere)
	if err == nil {
		p.uncompared.Store(false)
	}
	if marks.everywhere && errors.Is(err, errRestore) {
		p.database.note("", err)
		p.useUncompared()
		return nil
	}
	return err
}

// useUncompared makes calls use the states that the server has.
func (p *Popups) useUncompared() {
	if !p.uncompared.Swap(true) {
		p.cfg.Log.Warn("Redis was restarted, and the database does not answer: users are answered whose states are in Redis")
	}
}

// count reads how many events wait for the database, and the age of the oldest.
func (p *Popups) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	client := p.db.client
	asked := time.Since(p.opened)
	clock, err := p.readClock(ctx)
	if err != nil {
		return err
	}
	var commands rueidis.Commands
	for i := range p.keys {
		commands = append(commands, client.B().Xlen().Key(p.keys[i].events).Build(),
			client.B().Xrange().Key(p.keys[i].events).Start("-").End("+").Count(1).Build())
	}
	results := client.DoMulti(ctx, commands...)
	now, age, backlog := clock.UnixMilli(), int64(0), int64(0) // entry ids are times of the server's clock
	for i := range p.keys {
		n, err := results[2*i].AsInt64()
		if err != nil {
			return err
		}
		backlog += n
		first, err := results[2*i+1].AsXRange()
		if err != nil {
			return err
		}
		if len(first) > 0 {
			text, _, _ := strings.Cut(first[0].ID, "-")
			born, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return fmt.Errorf("parse the id of an event: %w", err)
			}
			age = max(age, now-born)
		}
	}
	p.oldest.Store(int64(asked) - age*int64(time.Millisecond))
	p.counters.backlog.Store(backlog)
	return nil
}

// readClock returns the time of the server.
func (p *Popups) readClock(ctx context.Context) (time.Time, error) {
	sent := time.Now()
	clock, err := p.db.client.Do(ctx, p.db.client.B().Time().Build()).AsIntSlice()
	if err != nil || len(clock) != 2 {
		return time.Time{}, cmp.Or(err, errors.New("read the time of the server"))
	}
	now := time.Unix(clock[0], clock[1]*1000)
	if p.cfg.Clock != nil {
		p.cfg.Clock.Sample(sent, time.Now(), now)
		p.cfg.Clock.Report(p.cfg.Log)
	}
	return now, nil
}

// oldestAge returns an upper bound of the age of the events that wait.
func (p *Popups) oldestAge() time.Duration {
	return time.Since(p.opened) - time.Duration(p.oldest.Load())
}

// marks says which shards have a mark.
type marks struct {
	whole      bool // all, the wanted one
	everywhere bool // all, some one: no shard has lost its states
	somewhere  bool // at least one
}

// marked reads the marks of all shards.
func (p *Popups) marked(ctx context.Context, want string) (marks, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.cfg.commandTimeout)
	defer cancel()
	client := p.db.client
	var gets rueidis.Commands
	for i := range p.keys {
		gets = append(gets, client.B().Get().Key(p.keys[i].ready).Build())
	}
	found := marks{whole: true, everywhere: true}
	for _, result := range client.DoMulti(ctx, gets...) {
		mark, err := result.ToString()
		if err != nil && !rueidis.IsRedisNil(err) {
			return marks{}, p.db.wrap("get", err)
		}
		found.whole = found.whole && mark == want
		found.everywhere = found.everywhere && mark != ""
		found.somewhere = found.somewhere || mark != ""
	}
	return found, nil
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
