package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// probeStatement returns the trivial statement that Probe runs.
func probeStatement() *statement {
	return newStatement("SELECT 1", func(fields []pgconn.FieldDescription) (*columns, error) {
		return &columns{fields: fields, encode: make([]encoder, len(fields))}, nil
	})
}

// Probe runs one trivial prepared statement through the pool: the cost of a
// round trip to the database and nothing else.
func (db *DB) Probe(ctx context.Context) error {
	if err := db.query(ctx, db.probe, nil, discard{}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// discard is the sink of rows that nobody reads.
type discard struct{}

func (discard) row(*columns, [][]byte) error { return nil }
func (discard) reset()                       {}
