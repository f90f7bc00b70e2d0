package apptest

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
)

// SynchronousSettings are the settings of a primary for SynchronousStandby. Until that is
// called, the server waits for no standby.
func SynchronousSettings() []string {
	return append(ReplicaSettings(), "fsync=on", "full_page_writes=on", "synchronous_commit=on", "wal_keep_size=256MB", "max_connections=200")
}

// SynchronousStandby starts a streaming standby of pg for the duration of a test. From then
// on pg waits for it at each COMMIT. Stop or Kill takes the standby away, Start brings it
// back. pg must have been started with SynchronousSettings.
func (pg *PostgresServer) SynchronousStandby(t testing.TB) *PostgresServer {
	t.Helper()
	standby, err := pg.startReplica()
	if err != nil {
		t.Fatal(err)
	}
	standby.closeAfter(t)
	if err := pg.RequireStandby(t.Context(), "*"); err != nil {
		t.Fatal(err)
	}
	return standby
}

// RequireStandby sets synchronous_standby_names of a running server: "*" for any standby, ""
// for none. Sessions read it before their next statement.
func (pg *PostgresServer) RequireStandby(ctx context.Context, names string) error {
	conn, err := pgx.Connect(ctx, pg.URL("postgres"))
	if err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + names + "'", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("set synchronous_standby_names: %w", err)
		}
	}
	return nil
}

// Promote makes a standby a primary, and returns when it accepts writes.
func (pg *PostgresServer) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, pg.URL("postgres"))
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	defer conn.Close(ctx)
	var promoted bool
	if err := conn.QueryRow(ctx, "SELECT pg_promote(true, 60)").Scan(&promoted); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if !promoted {
		return fmt.Errorf("promote: the server is still a standby after a minute\n%s", pg.logTail())
	}
	return nil
}
