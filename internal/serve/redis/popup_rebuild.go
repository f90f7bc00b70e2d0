package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

const (
	rebuildLease = 30 * time.Second // after which another process may rebuild
	rebuildBatch = 500              // states that are written at once
)

// errRebuilding: another process rebuilds.
var errRebuilding = errors.New("another process restores them from the database")

// rebuild writes the states of the database that are newer than those in Redis, and sets
// the mark. survived means that some states are in Redis: the server was restarted, or is
// another one. With a StateTTL missing states are read on demand, so only existing ones are
// replaced; if none survived there is nothing to write.
func (p *Popups) rebuild(ctx context.Context, mark string, survived bool) error {
	token := rand.Text()
	switch claimed, err := p.db.Claim(ctx, p.keys.rebuild, token, rebuildLease); {
	case err != nil:
		return err
	case !claimed:
		return errRebuilding
	}
	defer func() {
		_ = p.db.Release(context.WithoutCancel(ctx), p.keys.rebuild, token) // it expires otherwise
	}()
	if found, err := p.found(ctx); err != nil || found == mark { // another process has rebuilt
		return err
	}
	start, total := time.Now(), 0
	if survived || p.cfg.StateTTL == 0 {
		var err error
		if total, err = p.restore(ctx, token); err != nil {
			return err
		}
	}
	done, err := readyScript.Exec(ctx, p.db.client, []string{p.keys.ready, p.keys.rebuild}, []string{token, mark}).AsBool()
	switch {
	case err != nil:
		return p.db.wrap("set", err)
	case !done:
		return errors.New("states were lost again during the restore")
	}
	p.rebuilds.Add(1)
	p.cfg.Log.Info("popup states restored in Redis", "states", total, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

var readyScript = rueidis.NewLuaScript(script("ready"))

// restore writes the states of the database, and returns how many there are.
func (p *Popups) restore(ctx context.Context, token string) (total int, err error) {
	r := &restorer{p: p, guard: p.keys.rebuild, onlyExisting: "0"}
	if p.cfg.StateTTL > 0 {
		r.onlyExisting = "1"
	}
	extended := time.Now()
	var failed error // of Redis
	err = p.cfg.Table.Restore(ctx, func(key popup.Key, state popup.State) error {
		total++
		if r.add(key, state); len(r.values) < rebuildBatch {
			return nil
		}
		if time.Since(extended) > rebuildLease/10 {
			_, _ = p.db.Hold(ctx, p.keys.rebuild, token, rebuildLease) // an error shows in rebuild
			extended = time.Now()
		}
		failed = r.flush(ctx)
		return failed
	})
	if err == nil {
		failed = r.flush(ctx)
	}
	if err = cmp.Or(failed, err); err != nil {
		return total, fmt.Errorf("restore popup states: %w", err)
	}
	return total, nil
}

// restorer collects states and writes them to Redis.
type restorer struct {
	p            *Popups
	guard        string // a key that must exist
	onlyExisting string // 1: only states that exist are replaced
	keys, values []string
}

func (r *restorer) add(key popup.Key, state popup.State) {
	r.keys, r.values = append(r.keys, r.p.keys.of(key)), append(r.values, string(appendValue(nil, state)))
}

var restoreScript = rueidis.NewLuaScript(script("restore"))

// flush writes the collected states.
func (r *restorer) flush(ctx context.Context) error {
	if len(r.values) == 0 {
		return nil
	}
	keys := append([]string{r.guard}, r.keys...)
	args := append([]string{strconv.FormatInt(r.p.cfg.StateTTL.Milliseconds(), 10), r.onlyExisting}, r.values...)
	r.keys, r.values = r.keys[:0], r.values[:0]
	done, err := restoreScript.Exec(ctx, r.p.db.client, keys, args).AsInt64()
	switch {
	case err != nil:
		return r.p.db.wrap("restore popup states on", err)
	case done != 1:
		return notReady("the server has lost states")
	}
	return nil
}
