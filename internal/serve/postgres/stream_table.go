package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// checkedTable is the table of the records as it was when it was checked. Each transaction
// compares a stamp of the catalog before COMMIT, and fails if the table was changed since.
type checkedTable struct {
	layout
	rows, finish, finishForget *statement
	quick, quickRow            *statement // of any number of rows, and of one; nil: the table has no quick batches
	unsafe                     []string   // for stream.Durability
}

// relation is the stream's table, or what is behind it: partitions, and what a view reads.
type relation struct {
	oid, kind, persistence, schema, name string
	partition                            bool
}

// relations yields the relations of a table, itself included.
//
//go:embed sql/relations.sql
var relations string

func (st *Stream) relations(ctx context.Context, conn *pgconn.PgConn) ([]relation, error) {
	rows, err := texts(ctx, conn, relations, st.tableName())
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", st.def.Table, err)
	}
	var all []relation
	for _, row := range rows {
		all = append(all, relation{oid: row[0], kind: row[1], persistence: row[2], partition: row[3] == "t", schema: row[4], name: row[5]})
	}
	return all, nil
}

// stampOf writes expressions of which one changes whenever one of the relations is changed. A row of
// the catalog that is written anew has another xmin. Partitions have the columns of their table.
func (st *Stream) stampOf(all []relation) []string {
	list := func(column string, of func(relation) bool) string {
		var oids []string
		for _, r := range all {
			if of(r) {
				oids = append(oids, r.oid)
			}
		}
		if len(oids) == 0 {
			return "false"
		}
		return column + " IN (" + strings.Join(oids, ", ") + ")"
	}
	every := func(relation) bool { return true }
	own := func(r relation) bool { return !r.partition }
	parts := []string{
		quoteText(st.tableName()) + "::regclass::oid",
		"ARRAY(SELECT xmin FROM pg_class WHERE " + list("oid", every) + " ORDER BY oid)",
		"ARRAY(SELECT xmin FROM pg_attribute WHERE " + list("attrelid", own) + " AND attnum > 0 ORDER BY attrelid, attnum)",
	}
	if len(st.def.Key) > 0 {
		parts = append(parts, "ARRAY(SELECT xmin FROM pg_index WHERE "+list("indrelid", own)+" ORDER BY indexrelid)")
	}
	if len(all) == 1 {
		parts = append(parts, "ARRAY(SELECT xmin FROM pg_trigger WHERE "+list("tgrelid", own)+" ORDER BY oid)")
	} else {
		parts = append(parts, "ARRAY(SELECT xmin FROM pg_rewrite WHERE "+list("ev_class", own)+" ORDER BY oid)",
			"ARRAY(SELECT inhrelid FROM pg_inherits WHERE "+list("inhparent", every)+" ORDER BY inhrelid)")
	}
	return parts
}

// The messages of casts that fail on purpose: of rows that were not inserted, and of a table that
// was changed.
const (
	rowsSkipped  = "spillway: rows skipped"
	tableChanged = "spillway: table changed"
)

// failsWith reports whether an error is that of a cast that fails on purpose.
func failsWith(err *pgconn.PgError, message string) bool {
	return err.Code == "22P02" && strings.Contains(err.Message, `"`+message)
}

// checkTable checks the table of the records. It takes the stamp first, so that no change after
// that goes unnoticed.
func (st *Stream) checkTable(ctx context.Context, conn *pgconn.PgConn) (*checkedTable, error) {
	before, err := st.relations(ctx, conn)
	if err != nil {
		return nil, err
	}
	stamp := []string{"false"}
	if len(before) > 0 { // or else the INSERT says what is missing
		stamp = st.stampOf(before)
		found, err := texts(ctx, conn, "SELECT "+strings.Join(stamp, ", "))
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", st.def.Table, err)
		}
		for i, value := range found[0] {
			stamp[i] += " = " + quoteText(value)
		}
	}
	all, err := st.relations(ctx, conn)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(all, before) {
		return nil, fmt.Errorf("%w: %s is being changed", stream.ErrTransient, st.def.Table)
	}
	columns, err := st.checkColumns(ctx, conn)
	if err != nil {
		return nil, err
	}
	t := &checkedTable{layout: columns, rows: newStatement(columns.insert(st.def), noColumns)}
	if err := st.checkStorage(ctx, conn, t, all); err != nil {
		return nil, err
	}
	if len(st.def.Key) > 0 && slices.ContainsFunc(all, func(r relation) bool { return r.kind == "v" }) {
		return nil, fmt.Errorf("%w: %s is a view, which does not tell which records its key takes for equal: name the table behind it, "+
			"or leave key out", tables.ErrUnusable, st.def.Table)
	}
	if err := st.checkPolicies(ctx, conn); err != nil {
		return nil, err
	}
	origins, err := st.readOrigins(ctx, conn, all)
	if err != nil {
		return nil, err
	}
	st.origins.Store(origins)
	if len(all) == 1 && len(st.def.Key) == 0 {
		if err := st.prepareQuick(ctx, conn, t); err != nil {
			return nil, err
		}
	}
	list := finishList(st.def.Fsync) + fmt.Sprintf(", CASE WHEN %s THEN 0 ELSE (%s || current_setting('DateStyle'))::integer END",
		strings.Join(stamp, " AND "), quoteText(tableChanged))
	t.finish = newStatement("SELECT "+list, noColumns)
	t.finishForget = newStatement("WITH gone AS (DELETE FROM spillway_batches WHERE id = ANY($1::uuid[])) SELECT "+list, noColumns)
	return t, nil
}

// checkStorage has the server plan the INSERT, and refuses tables whose rows a crash loses.
func (st *Stream) checkStorage(ctx context.Context, conn *pgconn.PgConn, t *checkedTable, all []relation) error {
	plan, err := explainInsert(ctx, conn, t.rows.sql)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "0A000" && st.def.SkippedRows == "" && len(st.def.Key) == 0 {
		return fmt.Errorf("%w: a rule of %s rewrites INSERT, so that stored records cannot be counted: drop it, or set skipped_rows: accept (%s)",
			tables.ErrUnusable, st.def.Table, pgErr.Message)
	}
	if err != nil {
		return err
	}
	for _, r := range all {
		if !r.partition && len(all) > 1 && !plan.inserts(r) {
			continue
		}
		weak, advice := "", fmt.Sprintf("run ALTER TABLE %s SET LOGGED, or set fsync: off",
			plans.TableName{Schema: r.schema, Name: r.name}.SQL(plans.Postgres))
		switch {
		case r.kind == "f":
			weak, advice = "foreign", "its server stores the rows in another transaction: have the stream write there, or set fsync: off"
		case r.persistence == "u":
			weak = "unlogged"
		case r.persistence == "t":
			weak, advice = "temporary", "use another one, or set fsync: off"
		default:
			continue
		}
		if st.def.Fsync != stream.FsyncOff {
			return fmt.Errorf("%w: %s is %s, so that a crash can lose acknowledged records: %s", tables.ErrUnusable, r.name, weak, advice)
		}
		if value := "table=" + weak; !slices.Contains(t.unsafe, value) {
			t.unsafe = append(t.unsafe, value)
		}
	}
	return nil
}

// insertPlan is the plan of an INSERT.
type insertPlan struct{ *plans.Plan }

// explainInsert has the server prepare and explain a statement, which checks the privileges.
func explainInsert(ctx context.Context, conn *pgconn.PgConn, sql string) (insertPlan, error) {
	d, err := conn.Prepare(ctx, "", sql, nil)
	if err != nil {
		return insertPlan{}, err
	}
	nulls := make([][]byte, len(d.ParamOIDs))
	result := conn.ExecParams(ctx, "EXPLAIN (VERBOSE, FORMAT JSON) "+sql, nulls, d.ParamOIDs, nil, nil).Read()
	if result.Err != nil {
		return insertPlan{}, result.Err
	}
	plan, err := plans.ReadPostgres(string(result.Rows[0][0]))
	if err != nil { // a rule leaves nothing to do
		plan = &plans.Plan{}
	}
	return insertPlan{plan}, nil
}

// inserts reports whether a relation is one that the statement inserts into.
func (p insertPlan) inserts(r relation) bool {
	var in func(nodes []plans.Node) bool
	in = func(nodes []plans.Node) bool {
		return slices.ContainsFunc(nodes, func(n plans.Node) bool {
			return n.Type == "ModifyTable" && n.Relation == r.name && n.Schema == r.schema || in(n.Nodes)
		})
	}
	return in(p.Nodes)
}

// checkPolicies refuses a table whose row-level security lets the role insert nothing, or find nothing
// by its key.
func (st *Stream) checkPolicies(ctx context.Context, conn *pgconn.PgConn) error {
	for _, p := range []struct{ command, verb, clause string }{{"a", "insert", "INSERT"}, {"r", "read the rows of a key", "SELECT"}} {
		if p.command == "r" && len(st.def.Key) == 0 {
			break
		}
		shut, err := withoutPolicy(ctx, conn, "to_regclass($1::text)", p.command, st.tableName())
		if err != nil {
			return err
		}
		if shut {
			return fmt.Errorf("%w: row-level security of %s has no policy that lets the role %s: run CREATE POLICY ... FOR %s",
				tables.ErrUnusable, st.def.Table, p.verb, p.clause)
		}
	}
	return nil
}

// withoutPolicy reports whether row-level security applies to a table and the role, and no
// permissive policy is for the command, which is a (INSERT) or r (SELECT).
func withoutPolicy(ctx context.Context, conn *pgconn.PgConn, table, command, arg string) (bool, error) {
	rows, err := texts(ctx, conn, fmt.Sprintf("SELECT count(*) FROM pg_class c WHERE c.oid = %s AND row_security_active(c.oid) "+
		"AND NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd IN ('*', '%s') AND "+
		"(p.polroles = '{0}' OR EXISTS (SELECT FROM unnest(p.polroles) AS role WHERE pg_has_role(role, 'USAGE'))))", table, command), arg)
	if err != nil {
		return false, fmt.Errorf("look up row-level security: %w", err)
	}
	return rows[0][0] != "0", nil
}

// insert writes the INSERT of any number of rows, as counted.
func (l layout) insert(def stream.Definition) string {
	var names, arrays, values, key []string
	for i := range l {
		t := &l[i]
		names = append(names, plans.Postgres.QuoteAlways(t.column.Name))
		arrays = append(arrays, fmt.Sprintf("$%d::%s[]", i+1, t.carrier().name))
		values = append(values, t.expression())
	}
	for _, name := range def.Key {
		i := slices.IndexFunc(l, func(t target) bool { return t.column.Name == name })
		key = append(key, l[i].keyExpression())
	}
	list := strings.Join(names, ", ")
	sent := fmt.Sprintf("unnest(%s) AS r(%s)", strings.Join(arrays, ", "), list)
	insert := fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s", plans.ParseTableName(def.Table).SQL(plans.Postgres), list,
		strings.Join(values, ", "), sent)
	return counted(def, insert, "cardinality("+arrays[0]+")", sent, key)
}

// counted returns the statement that runs an INSERT and returns how many rows were inserted. Unless
// skipped rows are accepted, it fails with rowsSkipped if one was not, and is not found under its
// key. size is how many rows were sent, and key are the values of the key of each row of sent.
func counted(def stream.Definition, insert, size, sent string, key []string) string {
	var names, values, same []string
	for i, name := range def.Key {
		name = plans.Postgres.QuoteAlways(name)
		names, values = append(names, name), append(values, key[i]+" AS "+name)
		same = append(same, fmt.Sprintf("t.%[1]s = m.%[1]s", name))
	}
	list, complete := "1", "count(*) = "+size
	if len(key) > 0 {
		list = strings.Join(names, ", ")
		insert += " ON CONFLICT (" + list + ") DO NOTHING"
		// The rows of a batch are not visible to the statement that inserts them.
		complete += fmt.Sprintf(" OR NOT EXISTS (SELECT FROM (SELECT %s FROM %s EXCEPT SELECT %s FROM stored) AS m "+
			"WHERE (SELECT true FROM %s t WHERE %s LIMIT 1) IS NULL)",
			strings.Join(values, ", "), sent, list, plans.ParseTableName(def.Table).SQL(plans.Postgres), strings.Join(same, " AND "))
	}
	if def.SkippedRows == stream.SkippedAccept {
		return insert
	}
	return fmt.Sprintf("WITH stored AS (%s RETURNING %s) SELECT CASE WHEN %s THEN count(*) ELSE (%s || count(*))::bigint END FROM stored",
		insert, list, complete, quoteText(rowsSkipped))
}

// insertedBy returns how many rows a statement of insertRows has inserted.
func insertedBy(r *pgconn.Result) int64 {
	if len(r.Rows) == 0 {
		return r.CommandTag.RowsAffected()
	}
	n, _ := strconv.ParseInt(string(r.Rows[0][0]), 10, 64) // a count of the server
	return n
}
