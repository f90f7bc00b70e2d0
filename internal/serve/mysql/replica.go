package mysql

import (
	"context"
	"time"
)

// Lag returns how far a replica is behind its source, and false where the server
// does not tell.
func (db *DB) Lag(ctx context.Context) (lag time.Duration, known bool, err error) {
	err = db.withSession(ctx, func(ctx context.Context, se *session) (err error) {
		lag, known, err = se.ReplicaLag(ctx)
		return err
	})
	return lag, known, err
}
