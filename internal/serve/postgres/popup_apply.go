package postgres

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/database"
	"spillway/internal/serve/popup"
)

// pinCommit makes the commit durable, because the spool or Redis forgets its events after it.
const pinCommit = "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE " +
	"current_setting('synchronous_commit') END, true)"

// writeSomething makes the transaction write to the log, which waits for a standby then.
const writeSomething = "SELECT pg_logical_emit_message(true, 'spillway', '')"

// insertEvents stores events; packed is what packedKind returns.
//
//go:embed sql/insert_events.sql
var insertEvents string

// upsertStates keeps the newest event of each user and placement.
//
//go:embed sql/upsert_states.sql
var upsertStates string

// attemptsMax is the number of attempts of a transaction that conflicts with others.
const attemptsMax = 5

// Apply stores events. Each event counts once, however often it is applied, and the newest
// event decides a user's state, whatever the order. More than popup.ApplyMax events take
// several transactions. After an error some of the events may be stored: apply all of them
// again.
//
// Each transaction is one round trip. The commit is durable even if the server's default
// is synchronous_commit = off. It waits for a synchronous standby until ctx ends, which
// closes the connection: ctx should end only when the process stops. Events that are stored
// already may not have reached the standby. Their transaction waits for it too, because the
// log records at least the locks on the users' states, or a message. Without the lock that this
// process took, nothing is stored.
func (p *Popups) Apply(ctx context.Context, events []popup.Event) error {
	return popup.InTransactions(events, func(events []popup.Event) error { return p.apply(ctx, events) })
}

func (p *Popups) apply(ctx context.Context, events []popup.Event) error {
	timeout := strconv.FormatInt(max(1, p.db.bounds.StatementTimeout.Milliseconds()), 10)
	newest := popup.Newest(events)
	e, s := newEventArrays(popup.Distinct(events)), newEventArrays(newest)
	slot := binary.BigEndian.AppendUint16(nil, uint16(p.slot))
	steps := []step{
		unprepared("BEGIN"),
		unprepared(pinCommit + ", set_config('statement_timeout', '" + timeout + "', true)"),
	}
	needed := p.fence.Load()
	if needed != nil {
		steps = append(steps, unprepared(needed.check, needed.token[:]))
	}
	steps = append(steps,
		unprepared(insertEvents, e.ids, e.users, e.placements, e.sequences, e.packed, e.campaigns, e.shown, e.at, e.next, slot),
		unprepared(upsertStates, s.ids, s.users, s.placements, s.sequences, s.kinds, s.campaigns, s.at, s.next, encodeStates(newest)),
	)
	if len(newest) == 0 {
		steps = append(steps, unprepared(writeSomething))
	}
	var err error
	for range attemptsMax {
		err = p.applyOnce(ctx, steps)
		var pgErr *pgconn.PgError
		switch {
		case err == nil || !errors.As(err, &pgErr):
			return err
		case pgErr.Code == stateDivisionByZero && needed != nil:
			p.fenced.Store(true)
			return fmt.Errorf("%w: %w", errNotHolder, err)
		case pgErr.Code[:2] != "40": // a deadlock or a failure to serialize
			return err
		}
	}
	return err
}

// applyOnce commits steps, and tries again if the connection was dead.
func (p *Popups) applyOnce(ctx context.Context, steps []step) error {
	return p.db.again(func() (dead bool, err error) {
		pooled, err := p.db.acquireWriter(ctx)
		if err != nil {
			return false, err
		}
		defer p.db.releaseWriter(pooled)
		err = commitSteps(ctx, pooled.Conn().PgConn(), steps)
		return pooled.Conn().IsClosed() && ctx.Err() == nil, err
	})
}

// unprepared returns a statement that is not prepared, so that it works behind any pooler, with its
// arguments.
func unprepared(sql string, args ...[]byte) step { return step{&statement{sql: sql}, args, nil} }

// commitSteps runs the last statements of a transaction and COMMIT in one round trip.
func commitSteps(ctx context.Context, conn *pgconn.PgConn, steps []step) error {
	c := commit{conn: conn, guard: database.CommitGuardOf(conn)}
	steps = c.append(slices.Clip(steps), unprepared("SELECT "+finishList("")), &statement{sql: "COMMIT"})
	_, err := c.run(ctx, steps, make([]*pgconn.StatementDescription, len(steps)))
	var pgErr *pgconn.PgError
	if isDefinite(err, &pgErr) {
		_ = exec(ctx, conn, "ROLLBACK") // the first error is returned
	}
	return err
}

// eventArrays are columns of events, each as an array in binary form.
type eventArrays struct {
	ids, users, placements, sequences, kinds, packed, campaigns, shown, at, next []byte
}

func newEventArrays(events []*popup.Event) *eventArrays {
	array := func(oid uint32) []byte { return appendArrayHeader(nil, oid, len(events)) }
	a := &eventArrays{
		ids: array(pgtype.UUIDOID), users: array(pgtype.TextOID), placements: array(pgtype.TextOID), sequences: array(pgtype.Int8OID),
		kinds: array(pgtype.Int2OID), packed: array(pgtype.Int2OID), campaigns: array(pgtype.Int4OID),
		shown: array(pgtype.TimestamptzOID), at: array(pgtype.TimestamptzOID), next: array(pgtype.TimestamptzOID),
	}
	for _, e := range events {
		a.ids = appendElement(a.ids, e.ID[:])
		a.users = appendElement(a.users, []byte(e.Key.User))
		a.placements = appendElement(a.placements, []byte(e.Key.Placement))
		a.sequences = appendInt64(a.sequences, int64(e.Sequence))
		a.kinds = appendInt16(a.kinds, int16(e.Kind))
		a.packed = appendInt16(a.packed, packedKind(e))
		a.campaigns = appendInt32(a.campaigns, int32(e.Campaign))
		a.shown = appendMoment(a.shown, e.ShownAt)
		a.at = appendMoment(a.at, e.At)
		a.next = appendMoment(a.next, e.NextAt)
	}
	return a
}

// packedKind returns kind, first (8) and variant (times 16) of an event in one number: each array
// costs the server time per row.
func packedKind(e *popup.Event) int16 {
	packed := int16(e.Kind) | int16(e.Variant)<<4
	if e.First {
		packed |= 8
	}
	return packed
}

// encodeStates returns the states after events as an array.
func encodeStates(events []*popup.Event) []byte {
	states := appendArrayHeader(nil, pgtype.ByteaOID, len(events))
	for _, e := range events {
		states = appendElement(states, popup.AppendState(nil, e.State))
	}
	return states
}
