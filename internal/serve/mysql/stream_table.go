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
	watched []watched
	text    string // their results
}

// watched is a statement whose result changes with a table.
type watched struct {
	sql  string
	args [2]any // nil: the statement has none
}

// read returns the results of the statements.
func (s *stamp) read(ctx context.Context, se *session) (string, error) {
	var text strings.Builder
	for _, w := range s.watched {
		var args []any
		if w.args[0] != nil {
			args = w.args[:]
		}
		rows, err := se.texts(ctx, w.sql, args...)
		if err != nil {
			return "", fmt.Errorf("read what a table is: %w", err)
		}
		text.WriteString(textOf(rows))
	}
	return text.String(), nil
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

// readStamp checks the engines of the stream's table and of those behind a view, and returns what
// they are. An ALTER TABLE in between is ErrTransient.
func (st *Stream) readStamp(ctx context.Context, se *session) (*stamp, error) {
	s := &stamp{}
	var err error
	if s.watched, err = st.watchedTables(ctx, se); err != nil {
		return nil, err
	}
	if s.text, err = s.read(ctx, se); err != nil {
		return nil, err
	}
	again, err := st.watchedTables(ctx, se) // the text is of tables that pass
	if err == nil && !slices.Equal(again, s.watched) {
		err = fmt.Errorf("%w: %s has changed", stream.ErrTransient, st.def.Table)
	}
	return s, err
}

// watchedTables returns the statements that tell what the stream's table is, and those behind it.
// A table that does not exist has none.
func (st *Stream) watchedTables(ctx context.Context, se *session) ([]watched, error) {
	names := []plans.TableName{plans.ParseTableName(st.def.Table)}
	var all []watched
	for n := 0; n < len(names); n++ {
		name := names[n]
		rows, err := se.texts(ctx, "SELECT table_type, COALESCE(engine, '') FROM information_schema.tables "+
			"WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?", name.Schema, name.Name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("look up %s: %w", name, err)
		case len(rows) == 0:
			return nil, nil
		case rows[0][0] == "VIEW":
			behind, err := se.tablesOfView(ctx, name)
			if err != nil {
				return nil, err
			}
			names = append(names, slices.DeleteFunc(behind, func(t plans.TableName) bool { return slices.Contains(names, t) })...)
		case rows[0][1] != "InnoDB":
			return nil, otherEngine(name, rows[0][1])
		}
		w, err := se.watch(ctx, name, st.def.Fsync)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// tablesOfView returns the tables and views that a view reads.
func (se *session) tablesOfView(ctx context.Context, view plans.TableName) (all []plans.TableName, err error) {
	rows, err := se.texts(ctx, "SELECT view_definition FROM information_schema.views "+
		"WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?", view.Schema, view.Name)
	if err != nil {
		return nil, fmt.Errorf("look up the view %s: %w", view, err)
	}
	if len(rows) == 1 {
		behind, err := se.existing(ctx, plans.ReadRewritten(rows[0][0]).Tables())
		if err != nil {
			return nil, fmt.Errorf("look up the tables of the view %s: %w", view, err)
		}
		all = slices.SortedFunc(maps.Values(behind), func(a, b plans.TableName) int { return cmp.Compare(a.String(), b.String()) })
	}
	if len(all) == 0 {
		err = fmt.Errorf("%w: the tables behind the view %s are not visible to this user: GRANT SHOW VIEW on the view, and SELECT on them",
			tables.ErrUnusable, view)
	}
	return all, err
}

// watch returns the statement that tells what a table is. A user with rights on single columns
// may not run SHOW CREATE TABLE, and sees less. TEMPORARY tables need fsync: off.
func (se *session) watch(ctx context.Context, name plans.TableName, fsync stream.Fsync) (watched, error) {
	w := watched{sql: "SHOW CREATE TABLE " + name.SQL(plans.MySQL)}
	rows, err := se.texts(ctx, w.sql)
	switch {
	case isRefusal(err, numTableDenied):
		w.sql = "SELECT t.engine, c.column_name, c.column_type, c.collation_name, c.is_nullable, c.extra FROM information_schema.columns c " +
			"JOIN information_schema.tables t USING (table_schema, table_name) " +
			"WHERE c.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND c.table_name = ? ORDER BY c.ordinal_position"
		w.args = [2]any{name.Schema, name.Name}
	case err != nil:
		return w, fmt.Errorf("read what %s is: %w", name, err)
	case len(rows) == 1 && strings.HasPrefix(rows[0][1], "CREATE TEMPORARY") && fsync != stream.FsyncOff:
		return w, fmt.Errorf("%w: %s is a TEMPORARY table, which ends with its connection; use another table, or set fsync: off",
			tables.ErrUnusable, name.SQL(plans.MySQL))
	}
	return w, nil
}

// Begin implements streamtables.Session. It locks the table as an INSERT does, and fails if that is no
// longer what it was when the batch's stamp was taken: rows of a table without transactions could not
// be taken back. MariaDB does it in one round trip.
func (w *batchWriter) Begin(ctx context.Context) error {
	const begin = "START TRANSACTION"
	if w.stamp == nil || len(w.stamp.watched) == 0 || len(w.b.Requests) == 0 {
		return w.session.Exec(ctx, begin)
	}
	lock := fmt.Sprintf("INSERT IGNORE INTO %s (%s) SELECT NULL FROM DUAL WHERE FALSE", plans.ParseTableName(w.st.def.Table).SQL(plans.MySQL),
		plans.MySQL.QuoteAlways(w.st.columns[0].Name))
	var now string
	if first := w.stamp.watched[0]; w.Server.MariaDB && len(w.stamp.watched) == 1 && first.args[0] == nil {
		rows, err := w.Query(ctx, "BEGIN NOT ATOMIC "+begin+"; "+lock+"; "+first.sql+"; END")
		if err != nil {
			w.st.ready.Store(false)
			return err
		}
		now = textOf(rows)
	} else {
		err := w.session.Exec(ctx, begin)
		if err == nil {
			_, err = w.exec(ctx, lock, nil)
		}
		if err != nil {
			w.st.ready.Store(false)
			return err
		}
		if now, err = w.stamp.read(ctx, w.session); err != nil {
			return err
		}
	}
	if now == w.stamp.text {
		return nil
	}
	w.st.ready.Store(false) // the next attempt checks the table
	return fmt.Errorf("%w: %s has changed", stream.ErrTransient, w.st.def.Table)
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
		var key strings.Builder
		for i, c := range w.st.columns {
			if slices.Contains(w.st.def.Key, c.Name) {
				value, _ := held[i].value(r, i) // exact, or it would not have been inserted
				args = append(args, value)
				fmt.Fprintf(&key, "%q,", fmt.Sprintf("%s", value))
			}
		}
		keys[key.String()] = true
	}
	found, err := w.texts(ctx, w.st.find(len(rows)), args...)
	w.b.Progress()
	if err != nil {
		return false, fmt.Errorf("look up rows by their keys: %w", err)
	}
	return found[0][0] == fmt.Sprint(len(keys)), nil
}

// find returns the statement that counts the rows with one of n keys. It reads what other
// transactions have committed meanwhile, as INSERT does. The server compares decimals and times
// with texts by other rules.
func (st *Stream) find(n int) string {
	var names, parts []string
	for _, c := range st.columns {
		if !slices.Contains(st.def.Key, c.Name) {
			continue
		}
		name, value := plans.MySQL.QuoteAlways(c.Name), "?"
		var kind string
		if table := st.table.Load(); table != nil {
			kind = (*table)[strings.ToLower(c.Name)].kind
		}
		switch kind {
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
	bad := func(name string, values ...string) {
		if value, ok := settings[name]; ok && slices.Contains(values, strings.ToUpper(value)) {
			unsafe = append(unsafe, name+"="+value)
		}
	}
	bad("innodb_flush_log_at_trx_commit", "0", "2") // MariaDB's 3 syncs even more often than 1
	// After a crash InnoDB also undoes what the binary log lacks.
	if log := settings["log_bin"]; (log == "ON" || log == "1") && settings["sync_binlog"] != "1" {
		unsafe = append(unsafe, "sync_binlog="+settings["sync_binlog"])
	}
	bad("innodb_flush_method", "NOSYNC")
	bad("innodb_doublewrite", "OFF", "0", "DETECT_ONLY")
	bad("innodb_redo_log_enabled", "OFF")
	return unsafe, nil
}
