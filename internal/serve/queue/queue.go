// Package queue holds what the queues of the server have in common. Groups of their requests
// go to a database, to a local file or to Redis, and statements wait for a connection.
//
//   - Limits bound what waits. A request over a limit gets an *Overload, which names the
//     limit and says when to retry.
//   - A Ticket is the wait of one request for the commit or fsync of its group.
//   - Gather decides how long a group waits for more requests.
//   - A Gate limits the statements of feeds and queries on one database.
//   - Entry, Group, Mark and DeadLetter are the terms in which the spool hands records to
//     the engine that stores them. They are here, and not in package spool, because an
//     engine imports no other engine.
//   - Decoder and AppendBytes read and write the encoding of groups and payloads.
//
// # Each group once
//
// A spool that has crashed hands groups over again that the database has stored. Five words
// say how the database recognizes them:
//
//   - epoch: what one open of a spool's file has written for a name. It has a random id, so
//     that two copies of a file write in different epochs.
//   - place: the epoch of a group, and its number there: 1, 2, 3… Group has it as Epoch and
//     Number, and a Sum of its content.
//   - mark: the places and sums of the groups of one batch. A Mark is committed with the batch.
//   - judge: to compare a mark with the last number that the database has of the epoch, and
//     with the sums that it has kept. Mark.Judge does that before anything is stored.
//   - known: a group whose number the database has, or had. Known says whether it is the same
//     group, and what became of its records.
//
// For example, groups 1 to 3 of epoch e are stored in one batch, and the process is killed
// before the spool notes it. The next one hands over groups 1 to 5. The database has the number
// 3 for e: groups 1 to 3 are known and nothing is stored. The spool deletes them, and hands over
// 4 and 5, which are stored. If the file was put back to an older state meanwhile and has
// another group 3, then its sum differs: its records become dead letters in doubt. New groups
// are in the epoch f of the new process, whose numbers begin at 1.
package queue

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Errors of a request that is not stored, or of which that is not known.
var (
	// ErrOverloaded: nothing was stored, because too much waits. The error is an *Overload.
	ErrOverloaded = errors.New("too much waits for the database")
	// ErrTooLarge: nothing was stored, because the request alone exceeds a limit.
	ErrTooLarge = errors.New("the request is larger than the queue")
	// ErrUnknown: the records may be stored, now or later.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrKeyReused: nothing was stored, because the idempotency key belongs to another body.
	ErrKeyReused = errors.New("the idempotency key was used for another body")
	// ErrBadKey: nothing was stored, because the idempotency key is not valid.
	ErrBadKey = errors.New("invalid idempotency key")
	// ErrClosed: nothing was stored, because the queue is closing.
	ErrClosed = errors.New("the queue is closing")
)

// ErrNearlyFull: requests are accepted, but little room is left. Only the readiness of a part
// is said with it.
var ErrNearlyFull = errors.New("nearly full")

// Unready says why a part is not ready. Anybody may read Why, which quotes neither a database
// nor a secret. Of Cause only its kind is told; its text is for the log.
type Unready struct {
	Why   error
	Cause error // nil: Why says all
}

// Error is the text for the log.
func (u *Unready) Error() string {
	if u.Cause == nil {
		return u.Why.Error()
	}
	return fmt.Sprintf("%v: %v", u.Why, u.Cause)
}

// Unwrap returns both errors.
func (u *Unready) Unwrap() []error { return []error{u.Why, u.Cause} }

// The limits that an Overload names, as the configuration and the metrics call them.
const (
	LimitWait  = "wait_max"
	LimitRows  = "queue_rows"
	LimitBytes = "queue_bytes"
	LimitSpool = "spool_bytes"
	LimitDisk  = "disk"

	LimitTimeout = "timeout" // of a query: its predicted wait exceeds it
)

// Overload is the error of a request that is refused because too much waits.
type Overload struct {
	Limit      string        // one of the constants above
	Wait       time.Duration // the predicted wait; 0: not predicted
	RetryAfter time.Duration // when the queue is expected to have room again
}

// Error names the limit and when to retry.
func (o *Overload) Error() string {
	return fmt.Sprintf("%v (%s): retry in %v", ErrOverloaded, o.Limit, o.RetryAfter.Round(time.Millisecond))
}

// Is makes an Overload an ErrOverloaded.
func (o *Overload) Is(target error) bool { return target == ErrOverloaded }

// Limits bound a queue. A limit of 0 does not apply.
type Limits struct {
	Rows  int           // records that wait
	Bytes int           // bytes that wait
	Spool int64         // bytes of the spool's file in use
	Wait  time.Duration // predicted wait
}

// Load is what waits in a queue, or what one request adds to it.
type Load struct {
	Rows  int
	Bytes int
	Spool int64
	Wait  time.Duration // predicted, with the request
}

// Admit returns nil if a request may join what waits. It returns an error that wraps
// ErrTooLarge if the request alone exceeds a limit, and an *Overload if there is no room now.
func (l Limits) Admit(request, waiting Load) error {
	if limit := l.exceeded(Load{Rows: request.Rows, Bytes: request.Bytes, Spool: request.Spool}); limit != "" {
		return fmt.Errorf("%w: %d records, %d bytes (%s)", ErrTooLarge, request.Rows, max(int64(request.Bytes), request.Spool), limit)
	}
	limit := l.exceeded(Load{
		Rows: waiting.Rows + request.Rows, Bytes: waiting.Bytes + request.Bytes, Spool: waiting.Spool + request.Spool, Wait: request.Wait,
	})
	if limit == "" {
		return nil
	}
	return &Overload{Limit: limit, Wait: request.Wait, RetryAfter: l.retryAfter(request.Wait)}
}

// exceeded names the first limit that a load exceeds; "" if none.
func (l Limits) exceeded(load Load) string {
	switch {
	case l.Spool > 0 && load.Spool > l.Spool:
		return LimitSpool
	case l.Rows > 0 && load.Rows > l.Rows:
		return LimitRows
	case l.Bytes > 0 && load.Bytes > l.Bytes:
		return LimitBytes
	case l.Wait > 0 && load.Wait > l.Wait:
		return LimitWait
	}
	return ""
}

// RetryAfter is when to retry where the wait is not predicted.
const RetryAfter = time.Second

// retryAfter returns when the queue is expected to have room again.
func (l Limits) retryAfter(wait time.Duration) time.Duration {
	if l.Wait == 0 {
		return RetryAfter
	}
	return min(max(wait-l.Wait, wait/2, 10*time.Millisecond), time.Minute)
}

// Overloads counts refused requests by limit. Its methods may be called concurrently.
type Overloads struct {
	mu      sync.Mutex
	byLimit map[string]uint64
}

// Add counts n requests if err is an Overload.
func (o *Overloads) Add(err error, n int) {
	var overload *Overload
	if !errors.As(err, &overload) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byLimit == nil {
		o.byLimit = make(map[string]uint64)
	}
	o.byLimit[overload.Limit] += uint64(n)
}

// Read returns the counts so far, by Overload.Limit.
func (o *Overloads) Read() map[string]uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.byLimit)
}

// KeyMax is the longest idempotency key, in bytes.
const KeyMax = 255

// CheckKey returns an error that wraps ErrBadKey unless key is at most KeyMax bytes of
// UTF-8 without NUL, which every database accepts as text.
func CheckKey(key string) error {
	switch {
	case len(key) > KeyMax:
		return fmt.Errorf("%w: it is longer than %d bytes", ErrBadKey, KeyMax)
	case !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0:
		return fmt.Errorf("%w: it is not UTF-8, or contains NUL", ErrBadKey)
	}
	return nil
}

// ScopeKey returns the idempotency key that a subject's key is stored as. A subject contains
// no colon. A key that is too long then is hashed.
func ScopeKey(subject, key string) string {
	scope := "subject/" + subject + ":"
	if len(scope)+len(key) <= KeyMax {
		return scope + key
	}
	return scope + fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key)))
}
