package query

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/queue"
)

// Shared is a cache that replicas share. Its functions may be called concurrently and return
// within about a second.
type Shared struct {
	// Get returns the value of key and whether there is one.
	Get func(ctx context.Context, key string) ([]byte, bool, error)
	// Put sets the value of key for at most ttl.
	Put func(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Claim sets key to owner for ttl unless it is set, and reports whether it did.
	Claim func(ctx context.Context, key, owner string, ttl time.Duration) (bool, error)
	// Hold sets key's ttl if it is owner's, and reports whether it is.
	Hold func(ctx context.Context, key, owner string, ttl time.Duration) (bool, error)
	// Release removes key if it is owner's.
	Release func(ctx context.Context, key, owner string) error
}

// A claim lasts claimLease. Its owner renews it every claimHold while it executes the
// statement. If the owner dies, the others wait until the claim expires.
const (
	claimLease = 3 * time.Second
	claimHold  = claimLease / 3
)

// Pauses between two lookups of an answer that another replica fetches.
const (
	lookFirst = 2 * time.Millisecond
	lookLast  = 50 * time.Millisecond
)

// fetch returns a fresh answer from the shared cache, if there is one, or from the database.
// One replica at a time uses the database.
func (q *Query) fetch(ctx context.Context, name string, args []string) (*Answer, error) {
	if q.cfg.Shared == nil || q.cfg.TTL == 0 {
		return q.execute(ctx, args)
	}
	logins, database := q.userNow(), q.cfg.Database()
	if database == "" {
		return q.execute(ctx, args)
	}
	key, owner := sharedKey(&q.cfg, database, name), rand.Text()
	for {
		a, err := q.look(ctx, key, name)
		if a != nil {
			return a, nil
		}
		claimed := false
		if err == nil {
			claimed, err = q.cfg.Shared.Claim(ctx, key+claimSuffix, owner, claimLease)
		}
		if claimed {
			return q.fetchClaimed(ctx, logins, key, owner, name, args)
		}
		if err == nil {
			a, err = q.await(ctx, key, name)
		}
		if err != nil {
			return q.fetchAlone(ctx, args, err)
		}
		if a != nil {
			return a, nil
		}
		// The owner has failed or died: claim it again.
	}
}

// claimSuffix turns an answer's key into the key of its claim.
const claimSuffix = ":claim"

// fetchClaimed uses the database, and holds the claim until the others can read the answer.
func (q *Query) fetchClaimed(ctx context.Context, logins uint64, key, owner, name string, args []string) (*Answer, error) {
	holding, stop := context.WithCancel(ctx)
	var holder sync.WaitGroup
	holder.Go(func() { q.hold(holding, key, owner) })
	defer func() {
		stop()
		holder.Wait()
		if err := q.cfg.Shared.Release(context.WithoutCancel(ctx), key+claimSuffix, owner); err != nil {
			q.sharedFailed(err)
		}
	}()
	// Another replica may have fetched it between the lookup and the claim.
	a, err := q.look(ctx, key, name)
	if err != nil {
		return q.fetchAlone(ctx, args, err)
	}
	if a != nil {
		return a, nil
	}
	if a, err = q.execute(ctx, args); err != nil {
		return nil, err
	}
	if q.userNow() != logins {
		return a, nil // the key is the last user's
	}
	if err := q.cfg.Shared.Put(ctx, key, encodeAnswer(name, a), q.cfg.TTL+q.cfg.Stale); err != nil {
		q.sharedFailed(err)
	}
	return a, nil
}

// hold renews a claim until ctx ends. If the shared cache loses the claim, there may be a
// second execution.
func (q *Query) hold(ctx context.Context, key, owner string) {
	for range queue.Ticks(ctx, claimHold) {
		if _, err := q.cfg.Shared.Hold(ctx, key+claimSuffix, owner, claimLease); err != nil && ctx.Err() == nil {
			q.sharedFailed(err)
		}
	}
}

// fetchAlone uses the database after an error of the shared cache.
func (q *Query) fetchAlone(ctx context.Context, args []string, err error) (*Answer, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	q.sharedFailed(err)
	return q.execute(ctx, args)
}

func (q *Query) sharedFailed(err error) {
	q.counters.sharedErrors.Add(1)
	if unlogged, due := q.sharedLog.Error(time.Now()); due {
		q.cfg.Log.Warn("the shared cache cannot be used; continuing without it", "query", q.cfg.Name, "error", err, "unlogged", unlogged)
	}
}

// look returns a fresh answer of the shared cache, or nil.
func (q *Query) look(ctx context.Context, key, name string) (*Answer, error) {
	value, found, err := q.cfg.Shared.Get(ctx, key)
	if err != nil || !found {
		return nil, err
	}
	a, err := decodeAnswer(name, value)
	if err != nil || time.Since(a.CameAt) >= q.cfg.TTL {
		return nil, nil // of another version or name: not found
	}
	if ahead := time.Until(a.CameAt); ahead > 0 { // the clock of the other replica
		a.ReadAt, a.CameAt = a.ReadAt.Add(-ahead), a.CameAt.Add(-ahead)
	}
	q.counters.sharedHits.Add(1)
	return a, nil
}

// await waits for the answer that another replica fetches. It returns nil if the claim
// disappears without an answer.
func (q *Query) await(ctx context.Context, key, name string) (*Answer, error) {
	for pause := lookFirst; ; pause = min(2*pause, lookLast) {
		if queue.Sleep(ctx, pause); ctx.Err() != nil {
			return nil, ctx.Err()
		}
		a, err := q.look(ctx, key, name)
		if a != nil || err != nil {
			return a, err
		}
		_, held, err := q.cfg.Shared.Get(ctx, key+claimSuffix)
		if err != nil || !held {
			// The answer may have arrived between the two lookups.
			a, lookErr := q.look(ctx, key, name)
			if a != nil || lookErr != nil {
				return a, lookErr
			}
			return nil, err
		}
	}
}

// shareKey returns the part of a query's keys that depends on database, path, statement, parameters, limit and formats,
// because different servers may use one Redis.
func shareKey(cfg *Config, database string) string {
	h := sha256.New()
	write := func(text string) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(text))) // neither fails
		_, _ = h.Write([]byte(text))
	}
	for _, text := range []string{database, cfg.Name, cfg.SQL, fmt.Sprint(cfg.Limit)} {
		write(text)
	}
	for _, p := range cfg.Params {
		write(p.Name)
		if p.ListMax > 0 {
			write(string(p.Type) + "[]")
		} else {
			write(string(p.Type))
		}
	}
	if cfg.RFC3339 {
		write("rfc3339")
	}
	if cfg.NumbersAsText {
		write("numbers as text")
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// sharedKey returns the key of an answer.
func sharedKey(cfg *Config, database, name string) string {
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], xxhash.Sum64String(name))
	return cfg.Prefix + ":query:{" + shareKey(cfg, database) + hex.EncodeToString(sum[:]) + "}"
}

// answerVersion is the first byte of an encoded answer.
const answerVersion = 1

// encodeAnswer encodes version, ReadAt, CameAt, rows, the whole name (two names may have the
// same hash) and data.
func encodeAnswer(name string, a *Answer) []byte {
	b := make([]byte, 0, 1+8+8+2*binary.MaxVarintLen64+len(name)+len(a.Data))
	b = append(b, answerVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(a.ReadAt.UnixNano()))
	b = binary.BigEndian.AppendUint64(b, uint64(a.CameAt.UnixNano()))
	b = binary.AppendUvarint(b, uint64(a.Rows))
	b = binary.AppendUvarint(b, uint64(len(name)))
	b = append(b, name...)
	return append(b, a.Data...)
}

func decodeAnswer(name string, b []byte) (*Answer, error) {
	if len(b) < 17 || b[0] != answerVersion {
		return nil, fmt.Errorf("decode a shared answer of %d bytes: another version", len(b))
	}
	readAt := time.Unix(0, int64(binary.BigEndian.Uint64(b[1:])))
	cameAt := time.Unix(0, int64(binary.BigEndian.Uint64(b[9:])))
	b = b[17:]
	rows, n := binary.Uvarint(b)
	if n <= 0 || rows > 1<<40 {
		return nil, errors.New("decode a shared answer: truncated")
	}
	b = b[n:]
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) || string(b[n:n+int(length)]) != name {
		return nil, errors.New("decode a shared answer: it belongs to other arguments")
	}
	return newAnswer(b[n+int(length):], int(rows), readAt, cameAt, FromShared), nil
}
