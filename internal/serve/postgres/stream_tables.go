package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/stream"
)

// ownTable is a table of the adapter. Without the right to run its statement, an
// administrator does.
type ownTable struct {
	name   string
	create string
}

// batchTables are the tables that every stream needs.
var batchTables = [...]ownTable{
	{"spillway_batches", `CREATE TABLE IF NOT EXISTS spillway_batches (
	id uuid PRIMARY KEY,
	created_at timestamptz NOT NULL DEFAULT now(),
	results bytea
);
` + comment("spillway_batches")},
	{"spillway_requests", `CREATE TABLE IF NOT EXISTS spillway_requests (
	stream text NOT NULL,
	key text COLLATE "C" NOT NULL,
	fingerprint bytea NOT NULL,
	outcome bytea NOT NULL,
	expires_at timestamptz NOT NULL,
	accepted_at timestamptz NOT NULL,
	earlier text,
	PRIMARY KEY (stream, key)
);
CREATE INDEX IF NOT EXISTS spillway_requests_expires_at ON spillway_requests (expires_at);
` + comment("spillway_requests")},
}

// drainTables are the tables that streams with a spool need in addition.
var drainTables = [...]ownTable{
	{"spillway_epochs", `CREATE TABLE IF NOT EXISTS spillway_epochs (
	spool uuid NOT NULL,
	epoch uuid NOT NULL,
	stream text NOT NULL,
	last bigint NOT NULL,
	updated_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (spool, epoch)
);
` + comment("spillway_epochs")},
	{"spillway_drained", `CREATE TABLE IF NOT EXISTS spillway_drained (
	spool uuid NOT NULL,
	epoch uuid NOT NULL,
	last bigint NOT NULL,
	first bigint NOT NULL,
	sums bytea NOT NULL,
	results bytea,
	created_at timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (spool, epoch, last)
);
CREATE INDEX IF NOT EXISTS spillway_drained_created_at ON spillway_drained (created_at);
` + comment("spillway_drained")},
}

// comment writes the statement that notes the format of a table.
func comment(name string) string {
	return "COMMENT ON TABLE " + name + " IS '" + stream.TableComment + "';"
}

// tables says which of the adapter's tables are known to exist.
type tables struct {
	batches, drained atomic.Bool
	hashed           atomic.Bool // the database is not UTF-8: see storedKey
}

// forget has the tables looked for again: one of them may have been dropped.
func (t *tables) forget() {
	t.batches.Store(false)
	t.drained.Store(false)
}

// prepareTables creates the tables once; drained also those of a spool.
func (st *Stream) prepareTables(ctx context.Context, conn *pgconn.PgConn, drained bool) error {
	if !st.tables.batches.Load() {
		encoding := conn.ExecParams(ctx, "SELECT current_setting('server_encoding')", nil, nil, nil, nil).Read()
		if encoding.Err != nil {
			return encoding.Err
		}
		st.tables.hashed.Store(string(encoding.Rows[0][0]) != "UTF8")
		if err := createMissing(ctx, conn, batchTables[:]); err != nil {
			return err
		}
		if err := st.checkColumns(ctx, conn); err != nil {
			return err
		}
		st.tables.batches.Store(true)
	}
	if drained && !st.tables.drained.Load() {
		if err := createMissing(ctx, conn, drainTables[:]); err != nil {
			return err
		}
		st.tables.drained.Store(true)
	}
	return nil
}

// createMissing runs the statements of tables that are missing. A lock serializes the
// streams of one database, because concurrent CREATE IF NOT EXISTS can fail. The transaction
// waits for no standby: what is stored in the tables does. Tables of a newer format are refused.
func createMissing(ctx context.Context, conn *pgconn.PgConn, own []ownTable) error {
	var columns []string
	for _, t := range own {
		columns = append(columns, "to_regclass('"+t.name+"') IS NOT NULL", "obj_description(to_regclass('"+t.name+"'), 'pg_class')")
	}
	found := conn.ExecParams(ctx, "SELECT "+strings.Join(columns, ", "), nil, nil, nil, nil).Read()
	if found.Err != nil {
		return found.Err
	}
	for i := range own {
		if err := stream.CheckFormat(own[i].name, string(found.Rows[0][2*i+1])); err != nil {
			return fmt.Errorf("%w: %w", errColumns, err)
		}
		if string(found.Rows[0][2*i]) == "t" {
			continue
		}
		const lock = 0x7370696c6c // an advisory lock of this program
		sql := fmt.Sprintf("BEGIN; SET LOCAL synchronous_commit = local; SELECT pg_advisory_xact_lock(%d); %s COMMIT", lock, own[i].create)
		if err := exec(ctx, conn, sql); err != nil {
			_ = exec(ctx, conn, "ROLLBACK") // the first error is returned
			var pgErr *pgconn.PgError
			if errors.As(err, &pgErr) && !isTemporary(pgErr) {
				return fmt.Errorf("prepare the table %s: %w; have an administrator run: %s", own[i].name, err, strings.Join(strings.Fields(own[i].create), " "))
			}
			return fmt.Errorf("prepare the table %s: %w", own[i].name, err)
		}
	}
	return nil
}
