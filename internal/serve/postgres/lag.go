package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"spillway/internal/serve/standby"
)

// The statements that read positions, as a number of bytes of the write-ahead log. They need
// no privilege. NULL means that the server has the other role.
const (
	writtenQuery  = `SELECT CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint END`
	replayedQuery = `SELECT CASE WHEN pg_is_in_recovery() THEN (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint END`
)

// walName is the name of the write-ahead log in a position.
const walName = "wal"

// Written implements standby.Primary. A transaction with synchronous_commit = off can be
// visible up to three times wal_writer_delay before the position includes it.
func (db *DB) Written(ctx context.Context) (standby.Position, error) {
	return db.position(ctx, writtenQuery, "the server is a standby, not a primary")
}

// Replayed implements standby.Replica.
func (db *DB) Replayed(ctx context.Context) (standby.Position, error) {
	return db.position(ctx, replayedQuery, "the server is no standby with physical replication")
}

func (db *DB) position(ctx context.Context, sql, otherRole string) (standby.Position, error) {
	pooled, err := db.acquire(ctx)
	if err != nil {
		return standby.Position{}, fmt.Errorf("read the position in the log: %w", err)
	}
	defer pooled.Release()
	var bytes *int64
	if err := pooled.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&bytes); err != nil {
		return standby.Position{}, fmt.Errorf("read the position in the log: %w", err)
	}
	if bytes == nil {
		return standby.Position{}, errors.New("read the position in the log: " + otherRole)
	}
	return standby.Position{Logs: map[string]uint64{walName: uint64(*bytes)}}, nil
}
