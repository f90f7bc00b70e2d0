package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// The statements that identify a database. Every role may run them. Some hosted services do not
// have the first function; a server's start identifies it until the next one.
const (
	selectIdentity = "SELECT (SELECT system_identifier::text FROM pg_control_system()) || '/' || oid || '/' || session_user FROM pg_database " +
		"WHERE datname = current_database()"
	selectStart = "SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), inet_server_addr(), oid, session_user) FROM pg_database " +
		"WHERE datname = current_database()"
)

// Identity returns what the server says of itself: the cluster's system identifier, which standbys
// and physical copies share, the database's oid, and the user of the session.
func (db *DB) Identity(ctx context.Context) (identity string, err error) {
	err = db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		rows, err := tableSession{conn}.Rows(ctx, selectIdentity)
		for _, state := range []string{stateInsufficientPrivilege, stateUndefinedFunction, stateFeatureNotSupported} {
			if hasState(err, state) {
				rows, err = tableSession{conn}.Rows(ctx, selectStart)
				break
			}
		}
		if err == nil {
			identity = rows[0][0]
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the identity of the database: %w", err)
	}
	return identity, nil
}

// Logins counts the changes of the user of the connections.
func (db *DB) Logins() uint64 { return db.pool.Logins() }
