package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/tables"
)

// Behind a pooler the lock is a lease, because a session that stays in a transaction would keep a
// connection of the server, and the pooler could neither pause nor close it. The lease is the row
// of popup_holder: it belongs to the token, until the time in since. A lock of a session has a
// time in the past there. All times are the clock of the database; no clock of a process counts.
//
// The holder renews it every second, in a transaction of its own. Who takes it first takes the
// advisory lock, which the session of a direct connection has for as long as it lives. It then
// waits for the transactions that store events of the last holder, and writes its own token.
// Each of these transactions checks the token and the time, and locks the row against that until
// it has ended. So:
//
//   - Crash: another process takes the lease leaseTime after the last renewal. After Release it
//     takes it at once.
//   - Pause of the holder, or of its network: it stores nothing after another one has taken the
//     lease, and its next renewal says so. It answers requests until then, as a holder whose
//     session broke does.
//   - Pause or loss of the pooler or of the database: nobody takes the lease meanwhile. The holder
//     answers requests. Afterwards it stores nothing before it has renewed the lease.
//   - Clock: if that of the database is set forward, the lease can be taken too early. The holder
//     then learns it as after a pause. If it is set back and the holder dies before it renews the
//     lease, that lasts longer by as much.
//   - Failover to a standby that lacks the last renewals: the same as a clock that is set forward.
const leaseTime = "10 seconds"

const (
	// leaseEnd is the end of a lease that begins now.
	leaseEnd = "clock_timestamp() + interval '" + leaseTime + "'"

	// Neither waits for a standby, which may be away.
	renewLease = "UPDATE popup_holder SET since = " + leaseEnd + ofToken
	endLease   = "UPDATE popup_holder SET since = clock_timestamp()" + ofToken
	ofToken    = " FROM (SELECT set_config('synchronous_commit', 'local', true) AS set) AS waits " +
		"WHERE waits.set = 'local' AND id = 1 AND token = ?::uuid"

	// checkLease is the fence of a lease. Its lock lets the holder renew the lease, and nobody take it.
	checkLease = "WITH held AS (SELECT 1 FROM popup_holder WHERE id = 1 AND token = $1::uuid AND since > clock_timestamp() FOR KEY SHARE) " +
		"SELECT 1 / count(*) FROM held"
)

// errNotHolder means that this process cannot prove that it has the lock.
var errNotHolder = errors.New("the lock on the popup states has run out or is another process's")

// fence is a statement that fails with a division by zero unless the process with the token has the lock.
type fence struct {
	check string
	token [16]byte
}

// heldLease is the lock of a process behind a pooler.
type heldLease struct {
	p     *Popups
	token [16]byte
	lost  atomic.Bool // the last renewal failed
}

// isPooled reports whether the session of the server is not that of this connection.
func isPooled(ctx context.Context, conn *pgconn.PgConn) (bool, error) {
	rows, err := tableSession{conn}.Rows(ctx, "SELECT pg_backend_pid()::text")
	return err == nil && rows[0][0] != fmt.Sprint(conn.PID()), err
}

// takeLease takes the lease in one transaction.
func (p *Popups) takeLease(ctx context.Context, token [16]byte, holder string, again bool) (popup.Holding, error) {
	err := p.db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		s := tableSession{conn}
		err := exec(ctx, conn, "BEGIN ISOLATION LEVEL READ COMMITTED")
		var got []tables.Row
		if err == nil {
			got, err = s.Rows(ctx, fmt.Sprintf("SELECT pg_try_advisory_xact_lock(%d)::int::text", popupLock))
		}
		if err == nil {
			err = p.become(ctx, s, token, holder, again, got[0][0] == "1", leaseEnd)
		}
		if err == nil {
			return exec(ctx, conn, "COMMIT")
		}
		if !conn.IsClosed() {
			_ = exec(ctx, conn, "ROLLBACK") // the first error is returned
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	p.fence.Store(&fence{checkLease, token})
	return &heldLease{p: p, token: token}, nil
}

// become writes that this process has the lock, until a time or, as a session does, since one. got
// reports whether it has the advisory lock. If that is not allowed, it returns why.
func (p *Popups) become(ctx context.Context, s tableSession, token [16]byte, holder string, again, got bool, since string) error {
	last, err := s.Rows(ctx, selectHolder)
	if err != nil {
		return err
	}
	leased := last[0][2] == "1" && last[0][0] != string(token[:])
	if err := popup.Refusal(token, again, got && !leased, last[0][0], last[0][1]); err != nil {
		return err
	}
	_, err = s.Exec(ctx, fmt.Sprintf(upsertHolder, since), holder, token)
	return err
}

// Check implements popup.Holding: it renews the lease.
func (l *heldLease) Check(ctx context.Context) error {
	err := l.p.db.askAgain(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		changed, err := tableSession{conn}.Exec(ctx, renewLease, l.token)
		if err == nil && changed == 0 {
			err = errNotHolder
		}
		return err
	})
	l.lost.Store(err != nil)
	return err
}

// Release implements popup.Holding. It ends the lease, unless the last renewal failed: then the
// process takes it again.
func (l *heldLease) Release() {
	if l.lost.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), clientGrace)
	defer cancel()
	_ = l.p.db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error { // it runs out otherwise
		_, err := tableSession{conn}.Exec(ctx, endLease, l.token)
		return err
	})
}
