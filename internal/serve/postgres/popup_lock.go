package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/popup"
)

// upsertHolder writes the holder, and a time for %s. It waits for the transactions that store
// events under a lease. Its commit must survive a crash of the server, or the lock would seem to
// have another holder. It does not wait for a standby, which may be away.
//
//go:embed sql/upsert_holder.sql
var upsertHolder string

// selectHolder has a row even if the table has none. The last column is 1 while there is a lease.
const selectHolder = "SELECT token, holder, (since > clock_timestamp())::int::text " +
	"FROM (SELECT 1 AS id) AS one LEFT JOIN popup_holder USING (id)"

// checkHolder is the fence of a session's lock. Nobody takes the lock before the transaction has ended.
const checkHolder = "WITH last AS (SELECT token FROM popup_holder WHERE id = 1 FOR KEY SHARE) " +
	"SELECT 1 / (count(*) = 0)::int FROM last WHERE token <> $1::uuid"

// checkWrites returns false on a server that accepts no writes.
const checkWrites = "SELECT NOT pg_is_in_recovery() AND NOT current_setting('default_transaction_read_only')::bool"

// errMoved means that the session's server may no longer be that of the pool.
var errMoved = errors.New("the server of the lock accepts no writes, or the connections were replaced since it was taken")

// popupLock is the number of the advisory lock. No other program should use it.
const popupLock = 0x706f7075706c

// lockSettings keep the idle transaction open, and make the server end it within about 15
// seconds if the connection breaks unnoticed. The session would otherwise keep the lock,
// from this process too.
const lockSettings = "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL tcp_keepalives_idle = 5; " +
	"SET LOCAL tcp_keepalives_interval = 5; SET LOCAL tcp_keepalives_count = 2; SET LOCAL tcp_user_timeout = '15s'"

// Lock makes this process the only one that keeps the database's popup states in memory.
// The *popup.LockedError of other processes names holder. The lock ends with the process.
//
// It is an advisory lock in an idle transaction on a connection of its own. The transaction has
// no snapshot, so VACUUM does not wait for it. Behind a pooler it is a lease.
func (p *Popups) Lock(ctx context.Context, holder string) (*popup.Lock, error) {
	return popup.Hold(ctx, func(ctx context.Context, token [16]byte, again bool) (popup.Holding, error) {
		return p.takeLock(ctx, token, holder, again)
	}, p.db.log)
}

func (p *Popups) takeLock(ctx context.Context, token [16]byte, holder string, again bool) (popup.Holding, error) {
	var pooled bool
	err := p.db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) (err error) {
		pooled, err = isPooled(ctx, conn)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case pooled:
		return p.takeLease(ctx, token, holder, again)
	}
	held, err := p.takeSession(ctx, token, holder, again)
	if err != nil {
		return nil, err
	}
	p.fence.Store(&fence{checkHolder, token})
	return held, nil
}

// takeSession takes the lock of a session.
func (p *Popups) takeSession(ctx context.Context, token [16]byte, holder string, again bool) (popup.Holding, error) {
	held, err := p.begin(ctx)
	if err != nil {
		return nil, err
	}
	var got bool
	_, err = held.conn.Exec(ctx, lockSettings, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		err = held.conn.QueryRow(ctx, fmt.Sprintf("SELECT pg_try_advisory_xact_lock(%d)", popupLock), pgx.QueryExecModeSimpleProtocol).Scan(&got)
	}
	if err == nil {
		err = p.db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
			return p.become(ctx, tableSession{conn}, token, holder, again, got, "now()")
		})
	}
	if err != nil {
		held.Release()
		return nil, err
	}
	return held, nil
}

// begin opens a transaction on a connection that it removes from the pool.
func (p *Popups) begin(ctx context.Context) (*heldLock, error) {
	var err error
	renewed := p.db.pool.Renewed()
	for range 2 { // the server may have closed the first
		pooled, noConn := p.db.acquire(ctx)
		if noConn != nil {
			return nil, noConn
		}
		held := &heldLock{p: p, conn: pooled.Hijack(), renewed: renewed}
		if _, err = held.conn.Exec(ctx, "BEGIN", pgx.QueryExecModeSimpleProtocol); err == nil {
			return held, nil
		}
		held.Release()
		p.db.pool.Reset()
	}
	return nil, err
}

// heldLock is the connection that holds the lock.
type heldLock struct {
	p       *Popups
	conn    *pgx.Conn
	renewed int64 // of the pool, before the connection was opened
}

// Check implements popup.Holding. The lock lasts as long as the transaction, but after a failover it
// is no longer that of the server with the events.
func (h *heldLock) Check(ctx context.Context) error {
	var writes bool
	err := h.conn.QueryRow(ctx, checkWrites, pgx.QueryExecModeSimpleProtocol).Scan(&writes)
	switch {
	case err != nil:
		return err
	case !writes:
		h.p.db.pool.Renew()
		return errMoved
	case h.p.fenced.Swap(false) || h.renewed != h.p.db.pool.Renewed():
		return errMoved
	}
	return nil
}

// Release implements popup.Holding.
func (h *heldLock) Release() {
	ctx, cancel := context.WithTimeout(context.Background(), clientGrace)
	defer cancel()
	_ = h.conn.Close(ctx) // the connection ends anyway
}
