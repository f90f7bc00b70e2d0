package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/plans"
	"spillway/internal/serve/stream"
)

// A quick batch is two statements in one round trip and no transaction block: its id with the settings, and the INSERT.
// The server commits both together. Only plain tables have quick batches, into which an INSERT cannot skip rows, and which have
// nothing to check at COMMIT.
//
// Instead of comparing the stamp of the catalog, the INSERT compares when the session analysed it. The server does so when the
// statement is prepared, and again before it runs if the table was changed. Then 'now' in its text, which is a constant, becomes
// the new time. If that is not the time in the last parameter, the statement fails and says the time. The batch is then stored
// with the stamp, and after that the session trusts the time.

// analysedAt is the message of a cast that fails on purpose, before the microseconds since 1970.
const analysedAt = "spillway: analysed "

// arrayHeader is how many bytes an array has before its first element.
const arrayHeader = 20

// sureUnits is how much more a quick batch that fails counts than one that is stored. doubtMost ends the quick batches of a
// session, such as behind a pooler that has several sessions of the server for it.
const (
	sureUnits = 16
	doubtMost = 4 * sureUnits
)

// trust is what a session knows of one quick INSERT.
type trust struct {
	analysed int64 // microseconds since 1970; 0: unknown
	doubt    int
}

// trusts returns what the session knows of a statement that is prepared in it.
func (p *prepared) trusts(s *statement) *trust {
	if p.trust == nil {
		p.trust = make(map[*statement]*trust)
	}
	if p.trust[s] == nil {
		p.trust[s] = new(trust)
	}
	return p.trust[s]
}

// newQuickBatch returns the first statement of quick batches.
func newQuickBatch(def stream.Definition) *statement {
	return newStatement("INSERT INTO spillway_batches (id, created_at) SELECT pinned.id, now() FROM (SELECT $3::uuid AS id, "+
		settingsList+settings(def)+", set_config('client_min_messages', 'warning', true)) AS pinned "+
		"RETURNING current_setting('synchronous_commit'), "+standbyNames, noColumns)
}

// insertQuick writes the INSERT of a quick batch: of one row, or of any number.
func (l layout) insertQuick(table string, single bool) *statement {
	var names, carriers, values []string
	for i := range l {
		t := &l[i]
		carrier := fmt.Sprintf("$%d::%s", i+1, t.carrier().name)
		if !single {
			carrier += "[]"
		}
		names = append(names, plans.Postgres.QuoteAlways(t.column.Name))
		carriers, values = append(carriers, carrier), append(values, t.expression())
	}
	list, from := strings.Join(names, ", "), "unnest("+strings.Join(carriers, ", ")+")"
	if single {
		from = "(VALUES (" + strings.Join(carriers, ", ") + "))"
	}
	compare := fmt.Sprintf("CASE WHEN 'now'::timestamptz = $%d::timestamptz THEN true "+
		"ELSE (%s || (extract(epoch FROM 'now'::timestamptz) * 1000000)::bigint)::boolean END", len(l)+1, quoteText(analysedAt))
	return newStatement(fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s AS r(%s) WHERE %s",
		plans.ParseTableName(table).SQL(plans.Postgres), list, strings.Join(values, ", "), from, list, compare), noColumns)
}

// prepareQuick gives a table its quick INSERTs if an INSERT into it stores all of its rows or fails, and nothing is left to check
// at COMMIT.
func (st *Stream) prepareQuick(ctx context.Context, conn *pgconn.PgConn, t *checkedTable) error {
	rows, err := texts(ctx, conn, "SELECT count(*) FROM pg_class c WHERE c.oid = to_regclass($1::text) "+
		"AND c.relkind = 'r' AND NOT c.relispartition AND NOT c.relhasrules "+
		"AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND (NOT t.tgisinternal OR t.tgdeferrable))", st.tableName())
	if err != nil {
		return fmt.Errorf("look up the triggers of %s: %w", st.def.Table, err)
	}
	if rows[0][0] == "1" {
		t.quick, t.quickRow = t.insertQuick(st.def.Table, false), t.insertQuick(st.def.Table, true)
	}
	return nil
}

// commitQuick stores a batch of rows alone as a quick batch. It returns false if the batch has to be stored with the stamp; then
// confirm is called after that.
func (st *Stream) commitQuick(
	ctx context.Context, conn *pgconn.PgConn, table *checkedTable, b *stream.Batch, rows []stream.Row,
) (done bool, confirm func(), err error) {
	none := func() {}
	if len(rows) == 0 || len(b.Forget) > 0 || len(b.Keyed(nil)) > 0 || table.quick == nil || st.db.unprepared.active() {
		return false, none, nil
	}
	s, args := table.quick, table.encode(rows)
	if len(rows) == 1 {
		s = table.quickRow
		for i := range args {
			args[i] = onlyElement(args[i])
		}
	}
	p, err := sessionOf(conn).prepare(ctx, conn, s)
	if err != nil {
		return true, none, st.recover(ctx, conn, table, b, -1, err)
	}
	known := p.trusts(s)
	if known.doubt > doubtMost {
		return false, none, nil
	}
	t := st.timeoutsOf(b)
	args = append(args, binary.BigEndian.AppendUint64(nil, uint64(known.analysed-postgresEpoch)))
	c := commit{conn: conn, guard: database.CommitGuardOf(conn), implicit: true}
	steps := []step{
		{st.quickBatch, [][]byte{t.texts[0], t.texts[1], b.ID[:]}, func(r *pgconn.Result) { c.readLevel(r, 0) }},
		{s, args, func(*pgconn.Result) { c.guard.ClearWarning() }},
	}
	failed, err := st.runSteps(ctx, conn, b, &c, steps)
	at := analysed(err)
	switch {
	case at == 0 && settled(err):
		known.doubt = max(0, known.doubt-1)
		return true, none, err
	case at == 0:
		return true, none, st.recover(ctx, conn, table, b, failed+1, err) // there is no BEGIN
	}
	b.Progress()
	known.doubt += sureUnits
	return false, func() { known.analysed = at }, nil
}

// analysed returns the time in an error of insertQuick; 0: the error is another one.
func analysed(err error) int64 {
	var pgErr *pgconn.PgError
	if !isDefinite(err, &pgErr) || !failsWith(pgErr, analysedAt) {
		return 0
	}
	_, text, _ := strings.Cut(pgErr.Message, analysedAt)
	at, _ := strconv.ParseInt(strings.TrimSuffix(text, `"`), 10, 64) // the server has written it
	return at
}

// onlyElement returns the element of an array of one; nil for NULL.
func onlyElement(array []byte) []byte {
	element := array[arrayHeader:]
	if binary.BigEndian.Uint32(element) == math.MaxUint32 {
		return nil
	}
	return element[4:]
}
