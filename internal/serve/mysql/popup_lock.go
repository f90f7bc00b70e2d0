package mysql

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"

	"spillway/internal/serve/popup"
)

// popupLock is the name of the lock: names are the server's, so the database is in it.
const popupLock = "CONCAT('spillway.popup.', MD5(DATABASE()))"

// holderMax is the most bytes of a holder's name that are kept.
const holderMax = 200

// lockWait is after how many seconds the server ends a session that does not look at its
// lock any more, as it does each second: one whose connection broke without a word would
// keep the lock, from this process too.
const lockWait = 15

// errOldSession: this process's session of before has the lock still.
var errOldSession = errors.New("the server has not ended the session yet that had the lock")

// errLockLost is the error of Check when the session lives but has no lock.
var errLockLost = errors.New("the session has lost its lock")

// Lock makes this process the one that keeps the states of the database in its memory.
// holder says who it is, to the next one that tries: its error is a
// *popup.LockedError. The lock ends with the process, however that ends.
//
// It is GET_LOCK on a connection of its own, so it holds on one server only: where
// several take writes (Galera, Group Replication), all processes must name the same.
func (p *Popups) Lock(ctx context.Context, holder string) (*popup.Lock, error) {
	var token [16]byte
	_, _ = rand.Read(token[:]) // it never fails
	return popup.Hold(ctx, func(ctx context.Context, again bool) (popup.Holding, error) {
		held, err := p.takeLock(ctx, token, holder, again)
		if err != nil {
			return nil, err
		}
		return held, nil
	}, p.db.log)
}

func (p *Popups) takeLock(ctx context.Context, token [16]byte, holder string, again bool) (*heldLock, error) {
	s, err := p.db.connector.opener.Connect(ctx)
	if err != nil {
		return nil, err
	}
	held := &heldLock{&session{MySQLSession: s, prepared: make(map[string]*prepared)}}
	if err := held.take(ctx, token, holder, again); err != nil {
		held.Release()
		return nil, err
	}
	return held, nil
}

// heldLock is the lock's connection.
type heldLock struct{ se *session }

func (h *heldLock) take(ctx context.Context, token [16]byte, holder string, again bool) error {
	if err := h.se.Exec(ctx, "SET SESSION wait_timeout = "+strconv.Itoa(lockWait)); err != nil {
		return err
	}
	got, err := h.se.texts(ctx, "SELECT GET_LOCK("+popupLock+", 0)")
	if err != nil {
		return err
	}
	last, err := h.se.texts(ctx, "SELECT token, holder FROM popup_holder WHERE id = 1")
	if err != nil {
		return err
	}
	// No row is nobody else's: the server has lost the commit that wrote ours.
	other := again && len(last) > 0 && last[0][0] != string(token[:])
	switch locked := got[0][0] != "1"; {
	case other || locked && !again:
		refused := &popup.LockedError{}
		if len(last) > 0 {
			refused.Holder = last[0][1]
		}
		return refused
	case locked:
		return errOldSession
	}
	holder = holder[:min(len(holder), holderMax)]
	_, err = h.se.exec(ctx, "REPLACE INTO popup_holder (id, token, holder, since) VALUES (1, ?, ?, UTC_TIMESTAMP(3))",
		namedValues([]any{token[:], []byte(strings.ToValidUTF8(holder, "?"))}))
	return err
}

// Check implements popup.Holding.
func (h *heldLock) Check(ctx context.Context) error {
	rows, err := h.se.texts(ctx, "SELECT IS_USED_LOCK("+popupLock+") = CONNECTION_ID()")
	if err == nil && rows[0][0] != "1" {
		return errLockLost
	}
	return err
}

// Release implements popup.Holding.
func (h *heldLock) Release() { _ = h.se.Close() } // the server ends the session either way
