package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// stamp is what the stream's table was when it was checked, with the tables behind a view.
type stamp struct {
	watched []watched // none: there is no table
	text    string    // their results
}

// watched is a statement whose result changes with a table.
type watched struct {
	sql  string
	args []any
}

// read returns the result of the statement.
func (w watched) read(ctx context.Context, se *session) (string, error) {
	rows, err := se.texts(ctx, w.sql, w.args...)
	return textOf(rows), err
}

// textOf returns the texts of rows one after the other.
func textOf(rows [][]string) string {
	var text strings.Builder
	for _, row := range rows {
		for _, value := range row {
			text.WriteString(withoutCounter(value))
			text.WriteByte(0)
		}
	}
	return text.String()
}

// withoutCounter removes the counter from the text of CREATE TABLE, which changes with each row.
func withoutCounter(create string) string {
	const counter = " AUTO_INCREMENT="
	if i := strings.LastIndex(create, counter); i >= 0 {
		return create[:i] + strings.TrimLeft(create[i+len(counter):], "0123456789")
	}
	return create
}

// readStamp returns what the stream's table is, and what those behind it are, and checks their engines.
func (st *Stream) readStamp(ctx context.Context, se *session) (*stamp, error) {
	s := &stamp{}
	names := []plans.TableName{plans.ParseTableName(st.def.Table)}
	for n := 0; n < len(names); n++ {
		kind, err := st.addTable(ctx, se, s, names[n])
		if err != nil || kind == "" { // the database names it when the INSERT is prepared
			return &stamp{}, err
		}
		if kind == "VIEW" {
			behind, err := se.tablesOfView(ctx, names[n])
			if err != nil {
				return nil, err
			}
			names = append(names, slices.DeleteFunc(behind, func(t plans.TableName) bool { return slices.Contains(names, t) })...)
		}
	}
	return s, nil
}

// addTable adds a table to a stamp, and returns its type; "" if it does not exist. It checks the table
// behind that, so that no change after the check goes unnoticed. A user with rights on single columns
// may not run SHOW CREATE TABLE, and sees less. TEMPORARY tables need fsync: off.
func (st *Stream) addTable(ctx context.Context, se *session, s *stamp, name plans.TableName) (kind string, err error) {
	w := watched{sql: "SHOW CREATE TABLE " + name.SQL(plans.MySQL)}
	text, unread := w.read(ctx, se)
	if isRefusal(unread, numTableDenied) {
		w = watched{
			"SELECT t.engine, c.column_name, c.column_type, c.collation_name, c.is_nullable, c.extra FROM information_schema.columns c " +
				"JOIN information_schema.tables t USING (table_schema, table_name) WHERE " + inDatabase + " ORDER BY c.ordinal_position",
			[]any{name.Schema, name.Name},
		}
		text, unread = w.read(ctx, se)
	}
	kind, err = se.checkEngine(ctx, name)
	switch {
	case err != nil || kind == "":
		return "", err
	case unread != nil:
		return "", fmt.Errorf("read what %s is: %w", name, unread)
	case strings.Contains(text, "\x00CREATE TEMPORARY") && st.def.Fsync != stream.FsyncOff:
		return "", fmt.Errorf("%w: %s is a TEMPORARY table, which ends with its connection; use another table, or set fsync: off",
			tables.ErrUnusable, name.SQL(plans.MySQL))
	}
	s.watched, s.text = append(s.watched, w), s.text+text
	return kind, nil
}

// tablesOfView returns the tables and views that a view reads.
func (se *session) tablesOfView(ctx context.Context, view plans.TableName) (all []plans.TableName, err error) {
	rows, err := se.texts(ctx, "SELECT view_definition FROM information_schema.views WHERE "+inDatabase, view.Schema, view.Name)
	var behind map[string]plans.TableName
	if err == nil && len(rows) == 1 {
		behind, err = se.existing(ctx, plans.ReadRewritten(rows[0][0]).Tables())
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up the tables of the view %s: %w", view, err)
	case len(behind) == 0:
		return nil, fmt.Errorf("%w: the tables behind the view %s are not visible to this user: GRANT SHOW VIEW on the view, and SELECT on them",
			tables.ErrUnusable, view)
	}
	return slices.SortedFunc(maps.Values(behind), func(a, b plans.TableName) int { return cmp.Compare(a.String(), b.String()) }), nil
}

// Begin implements streamtables.Session. It fails if the table is no longer what it was when the batch's
// stamp was taken: rows of a table without transactions could not be taken back.
func (w *batchWriter) Begin(ctx context.Context) error {
	const begin = "START TRANSACTION"
	if len(w.b.Requests) == 0 {
		return w.session.Exec(ctx, begin)
	}
	now, err := w.lockTable(ctx, begin)
	if err == nil && now != w.table.text {
		err = fmt.Errorf("%w: %s has changed", stream.ErrTransient, w.st.def.Table)
	}
	if err != nil {
		w.st.checked.Store(nil) // the next attempt checks the table
		return err
	}
	return w.learn(ctx)
}

// lockTable begins a transaction, locks the table as an INSERT does, and returns what the stamp's
// statements yield now. MariaDB does it in one round trip.
func (w *batchWriter) lockTable(ctx context.Context, begin string) (now string, err error) {
	lock := w.st.lock()
	if first := w.table.watched[0]; w.Server.MariaDB && len(w.table.watched) == 1 && len(first.args) == 0 {
		rows, err := w.Query(ctx, "BEGIN NOT ATOMIC "+begin+"; "+lock+"; "+first.sql+"; END")
		return textOf(rows), err
	}
	if err = w.session.Exec(ctx, begin); err == nil {
		_, err = w.exec(ctx, lock, nil)
	}
	for _, watched := range w.table.watched {
		text := ""
		if err == nil {
			text, err = watched.read(ctx, w.session)
		}
		now += text
	}
	return now, err
}

// errUncounted is the error of a statement that has not stored all of its rows. Row by row it can be told which.
var errUncounted = errors.New("rows are missing behind an INSERT")

// countRows compares how many rows an INSERT has stored. A proxy may have made another statement of it.
func (w *batchWriter) countRows(rows []stream.Row, stored int64) (*stream.RowRefusal, error) {
	missing := len(rows) - int(stored)
	switch {
	case missing == 0:
		return nil, nil
	case w.st.def.SkippedRows == stream.SkippedAccept:
		w.b.Skipped += max(0, missing)
		w.noteFound(rows)
		return nil, nil
	case len(rows) > 1:
		return nil, errUncounted
	}
	return new(stream.SkippedRow(rows[0].Row, w.b.Mark != nil)), nil
}

// findMax is the number of keys that one statement looks up: each is compared with each.
const findMax = 32

// findRows returns those of the rows whose keys the table has, the others, and apart from these the ones that repeat the key of another.
func (w *batchWriter) findRows(ctx context.Context, rows []stream.Row) (found, missing, repeated []stream.Row, err error) {
	keys, has := make([]string, 0, len(rows)), make(map[string]bool)
	for part := range slices.Chunk(rows, findMax) {
		for _, r := range part {
			keys = append(keys, fmt.Sprintf("%#v", w.table.key(r)))
		}
		exist, err := w.lookUp(ctx, part)
		w.b.Progress()
		if err != nil {
			return nil, nil, nil, fmt.Errorf("look up rows by their keys: %w", err)
		}
		for _, i := range exist {
			has[keys[len(keys)-len(part)+i]] = true
		}
	}
	seen := make(map[string]bool, len(rows))
	for i, r := range rows {
		switch key := keys[i]; {
		case has[key]:
			found = append(found, r)
		case seen[key]:
			repeated = append(repeated, r)
		default:
			missing, seen[key] = append(missing, r), true
		}
	}
	return found, missing, repeated, nil
}

// lookUp returns which of the rows have a key that the table has. No key has a character that its column
// does not have; the server refuses to compare them.
func (w *batchWriter) lookUp(ctx context.Context, rows []stream.Row) (exist []int, err error) {
	var args []any
	for _, r := range rows {
		args = append(args, w.table.key(r)...)
	}
	found, err := w.texts(ctx, w.st.find(w.table.held, len(rows)), append(args, args...)...)
	if isRefusal(err, numCollationMix, numCollationMix2, numCollationMix3, numCannotConvert, numInvalidCharacters) {
		err = nil
		for i := 0; i < len(rows) && len(rows) > 1 && err == nil; i++ {
			var one []int
			if one, err = w.lookUp(ctx, rows[i:i+1]); len(one) > 0 {
				exist = append(exist, i)
			}
		}
		return exist, err
	}
	for _, row := range found {
		i, errNumber := strconv.Atoi(row[0])
		exist, err = append(exist, i), errors.Join(err, errNumber)
	}
	return exist, err
}

// key returns the values of a row's key.
func (t *checkedTable) key(r stream.Row) (values []any) {
	held := t.held
	for i := range held {
		if held[i].isKey {
			value, _ := held[i].value(r, i) // exact, or it would not have been inserted
			values = append(values, value)
		}
	}
	return values
}

// find returns the statement that returns which of n keys, sent twice, the table has: the number of each. It reads what other transactions
// have committed meanwhile, as INSERT does. The server compares decimals and times with texts by other rules.
func (st *Stream) find(held []heldColumn, n int) string {
	var parts []string
	for _, c := range held {
		if !c.isKey {
			continue
		}
		value := "?"
		switch c.kind {
		case "decimal":
			value = fmt.Sprintf("CAST(? AS DECIMAL(%d,%d))", decimalMax, scaleMax)
		case "datetime", "timestamp":
			value = "CAST(? AS DATETIME(6))"
		}
		parts = append(parts, plans.MySQL.QuoteAlways(c.Name)+" = "+value)
	}
	one := strings.Join(parts, " AND ")
	var which strings.Builder
	for i := range n {
		fmt.Fprintf(&which, " WHEN %s THEN %d", one, i)
	}
	return fmt.Sprintf("SELECT CASE%s END FROM %s WHERE %s LOCK IN SHARE MODE", which.String(),
		plans.ParseTableName(st.def.Table).SQL(plans.MySQL), one+strings.Repeat(" OR "+one, n-1))
}

// unsafeSettings returns the settings of the server with which a crash can lose commits.
func (se *session) unsafeSettings(ctx context.Context) (unsafe []string, err error) {
	settings := make(map[string]string)
	for _, sql := range []string{
		"SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', " +
			"'innodb_flush_method', 'innodb_doublewrite')",
		"SHOW GLOBAL STATUS WHERE Variable_name = 'Innodb_redo_log_enabled'",
	} {
		rows, err := se.Query(ctx, sql)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			settings[strings.ToLower(row[0])] = row[1]
		}
	}
	for _, bad := range [][]string{
		{"innodb_flush_log_at_trx_commit", "0", "2"}, // MariaDB's 3 syncs even more often than 1
		{"innodb_flush_method", "NOSYNC"},
		{"innodb_doublewrite", "OFF", "0", "DETECT_ONLY"},
		{"innodb_redo_log_enabled", "OFF"},
	} {
		if value := settings[bad[0]]; slices.Contains(bad[1:], strings.ToUpper(value)) {
			unsafe = append(unsafe, bad[0]+"="+value)
		}
	}
	// After a crash InnoDB also undoes what the binary log lacks.
	if log := settings["log_bin"]; (log == "ON" || log == "1") && settings["sync_binlog"] != "1" {
		unsafe = append(unsafe, "sync_binlog="+settings["sync_binlog"])
	}
	return unsafe, nil
}
