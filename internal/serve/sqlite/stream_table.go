package sqlite

import (
	"fmt"
	"regexp"
	"strings"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// checkTable refuses a table that alters what is stored in it, or another record.
func (st *Stream) checkTable(conn *sqlite.Conn) error {
	if err := st.checkCounts(conn); err != nil {
		return fmt.Errorf("%w: %w", tables.ErrUnusable, err)
	}
	if err := st.checkColumns(conn); err != nil {
		return fmt.Errorf("%w: %w", tables.ErrUnusable, err)
	}
	return nil
}

// notWords matches texts, quoted names and comments in SQL.
var notWords = regexp.MustCompile(`(?s)'[^']*'|"[^"]*"|/\*.*?\*/|--[^\n]*`)

// checkCounts refuses tables of which SQLite does not tell whether a row was stored: views with
// INSTEAD OF triggers, and conflict clauses that delete other rows.
func (st *Stream) checkCounts(conn *sqlite.Conn) error {
	kind, definition, err := st.definition(conn)
	switch {
	case err != nil || st.def.SkippedRows == stream.SkippedAccept:
		return err
	case kind == "view":
		return fmt.Errorf("%s is a view, whose INSTEAD OF trigger does not tell whether a record was stored: name the table behind it, "+
			"or set skipped_rows: accept", st.def.Table)
	case strings.Contains(definition, "ON CONFLICT REPLACE"):
		return fmt.Errorf("%s has a constraint with ON CONFLICT REPLACE, which deletes records that were stored: make the table without it, "+
			"or set skipped_rows: accept", st.def.Table)
	}
	return nil
}

// definition returns the type of the stream's table, and the words of its CREATE TABLE or VIEW in upper
// case, with one space between them; "" if it does not exist.
func (st *Stream) definition(conn *sqlite.Conn) (kind, sql string, err error) {
	found, err := texts(conn, "SELECT type, upper(sql) FROM sqlite_schema WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE",
		st.table.Name)
	if err != nil || len(found) == 0 {
		return "", "", err
	}
	return found[0][0], strings.Join(strings.Fields(notWords.ReplaceAllString(found[0][1], " ")), " "), nil
}

// bindRow binds the values of a row, or returns why a column does not hold one exactly.
func (w *batchWriter) bindRow(stmt *sqlite.Stmt, r stream.Row) (reason string) {
	for i := range w.st.held {
		c := &w.st.held[i]
		if r.Null(r.Row, i) {
			stmt.BindNull(i + 1)
		} else if v := r.Value(r.Row, i); !c.accepts(v) || !c.bind(c, stmt, i+1, v) {
			reason = stream.Inexact(c.Name, c.Type.AppendText(nil, v), c.declared)
		}
	}
	return reason
}

// notInserted judges a row that the INSERT has left out without an error: its key was there, or a
// trigger or a conflict clause has skipped it.
func (w *batchWriter) notInserted(r stream.Row) error {
	found := false
	switch {
	case w.st.def.SkippedRows == stream.SkippedAccept:
		w.b.Skipped++
		found = true
	case w.st.find != "":
		stmt, err := w.conn.Prepare(w.st.find)
		if err != nil {
			return err
		}
		w.bindRow(stmt, r)
		if found, err = stmt.Step(); err != nil {
			return err
		}
		if err := stmt.Reset(); err != nil {
			return err
		}
	}
	switch {
	case !found:
		r.Refuse(stream.SkippedRow(r.Row, w.b.Mark != nil))
	case w.b.Mark != nil:
		stream.NoteFound([]stream.Row{r})
	}
	return nil
}
