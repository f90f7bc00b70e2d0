package query

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Shared is a cache that replicas have in common. Its functions may be called
// concurrently and return soon: within a second or so, whatever happens.
type Shared struct {
	// Get returns the value of key and whether there is one.
	Get func(ctx context.Context, key string) ([]byte, bool, error)
	// Put sets the value of key for at most ttl.
	Put func(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Claim sets key for ttl unless it is set, and reports whether it did.
	Claim func(ctx context.Context, key string, ttl time.Duration) (bool, error)
	// Delete removes key.
	Delete func(ctx context.Context, key string) error
}

// Waits between two looks for the answer that another replica is fetching.
const (
	lookFirst = 2 * time.Millisecond
	lookLast  = 50 * time.Millisecond
)

// fetch returns a fresh answer: from the shared cache where there is one, from
// the database otherwise.
func (q *Query) fetch(ctx context.Context, name string, args []string) (*Answer, error) {
	if q.cfg.Shared == nil || q.cfg.TTL == 0 {
		return q.execute(ctx, args)
	}
	key := q.sharedKey(name)
	a, err := q.look(ctx, key, name)
	if a != nil {
		return a, nil
	}
	claimed := false
	if err == nil {
		claimed, err = q.cfg.Shared.Claim(ctx, key+":claim", q.cfg.Timeout)
	}
	switch {
	case err != nil:
	case claimed:
		defer q.release(ctx, key)
		a, err = q.look(ctx, key, name) // another replica may have fetched it between the look and the claim
	default:
		a, err = q.await(ctx, key, name)
		// Without an answer whoever claimed it has died or failed: it is our turn.
	}
	if err != nil {
		return q.alone(ctx, args, err)
	}
	if a != nil {
		return a, nil
	}
	if a, err = q.execute(ctx, args); err != nil {
		return nil, err
	}
	ttl := q.cfg.TTL + q.cfg.Stale
	if err := q.cfg.Shared.Put(ctx, key, encodeAnswer(name, a), ttl); err != nil {
		q.sharedFailed(err)
	}
	return a, nil
}

// release takes the claim back, whatever has become of it.
func (q *Query) release(ctx context.Context, key string) {
	if err := q.cfg.Shared.Delete(context.WithoutCancel(ctx), key+":claim"); err != nil {
		q.sharedFailed(err)
	}
}

// alone asks the database when the shared cache fails.
func (q *Query) alone(ctx context.Context, args []string, err error) (*Answer, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	q.sharedFailed(err)
	return q.execute(ctx, args)
}

func (q *Query) sharedFailed(err error) {
	if q.counters.sharedErrors.Add(1) == 1 {
		q.cfg.Log.Warn("the shared cache does not answer: going on without it", "query", q.cfg.Name, "error", err)
	}
}

// look returns a fresh answer of the shared cache, or nil.
func (q *Query) look(ctx context.Context, key, name string) (*Answer, error) {
	value, found, err := q.cfg.Shared.Get(ctx, key)
	if err != nil || !found {
		return nil, err
	}
	a, err := decodeAnswer(name, value)
	if err != nil || time.Since(a.ReadAt) >= q.cfg.TTL {
		return nil, nil // another version's, or another name's: as if it were not there
	}
	q.counters.sharedHits.Add(1)
	return a, nil
}

// await waits for the answer that another replica is fetching. It returns nil when
// the claim is gone without one.
func (q *Query) await(ctx context.Context, key, name string) (*Answer, error) {
	pause := lookFirst
	for {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
		}
		pause = min(2*pause, lookLast)
		a, err := q.look(ctx, key, name)
		if a != nil || err != nil {
			return a, err
		}
		_, held, err := q.cfg.Shared.Get(ctx, key+":claim")
		if err != nil || !held {
			// The answer may have come between the two looks.
			a, lookErr := q.look(ctx, key, name)
			if a != nil || lookErr != nil {
				return a, lookErr
			}
			return nil, err
		}
	}
}

// sharedKey names an answer among all that a Redis holds.
func (q *Query) sharedKey(name string) string {
	h := xxhash.New()
	_, _ = h.WriteString(q.cfg.SQL) // never fails
	var sum [16]byte
	binary.BigEndian.PutUint64(sum[:], h.Sum64())
	binary.BigEndian.PutUint64(sum[8:], xxhash.Sum64String(name))
	return "spillway:query:{" + hex.EncodeToString(sum[:]) + "}"
}

// encodeAnswer: version, time, rows, the whole name (two names may have one
// hash), data.
func encodeAnswer(name string, a *Answer) []byte {
	b := make([]byte, 0, 1+8+2*binary.MaxVarintLen64+len(name)+len(a.Data))
	b = append(b, 1)
	b = binary.BigEndian.AppendUint64(b, uint64(a.ReadAt.UnixNano()))
	b = binary.AppendUvarint(b, uint64(a.Rows))
	b = binary.AppendUvarint(b, uint64(len(name)))
	b = append(b, name...)
	return append(b, a.Data...)
}

func decodeAnswer(name string, b []byte) (*Answer, error) {
	if len(b) < 9 || b[0] != 1 {
		return nil, fmt.Errorf("an answer of %d bytes is not of this version", len(b))
	}
	readAt := time.Unix(0, int64(binary.BigEndian.Uint64(b[1:])))
	b = b[9:]
	rows, n := binary.Uvarint(b)
	if n <= 0 || rows > 1<<40 {
		return nil, fmt.Errorf("an answer is cut short")
	}
	b = b[n:]
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) || string(b[n:n+int(length)]) != name {
		return nil, fmt.Errorf("an answer is not to this question")
	}
	return newAnswer(Rows{Data: b[n+int(length):], Count: int(rows)}, readAt, FromShared), nil
}
