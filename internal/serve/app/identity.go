package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// identifyEvery is the time between two requests for the identity of a database that answers.
const identifyEvery = 10 * time.Second

// identity is what is known of the database of a store whose answers replicas share: its address
// alone could be that of another server for another replica.
type identity struct {
	wanted atomic.Bool            // a query has cache: redis
	known  atomic.Pointer[answer] // what the server said last; nil: nothing yet
	asked  time.Time              // of watch
	quiet  failureLog             // of watch
}

// answer is what the server said to the connections of one login.
type answer struct {
	text   string
	logins uint64
}

// shared identifies the database and its user for caches that replicas share; "" while the server
// has not said who it is to the present user. It still is the same database while it does not answer.
func (st *store) shared() string {
	if known := st.identity.known.Load(); known != nil && known.logins == st.Logins() {
		return st.url.Identity() + " " + st.url.Here() + " is " + known.text
	}
	return ""
}

// identify asks the database who it is, if that is wanted and due.
func (st *store) identify(ctx context.Context, log *slog.Logger) {
	now := time.Now()
	i, logins := &st.identity, st.Logins()
	changed := i.known.Load() != nil && i.known.Load().logins != logins
	if !i.wanted.Load() || now.Sub(i.asked) < identifyEvery && !changed {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	known, err := st.Identity(ctx)
	if err != nil {
		if i.known.Load() == nil && ctx.Err() == nil && i.quiet.due(err, now) {
			log.Warn("answers are not shared through Redis, because the database does not say which one it is; redis_prefix can", "error", err)
		}
		return
	}
	i.known.Store(&answer{known, logins})
	i.asked = now
}
