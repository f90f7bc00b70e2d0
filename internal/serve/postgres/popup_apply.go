package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/database"
	"spillway/internal/serve/popup"
)

const (
	// commitLocally is for what the server's own disk has to keep.
	commitLocally = "SELECT set_config('synchronous_commit', 'local', true)"

	// The commit must be durable, because the spool or Redis forgets its events after it.
	pinCommit = "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE " +
		"current_setting('synchronous_commit') END, true)"

	// packed is kind, first and variant, as packedKinds writes them.
	insertEvents = `WITH added AS (
	INSERT INTO popup_events (id, user_id, placement, sequence, kind, campaign_id, shown_at, at, next_at, variant, first)
	SELECT id, user_id, placement, sequence, packed & 7, campaign_id, shown_at, at, next_at, packed >> 4, packed & 8 <> 0
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::smallint[], $6::integer[], $7::timestamptz[], $8::timestamptz[], $9::timestamptz[])
		AS e(id, user_id, placement, sequence, packed, campaign_id, shown_at, at, next_at)
	ON CONFLICT (id) DO NOTHING RETURNING campaign_id, kind, variant, first, at
), hours AS (
	INSERT INTO popup_hours AS h (campaign_id, hour, variant, kind, slot, events, users)
	SELECT campaign_id, date_trunc('hour', at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', variant, kind, $10::smallint, count(*), count(*) FILTER (WHERE first)
	FROM added GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
	ON CONFLICT (campaign_id, hour, variant, kind, slot) DO UPDATE SET events = h.events + excluded.events, users = h.users + excluded.users
) INSERT INTO popup_counts AS c (campaign_id, kind, slot, events)
SELECT campaign_id, kind, $10::smallint, count(*) FROM added GROUP BY campaign_id, kind ORDER BY campaign_id, kind
ON CONFLICT (campaign_id, kind, slot) DO UPDATE SET events = c.events + excluded.events`

	upsertStates = `INSERT INTO popup_state AS s (event_id, user_id, placement, sequence, kind, campaign_id, at, next_at, state)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::smallint[], $6::integer[], $7::timestamptz[], $8::timestamptz[], $9::bytea[])
ON CONFLICT (user_id, placement) DO UPDATE SET event_id = excluded.event_id, sequence = excluded.sequence, kind = excluded.kind,
	campaign_id = excluded.campaign_id, at = excluded.at, next_at = excluded.next_at, state = excluded.state
WHERE (s.sequence, s.at, s.event_id) < (excluded.sequence, excluded.at, excluded.event_id)`

	// writeSomething makes the transaction write to the log, which waits for a standby then.
	writeSomething = "SELECT pg_logical_emit_message(true, 'spillway', '')"
)

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
// log records at least the locks on the users' states, or a message.
func (p *Popups) Apply(ctx context.Context, events []popup.Event) error {
	return popup.InTransactions(events, func(events []popup.Event) error { return p.apply(ctx, events) })
}

func (p *Popups) apply(ctx context.Context, events []popup.Event) error {
	timeout := strconv.FormatInt(max(1, p.db.bounds.StatementTimeout.Milliseconds()), 10)
	distinct, newest := popup.Distinct(events), popup.Newest(events)
	e, s := newEventArrays(distinct), newEventArrays(newest)
	e.kinds = packedKinds(distinct)
	statements := []popupStatement{
		{sql: "BEGIN"},
		{sql: pinCommit + ", set_config('statement_timeout', '" + timeout + "', true)"},
		{insertEvents, append(e.key(),
			argument{pgtype.TimestamptzArrayOID, e.shown}, argument{pgtype.TimestamptzArrayOID, e.at}, argument{pgtype.TimestamptzArrayOID, e.next},
			argument{pgtype.Int2OID, p.slot})},
		{upsertStates, append(s.key(),
			argument{pgtype.TimestamptzArrayOID, s.at}, argument{pgtype.TimestamptzArrayOID, s.next},
			argument{pgtype.ByteaArrayOID, encodedStates(newest)})},
	}
	if len(newest) == 0 {
		statements = append(statements, popupStatement{sql: writeSomething})
	}
	var err error
	for range attemptsMax {
		err = p.applyOnce(ctx, statements)
		var pgErr *pgconn.PgError
		if err == nil || !errors.As(err, &pgErr) || pgErr.Code[:2] != "40" { // a deadlock or a failure to serialize
			return err
		}
	}
	return err
}

// applyOnce commits statements, and tries again if the connection was dead.
func (p *Popups) applyOnce(ctx context.Context, statements []popupStatement) error {
	once := func() (dead bool, err error) {
		pooled, err := p.db.acquireWriter(ctx)
		if err != nil {
			return false, err
		}
		defer p.db.releaseWriter(pooled)
		err = commitStatements(ctx, pooled.Conn(), statements)
		return pooled.Conn().IsClosed() && ctx.Err() == nil, err
	}
	dead, err := once()
	if dead && err != nil {
		p.db.pool.Reset() // after a restart the other idle connections are dead too
		_, err = once()
	}
	return err
}

// commitStatements runs the last statements of a transaction and COMMIT in one round trip.
// It prepares none of them, so it works behind any pooler.
func commitStatements(ctx context.Context, conn *pgx.Conn, statements []popupStatement) error {
	steps := make([]step, len(statements))
	for i, s := range statements {
		values, err := s.encode(conn)
		if err != nil {
			return err
		}
		steps[i] = step{&statement{sql: s.sql}, values, nil}
	}
	c := commit{conn: conn.PgConn(), guard: database.CommitGuardOf(conn.PgConn())}
	steps = c.append(steps, step{statement: &statement{sql: "SELECT " + finishList}}, &statement{sql: "COMMIT"})
	if _, err := c.run(ctx, steps, make([]*pgconn.StatementDescription, len(steps))); err != nil {
		var pgErr *pgconn.PgError
		if isDefinite(err, &pgErr) {
			_ = exec(ctx, c.conn, "ROLLBACK") // the first error is returned
		}
		return err
	}
	return nil
}

// popupStatement is a statement without rows.
type popupStatement struct {
	sql  string
	args []argument
}

// argument is a parameter of a type.
type argument struct {
	oid   uint32
	value any
}

// encode returns the arguments in binary form.
func (s popupStatement) encode(conn *pgx.Conn) ([][]byte, error) {
	values := make([][]byte, len(s.args))
	for i, a := range s.args {
		var err error
		if values[i], err = conn.TypeMap().Encode(a.oid, pgtype.BinaryFormatCode, a.value, nil); err != nil {
			return nil, fmt.Errorf("encode parameter %d: %w", i+1, err)
		}
	}
	return values, nil
}

// execTogether runs statements in one transaction and one round trip. It prepares none of
// them, so it works behind any pooler.
func execTogether(ctx context.Context, conn *pgx.Conn, statements []popupStatement) error {
	var batch pgconn.Batch // a batch without BEGIN is one transaction
	for _, s := range statements {
		values, err := s.encode(conn)
		if err != nil {
			return err
		}
		oids := make([]uint32, len(s.args))
		for i, a := range s.args {
			oids[i] = a.oid
		}
		batch.ExecParams(s.sql, values, oids, binaryFormat, nil)
	}
	return conn.PgConn().ExecBatch(ctx, &batch).Close()
}

// eventArrays holds events as the columns that a statement takes.
type eventArrays struct {
	ids               [][16]byte
	users, placements []string
	sequences         []int64
	kinds             []int16
	campaigns         []int32
	shown, at         []time.Time
	next              []*time.Time
}

func newEventArrays(events []*popup.Event) *eventArrays {
	n := len(events)
	a := &eventArrays{
		ids: make([][16]byte, 0, n), users: make([]string, 0, n), placements: make([]string, 0, n), sequences: make([]int64, 0, n),
		kinds: make([]int16, 0, n), campaigns: make([]int32, 0, n), shown: make([]time.Time, 0, n), at: make([]time.Time, 0, n),
		next: make([]*time.Time, 0, n),
	}
	for _, e := range events {
		a.ids = append(a.ids, e.ID)
		a.users = append(a.users, e.Key.User)
		a.placements = append(a.placements, e.Key.Placement)
		a.sequences = append(a.sequences, int64(e.Sequence))
		a.kinds = append(a.kinds, int16(e.Kind))
		a.campaigns = append(a.campaigns, int32(e.Campaign))
		a.shown = append(a.shown, e.ShownAt)
		a.at = append(a.at, e.At)
		a.next = append(a.next, orNull(e.NextAt))
	}
	return a
}

// packedKinds returns kind, first (8) and variant (times 16) of each event in one number: each
// array costs the server time per row.
func packedKinds(events []*popup.Event) []int16 {
	packed := make([]int16, len(events))
	for i, e := range events {
		packed[i] = int16(e.Kind) | int16(e.Variant)<<4
		if e.First {
			packed[i] |= 8
		}
	}
	return packed
}

// encodedStates returns the states after events.
func encodedStates(events []*popup.Event) [][]byte {
	states := make([][]byte, len(events))
	for i, e := range events {
		states[i] = popup.AppendState(nil, e.State)
	}
	return states
}

// key returns the first columns of both statements.
func (a *eventArrays) key() []argument {
	return []argument{
		{pgtype.UUIDArrayOID, a.ids},
		{pgtype.TextArrayOID, a.users},
		{pgtype.TextArrayOID, a.placements},
		{pgtype.Int8ArrayOID, a.sequences},
		{pgtype.Int2ArrayOID, a.kinds},
		{pgtype.Int4ArrayOID, a.campaigns},
	}
}

// orNull returns NULL for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
