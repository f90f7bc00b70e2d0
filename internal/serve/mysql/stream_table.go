package mysql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	if w.stamp == nil || len(w.stamp.watched) == 0 || len(w.b.Requests) == 0 {
		return w.session.Exec(ctx, begin)
	}
	now, err := w.lockTable(ctx, begin)
	if err == nil && now != w.stamp.text {
		err = fmt.Errorf("%w: %s has changed", stream.ErrTransient, w.st.def.Table)
	}
	if err != nil {
		w.st.ready.Store(false) // the next attempt checks the table
	}
	return err
}

// lockTable begins a transaction, locks the table as an INSERT does, and returns what the stamp's
// statements yield now. MariaDB does it in one round trip.
func (w *batchWriter) lockTable(ctx context.Context, begin string) (now string, err error) {
	lock := fmt.Sprintf("INSERT IGNORE INTO %s (%s) SELECT NULL FROM DUAL WHERE FALSE", plans.ParseTableName(w.st.def.Table).SQL(plans.MySQL),
		plans.MySQL.QuoteAlways(w.st.columns[0].Name))
	if first := w.stamp.watched[0]; w.Server.MariaDB && len(w.stamp.watched) == 1 && len(first.args) == 0 {
		rows, err := w.Query(ctx, "BEGIN NOT ATOMIC "+begin+"; "+lock+"; "+first.sql+"; END")
		return textOf(rows), err
	}
	if err = w.session.Exec(ctx, begin); err == nil {
		_, err = w.exec(ctx, lock, nil)
	}
	for _, watched := range w.stamp.watched {
		text := ""
		if err == nil {
			text, err = watched.read(ctx, w.session)
		}
		now += text
	}
	return now, err
}

// errUncounted is the error of a statement that has not stored all of its rows, nor found those
// that are missing under their keys. Row by row it can be told which.
var errUncounted = errors.New("rows are missing behind an INSERT")

// countRows compares how many rows an INSERT has changed. With a key, rows that were not inserted
// must exist under their exact keys: a trigger may have changed the key of one to that of another.
func (w *batchWriter) countRows(ctx context.Context, rows []stream.Row, changed int64) (*stream.RowRefusal, error) {
	missing := len(rows) - int(changed)
	if missing == 0 {
		return nil, nil
	}
	if w.st.def.SkippedRows == stream.SkippedAccept {
		w.b.Skipped += max(0, missing)
		return nil, nil
	}
	if len(w.st.def.Key) > 0 {
		if found, err := w.findRows(ctx, rows); err != nil || found {
			return nil, err
		}
	}
	if len(rows) > 1 {
		return nil, errUncounted
	}
	refused := stream.SkippedRow(rows[0].Row, w.b.Mark != nil)
	return &refused, nil
}

// findRows reports whether the table has a row for the key of each row.
func (w *batchWriter) findRows(ctx context.Context, rows []stream.Row) (bool, error) {
	var args []any
	keys := make(map[string]bool, len(rows))
	held := *w.st.held.Load()
	for _, r := range rows {
		first := len(args)
		for i := range held {
			if held[i].isKey {
				value, _ := held[i].value(r, i) // exact, or it would not have been inserted
				args = append(args, value)
			}
		}
		keys[fmt.Sprintf("%#v", args[first:])] = true
	}
	found, err := w.texts(ctx, w.st.find(held, len(rows)), args...)
	w.b.Progress()
	if err != nil {
		return false, fmt.Errorf("look up rows by their keys: %w", err)
	}
	return found[0][0] == fmt.Sprint(len(keys)), nil
}

// find returns the statement that counts the rows with one of n keys. It reads what other
// transactions have committed meanwhile, as INSERT does. The server compares decimals and times
// with texts by other rules.
func (st *Stream) find(held []heldColumn, n int) string {
	var names, parts []string
	for _, c := range held {
		if !c.isKey {
			continue
		}
		name, value := plans.MySQL.QuoteAlways(c.Name), "?"
		switch c.kind {
		case "decimal":
			value = fmt.Sprintf("CAST(? AS DECIMAL(%d,%d))", decimalMax, scaleMax)
		case "datetime", "timestamp":
			value = "CAST(? AS DATETIME(6))"
		}
		names, parts = append(names, name), append(parts, name+" = "+value)
	}
	one := strings.Join(parts, " AND ")
	return fmt.Sprintf("SELECT COUNT(DISTINCT %s) FROM %s WHERE %s LOCK IN SHARE MODE", strings.Join(names, ", "),
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
