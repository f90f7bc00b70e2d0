package mysql

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
)

// A quick batch is one statement of MariaDB, and so one round trip: it stores the batch's id and a few rows alone, and commits. If a
// timeout of this side or of the server ends it, it is in doubt, and is repeated in steps.
//
// Instead of the text of the table's definition, it compares when the table was altered last. A session trusts a time that it has read in
// a transaction in which the text was right, if a later change has another time: the server tells times in seconds.

const (
	quickMost = 4 // rows of a quick batch: each number of rows is a statement of its own
	alteredAt = "SELECT create_time FROM information_schema.tables WHERE " + inDatabase
)

// quick returns the statement of quick batches with n rows.
func (st *Stream) quick(n int) string {
	const fail = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'spillway: "
	return "BEGIN NOT ATOMIC START TRANSACTION; " + st.lock() +
		"; IF COALESCE((" + alteredAt + ") <> ?, TRUE) THEN " + fail + "changed'; END IF; " +
		"INSERT INTO spillway_batches (id, created_at) VALUES (?, " + dialect.Now + "); " + st.insert(n) +
		fmt.Sprintf("; IF ROW_COUNT() <> %d THEN ", n) + fail + "rows are missing'; END IF; COMMIT AND NO CHAIN NO RELEASE; END"
}

// lock returns the statement that locks the table as an INSERT does.
func (st *Stream) lock() string {
	return fmt.Sprintf("INSERT IGNORE INTO %s (%s) SELECT NULL FROM DUAL WHERE FALSE", plans.ParseTableName(st.def.Table).SQL(plans.MySQL),
		plans.MySQL.QuoteAlways(st.columns[0].Name))
}

// quickRows returns the rows of a batch that may be quick.
func (w *batchWriter) quickRows() []stream.Row {
	b, watched := w.b, w.table.watched
	if !w.Server.MariaDB || len(watched) != 1 || len(watched[0].args) > 0 || w.st.semiSync.Load() || b.Mark != nil || b.RowByRow ||
		len(b.Requests) > quickMost || len(b.Forget) > 0 || len(b.Keyed(nil)) > 0 {
		return nil
	}
	if rows := b.Rows(nil); len(rows) <= quickMost {
		return rows
	}
	return nil
}

// learn reads when the table was altered last. The transaction has locked it.
func (w *batchWriter) learn(ctx context.Context) error {
	if len(w.quickRows()) == 0 || w.altered[w.table] != "" {
		return nil
	}
	name := plans.ParseTableName(w.st.def.Table)
	rows, err := w.texts(ctx, alteredAt+" AND create_time < NOW() - INTERVAL 2 SECOND", name.Schema, name.Name)
	if len(rows) == 1 {
		w.altered[w.table] = rows[0][0]
	}
	return err
}

// commitQuick stores a quick batch. It returns false if nothing was stored, and the batch is to be stored in steps.
func (w *batchWriter) commitQuick(ctx context.Context) (done bool, err error) {
	rows, altered, name := w.quickRows(), w.altered[w.table], plans.ParseTableName(w.st.def.Table)
	w.args = append(w.args[:0], namedValues([]any{name.Schema, name.Name, altered, w.b.ID[:]})...)
	if len(rows) == 0 || altered == "" || w.bind(rows) != "" {
		return false, nil
	}
	sql := w.st.quicks[len(rows)-1]
	if _, err = w.prepare(ctx, sql); err != nil {
		return false, nil
	}
	if ctx.Err() != nil {
		return true, context.Cause(ctx)
	}
	w.committing = true
	_, err = w.exec(ctx, sql, w.args)
	w.committing = err != nil && !w.IsValid()
	if err == nil {
		return true, nil
	}
	delete(w.altered, w.table)
	refused, undone := errors.AsType[*mysql.MySQLError](err)
	if undone && !isRefusal(err, numDeadlock, numLockWait) {
		open, lost := w.Query(ctx, "SELECT @@in_transaction")
		undone = lost == nil && len(open) == 1 && open[0][0] == "1"
	}
	switch {
	case dialect.Locked(err):
		return true, fmt.Errorf("%w: %w", stream.ErrBlocked, err)
	case undone && !isTemporary(refused.Number):
		return false, w.session.Exec(ctx, "ROLLBACK")
	case errors.Is(err, mysql.ErrPktTooLarge):
		return false, nil
	}
	w.sent, w.b.RowByRow = !undone, w.b.RowByRow || !undone // the next attempt is not quick
	return true, err
}
