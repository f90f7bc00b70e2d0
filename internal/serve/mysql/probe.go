package mysql

import (
	"context"
	"database/sql/driver"
	"fmt"
)

// Probe runs one trivial prepared statement through the pool: the cost of a
// round trip to the database and nothing else.
func (db *DB) Probe(ctx context.Context) error {
	s := &statement{sql: "SELECT 1", columns: func(driver.Rows) (*columns, error) { return nil, nil }}
	if err := db.query(ctx, s, nil, discard{}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// discard is the sink of rows that nobody reads.
type discard struct{}

func (discard) row(*columns, []driver.Value) error { return nil }
func (discard) reset()                             {}
