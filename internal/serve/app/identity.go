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
	known  atomic.Pointer[string] // what the server said last; nil: nothing yet
	asked  time.Time              // of watch
	quiet  failureLog             // of watch
}

// shared identifies the database and its user for caches that replicas share; "" while the server
// has not said who it is. It still is the same database while it does not answer.
func (st *store) shared() string {
	if known := st.identity.known.Load(); known != nil {
		return st.url.Identity() + " " + st.url.Here() + " is " + *known
	}
	return ""
}

// identify asks the database who it is, if that is wanted and due.
func (st *store) identify(ctx context.Context, log *slog.Logger) {
	now := time.Now()
	if i := &st.identity; !i.wanted.Load() || now.Sub(i.asked) < identifyEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	known, err := st.Identity(ctx)
	if err != nil {
		if st.identity.known.Load() == nil && ctx.Err() == nil && st.identity.quiet.due(err, now) {
			log.Warn("answers are not shared through Redis, because the database does not say which one it is; redis_prefix can", "error", err)
		}
		return
	}
	st.identity.known.Store(&known)
	st.identity.asked = now
}
