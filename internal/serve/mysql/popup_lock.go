package mysql

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/popup"
)

// popupLock is the name of the lock. Names are shared by all databases of a server, so it contains the database.
const popupLock = "CONCAT('spillway.popup.', MD5(DATABASE()))"

// holderMax is the maximum length of a holder's name in bytes.
const holderMax = 200

// lockWait is the number of seconds after which the server ends a session that has stopped checking its lock. A session whose connection
// broke unnoticed would otherwise keep the lock, from this process too.
const lockWait = 15

// Why a session that is alive has no lock.
var (
	errLockLost  = errors.New("the session has lost its lock")
	errMoved     = errors.New("the connections were replaced since the lock was taken")
	errNotHolder = errors.New("the lock on the popup states is another process's")
)

// Lock makes this process the only one that keeps the database's popup states in memory.
// The *popup.LockedError of other processes names holder. The lock ends with the process.
//
// It is GET_LOCK on a connection of its own and holds on one server only. If several servers accept writes (Galera, Group Replication),
// all processes must connect to the same one.
func (p *Popups) Lock(ctx context.Context, holder string) (*popup.Lock, error) {
	return popup.Hold(ctx, func(ctx context.Context, token [16]byte, again bool) (popup.Holding, error) {
		return p.takeLock(ctx, token, holder, again)
	}, p.db.log)
}

func (p *Popups) takeLock(ctx context.Context, token [16]byte, holder string, again bool) (popup.Holding, error) {
	began := time.Now()
	s, err := p.db.connector.opener.Connect(ctx)
	if err != nil {
		return nil, err
	}
	held := &heldLock{p, newSession(s)}
	held.se.began, held.se.renewed = began, &p.db.connector.renewed
	if err := held.take(ctx, token, holder, again); err != nil {
		held.Release()
		return nil, err
	}
	p.token.Store(&token)
	return held, nil
}

// checkHolder returns an error if another process has the lock. None takes it before the transaction has ended.
func (p *Popups) checkHolder(ctx context.Context, se *session) error {
	token := p.token.Load()
	if token == nil {
		return nil
	}
	last, err := se.texts(ctx, "SELECT token FROM popup_holder WHERE id = 1 LOCK IN SHARE MODE")
	if err == nil && len(last) > 0 && last[0][0] != string(token[:]) {
		p.fenced.Store(true)
		return errNotHolder
	}
	return err
}

// heldLock is the connection that holds the lock.
type heldLock struct {
	p  *Popups
	se *session
}

func (h *heldLock) take(ctx context.Context, token [16]byte, holder string, again bool) error {
	if err := h.se.Exec(ctx, "SET SESSION wait_timeout = "+strconv.Itoa(lockWait)); err != nil {
		return err
	}
	got, err := h.se.texts(ctx, "SELECT GET_LOCK("+popupLock+", 0)")
	if err != nil {
		return err
	}
	last, err := h.se.texts(ctx, "SELECT token, holder FROM (SELECT 1 AS id) AS one LEFT JOIN popup_holder USING (id)")
	if err == nil {
		err = popup.Refusal(token, again, got[0][0] == "1", last[0][0], last[0][1])
	}
	if err != nil {
		return err
	}
	holder = holder[:min(len(holder), holderMax)]
	_, err = h.se.exec(ctx, "INSERT INTO popup_holder (id, token, holder, since) VALUES (1, ?, ?, UTC_TIMESTAMP(3)) "+
		"ON DUPLICATE KEY UPDATE token = VALUES(token), holder = VALUES(holder), since = VALUES(since)",
		namedValues([]any{token[:], []byte(strings.ToValidUTF8(holder, "?"))}))
	return err
}

// Check implements popup.Holding. After a failover the lock is no longer that of the server with the events.
func (h *heldLock) Check(ctx context.Context) error {
	rows, err := h.se.texts(ctx, "SELECT IS_USED_LOCK("+popupLock+") = CONNECTION_ID(), @@global.read_only")
	if err == nil && rows[0][0] != "1" {
		return errLockLost
	}
	if err == nil && rows[0][1] != "0" && rows[0][1] != "OFF" { // which may not concern this user
		err = h.se.Exec(ctx, "UPDATE popup_holder SET since = since WHERE id = 0") // there is no such row
	}
	if isReadOnly(err) {
		h.p.db.connector.renew(h.se)
	}
	if err == nil && (h.p.fenced.Swap(false) || h.se.outdated()) {
		return errMoved
	}
	return err
}

// Release implements popup.Holding.
func (h *heldLock) Release() { _ = h.se.Close() } // the server ends the session anyway
