package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

const (
	loadsMax    = 8192 // requests that wait for a state from the database
	loadBatch   = 500  // states that one statement reads
	loadTimeout = 2 * time.Second
)

// load is a request for a state that Redis does not hold.
type load struct {
	key   popup.Key
	until time.Time // nobody waits any more
	state popup.State
	err   error
	done  chan struct{}
}

// load returns what the database has, after Redis holds it, too.
func (p *Popups) load(ctx context.Context, key popup.Key) (popup.State, error) {
	if err := p.current(); err != nil {
		return popup.State{}, err
	}
	timer := time.NewTimer(p.cfg.Timeout)
	defer timer.Stop()
	l := &load{key: key, until: time.Now().Add(p.cfg.Timeout), done: make(chan struct{})}
	l.key.User = string([]byte(key.User)) // the caller's may be a request's memory
	l.key.Placement = string([]byte(key.Placement))
	select {
	case p.loads <- l:
	default:
		return popup.State{}, fmt.Errorf("%d requests wait for states from the database, and no more may", loadsMax)
	}
	select {
	case <-l.done:
		return l.state, l.err
	case <-timer.C:
		return popup.State{}, fmt.Errorf("the database has not given a popup state within %s", p.cfg.Timeout)
	case <-ctx.Done():
		return popup.State{}, context.Cause(ctx)
	}
}

// current returns why the database cannot tell the state of a user whom Redis does not
// know. Such a state has expired, so its event is at least StateTTL old; while one that
// old may wait, what the database has may be of before. Half of the time is the margin
// for clocks.
func (p *Popups) current() error {
	if waited := p.waited(); waited > p.cfg.StateTTL/2 {
		return fmt.Errorf("popup events wait for the database for %s, more than half of the states' TTL: it may not know yet what users saw", waited.Round(time.Second))
	}
	return nil
}

// serveLoads reads states for whoever waits, all that wait at once, until ctx ends.
func (p *Popups) serveLoads(ctx context.Context) {
	for {
		var batch []*load
		select {
		case l := <-p.loads:
			batch = append(batch, l)
		case <-ctx.Done():
			p.refuseLoads()
			return
		}
		for more := true; more && len(batch) < loadBatch; {
			select {
			case l := <-p.loads:
				batch = append(batch, l)
			default:
				more = false
			}
		}
		if batch = waiting(batch, time.Now()); len(batch) == 0 {
			continue
		}
		err := p.loadAll(ctx, batch)
		for _, l := range batch {
			l.err = err
			close(l.done)
		}
	}
}

// waiting returns those of a batch that somebody waits for: a database that hangs must
// not be asked for the others one after the other.
func waiting(batch []*load, now time.Time) []*load {
	return slices.DeleteFunc(batch, func(l *load) bool { return !now.Before(l.until) })
}

// refuseLoads answers those who come too late. Calls fail by now, so that nobody
// comes behind them but who was on the way; their contexts end.
func (p *Popups) refuseLoads() {
	for {
		select {
		case l := <-p.loads:
			l.err = errNotReady
			close(l.done)
		default:
			return
		}
	}
}

func (p *Popups) loadAll(ctx context.Context, batch []*load) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	keys := make([]popup.Key, len(batch))
	for i, l := range batch {
		keys[i] = l.key
	}
	states, err := p.cfg.Table.States(ctx, keys)
	if err != nil {
		return fmt.Errorf("load popup states: %w", err)
	}
	r := p.newRestorer(false)
	for i, key := range keys {
		batch[i].state = states[i]
		r.add(key, states[i])
	}
	p.counters.loaded.Add(uint64(len(batch)))
	return r.flush(ctx, func(k *shardKeys) string { return k.ready })
}

// restorer collects states to put into Redis, by shard.
type restorer struct {
	p            *Popups
	onlyExisting bool
	calls        [popupShards]rueidis.LuaExec
	count        int
}

func (p *Popups) newRestorer(onlyExisting bool) *restorer {
	return &restorer{p: p, onlyExisting: onlyExisting}
}

func (r *restorer) add(key popup.Key, state popup.State) {
	c := &r.calls[shardOf(key.User)]
	c.Keys = append(c.Keys, r.p.keys[shardOf(key.User)].stateKey(key))
	c.Args = append(c.Args, string(appendValue(nil, state)))
	r.count++
}

// flush writes what was collected, where the key that guard names exists.
func (r *restorer) flush(ctx context.Context, guard func(*shardKeys) string) error {
	only := "0"
	if r.onlyExisting {
		only = "1"
	}
	head := []string{strconv.FormatInt(r.p.cfg.StateTTL.Milliseconds(), 10), only}
	var calls []rueidis.LuaExec
	for i, c := range r.calls {
		if len(c.Keys) > 0 {
			calls = append(calls, rueidis.LuaExec{Keys: append([]string{guard(&r.p.keys[i])}, c.Keys...), Args: append(head[:2:2], c.Args...)})
		}
	}
	r.calls, r.count = [popupShards]rueidis.LuaExec{}, 0
	for _, result := range r.p.restore.ExecMulti(ctx, r.p.db.client, calls...) {
		done, err := result.AsInt64()
		if err != nil {
			return r.p.db.wrap("restore popup states on", err)
		}
		if done != 1 {
			return fmt.Errorf("%w: the server has lost them", errNotReady)
		}
	}
	return nil
}
