package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// lagQuery is one row: how many seconds the server is behind its primary. While it
// streams and has replayed all that it received, that is nothing, however long ago the
// last transaction was; else it is that transaction's age, which is the most it can
// be. NULL: it is no replica, or has replayed nothing yet.
const lagQuery = `SELECT CASE
	WHEN NOT pg_is_in_recovery() THEN NULL
	WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() AND EXISTS (SELECT FROM pg_stat_wal_receiver) THEN 0
	ELSE greatest(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)
END::double precision`

// Lag returns how far a replica is behind its primary, and false where the server
// does not tell: it is none, or speaks PostgreSQL's protocol only.
func (db *DB) Lag(ctx context.Context) (lag time.Duration, known bool, err error) {
	pooled, err := db.acquire(ctx)
	if err != nil {
		return 0, false, err
	}
	defer pooled.Release()
	var seconds *float64
	if err := pooled.QueryRow(ctx, lagQuery, pgx.QueryExecModeExec).Scan(&seconds); err != nil {
		return 0, false, fmt.Errorf("read the replica's lag: %w", err)
	}
	if seconds == nil {
		return 0, false, nil
	}
	return time.Duration(*seconds * float64(time.Second)), true, nil
}
