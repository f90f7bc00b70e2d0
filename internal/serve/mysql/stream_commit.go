package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/serve/stream"
)

// Commit implements stream.Sink.
func (st *Stream) Commit(ctx context.Context, b *stream.Batch) error {
	w := &batchWriter{st: st, b: b}
	// A batch is many statements. The server bounds each of them, and ctx ends if there is
	// no progress.
	err := st.db.onSession(ctx, context.WithCancel, func(ctx context.Context, se *session) error {
		w.ctx, w.se = ctx, se
		b.Session = se.ID
		if err := st.prepareTables(ctx, se); err != nil {
			return err
		}
		if b.Mark != nil {
			if err := st.prepareSpools(ctx, se); err != nil {
				return err
			}
		}
		if err := w.boundLocks(); err != nil {
			return err
		}
		err := w.write()
		if err != nil && se.IsValid() {
			if rollback := se.Exec(ctx, "ROLLBACK"); rollback != nil {
				err = errors.Join(err, se.Close()) // the server rolls back
			}
		}
		w.unboundLocks()
		return err
	})
	if err != nil && w.sent {
		return fmt.Errorf("%w: %w", stream.ErrUnconfirmed, err)
	}
	return st.classify(err)
}

// batchWriter writes one batch inside a transaction.
type batchWriter struct {
	st   *Stream
	b    *stream.Batch
	ctx  context.Context // for the duration of write
	se   *session
	sent bool // COMMIT was sent and not answered
	args []driver.NamedValue

	noLockWait bool // the session does not wait for locks
}

// The server counts lock waits in whole seconds. Only MariaDB accepts 0.
const (
	waitSecond  = "SET innodb_lock_wait_timeout = 1"
	waitNothing = "SET innodb_lock_wait_timeout = 0"
)

// boundLocks sets how long the session waits for a lock, approximately. waitSecond is run
// once per session, and is prepared there afterwards.
func (w *batchWriter) boundLocks() error {
	if w.b.LockWait == 0 {
		return nil
	}
	if _, done := w.se.prepared[waitSecond]; !done {
		if _, err := w.se.exec(w.ctx, waitSecond, nil); err != nil {
			return err
		}
	}
	if w.b.LockWait >= time.Second/4 || !w.se.Server.MariaDB || w.manyRows() {
		return nil
	}
	w.noLockWait = true
	return w.se.Exec(w.ctx, waitNothing)
}

// manyRows reports whether a batch is too large to be given up for any lock, which may be
// one of the stream's own batches.
func (w *batchWriter) manyRows() bool {
	rows := 0
	for _, e := range w.b.Requests {
		rows += e.Records.Len()
	}
	return rows > rowsMax
}

// unboundLocks lets the session wait for locks again.
func (w *batchWriter) unboundLocks() {
	if w.noLockWait && w.se.IsValid() && w.se.Exec(w.ctx, waitSecond) != nil {
		_ = w.se.Close() // the pool opens a new one
	}
}

func (w *batchWriter) write() error {
	if err := w.se.Exec(w.ctx, "START TRANSACTION"); err != nil {
		return err
	}
	if w.b.Mark != nil {
		if stored, err := w.mark(); stored || err != nil {
			return err
		}
	} else {
		_, err := w.se.exec(w.ctx, "INSERT INTO spillway_batches (id, created_at) VALUES (?, UTC_TIMESTAMP(6))", w.values(w.b.ID[:]))
		var refused *mysql.MySQLError
		if errors.As(err, &refused) && refused.Number == numDuplicate {
			return w.readResults()
		}
		if err != nil {
			return err
		}
	}
	w.b.Progress()
	if err := w.fill(); err != nil {
		var refused *mysql.MySQLError
		if errors.As(err, &refused) && refused.Number == numLockWait {
			return fmt.Errorf("%w: %w", stream.ErrBlocked, err)
		}
		return err
	}
	results, err := w.b.Results()
	if err != nil {
		return err
	}
	if results != nil {
		if err := w.keepResults(results); err != nil {
			return err
		}
	}
	if err := w.forget(); err != nil {
		return err
	}
	w.sent = true
	if err := w.se.Exec(w.ctx, "COMMIT"); err != nil {
		return err
	}
	w.sent = false
	return nil
}

// fill stores the rows and the idempotency keys.
func (w *batchWriter) fill() error {
	if err := w.findKeys(w.b.Keyed(nil)); err != nil {
		return err
	}
	if err := w.insertRows(w.b.Rows(nil)); err != nil {
		return err
	}
	return w.insertKeys(w.b.Keyed(nil))
}

// values returns the arguments of a statement. They are valid until the next call.
func (w *batchWriter) values(values ...any) []driver.NamedValue {
	w.args = w.args[:0]
	for _, v := range values {
		w.push(v)
	}
	return w.args
}

func (w *batchWriter) push(v driver.Value) {
	w.args = append(w.args, driver.NamedValue{Ordinal: len(w.args) + 1, Value: v})
}

// readResults reads the results of the attempt that was committed.
func (w *batchWriter) readResults() error {
	if err := w.se.Exec(w.ctx, "ROLLBACK"); err != nil {
		return err
	}
	rows, err := w.se.texts(w.ctx, "SELECT results FROM spillway_batches WHERE id = ?", w.b.ID[:])
	if err != nil {
		return fmt.Errorf("%w: read the results of a committed batch: %w", stream.ErrUnconfirmed, err)
	}
	if len(rows) != 1 {
		return fmt.Errorf("%w: the batch id no longer exists", stream.ErrTransient)
	}
	return w.b.SetResults([]byte(rows[0][0]))
}

// forget deletes the ids of batches that are no longer needed.
func (w *batchWriter) forget() error {
	if len(w.b.Forget) == 0 {
		return nil
	}
	sql := []byte("DELETE FROM spillway_batches WHERE id IN (")
	for i, id := range w.b.Forget {
		if i > 0 {
			sql = append(sql, ',')
		}
		sql = fmt.Appendf(sql, "x'%x'", id[:])
	}
	return w.se.Exec(w.ctx, string(append(sql, ')')))
}

// findKeys sets the results of the requests whose idempotency keys exist, and deletes keys
// that have expired.
func (w *batchWriter) findKeys(requests []*stream.Entry) error {
	for len(requests) > 0 {
		n := min(len(requests), w.st.most, 128)
		if err := w.findSomeKeys(requests[:n]); err != nil {
			return err
		}
		requests = requests[n:]
	}
	return nil
}

func (w *batchWriter) findSomeKeys(requests []*stream.Entry) error {
	byKey := make(map[string]*stream.Entry, len(requests))
	args := []any{[]byte(w.st.def.Name)}
	for _, e := range requests {
		byKey[e.Key] = e
		args = append(args, []byte(e.Key))
	}
	// The last key is repeated up to a power of two, so that there are few different
	// statements.
	marks := 1 << bits.Len(uint(len(requests)-1))
	for len(args) < marks+1 {
		args = append(args, args[len(args)-1])
	}
	where := " FROM spillway_requests WHERE stream = ? AND `key` IN (?" + strings.Repeat(",?", marks-1) + ")"
	rows, err := w.se.texts(w.ctx, "SELECT `key`, fingerprint, outcome, expires_at < UTC_TIMESTAMP(6)"+where, args...)
	if err != nil {
		return err
	}
	expired := false
	for _, row := range rows {
		if row[3] == "1" {
			expired = true
			continue
		}
		if e := byKey[row[0]]; e != nil {
			e.Found([]byte(row[1]), []byte(row[2]))
		}
	}
	if !expired {
		return nil
	}
	_, err = w.se.exec(w.ctx, "DELETE"+where+" AND expires_at < UTC_TIMESTAMP(6)", w.values(args...))
	return err
}

// insertKeys stores the idempotency keys. If another process has stored one meanwhile, the
// batch is retried and finds it.
func (w *batchWriter) insertKeys(requests []*stream.Entry) error {
	for len(requests) > 0 {
		n := powerBelow(min(len(requests), w.st.most))
		w.args = w.args[:0]
		for _, e := range requests[:n] {
			outcome, err := e.OutcomeNow()
			if err != nil {
				return err
			}
			w.push([]byte(w.st.def.Name))
			w.push([]byte(e.Key))
			w.push(e.Fingerprint[:])
			w.push(outcome)
			w.push(appendDatetime(nil, e.Expires))
		}
		_, err := w.se.exec(w.ctx, "INSERT INTO spillway_requests (stream, `key`, fingerprint, outcome, expires_at) VALUES "+tuples(n, 5), w.args)
		var refused *mysql.MySQLError
		if errors.As(err, &refused) && refused.Number == numDuplicate {
			return fmt.Errorf("%w: %w", stream.ErrTransient, err)
		}
		if err != nil {
			return err
		}
		requests = requests[n:]
	}
	return nil
}

// spoolTable is created with the first batch of a spool if it is missing.
const spoolTable = `CREATE TABLE IF NOT EXISTS spillway_spools (
	id BINARY(16) NOT NULL PRIMARY KEY,
	stream VARBINARY(255) NOT NULL,
	after BIGINT UNSIGNED NOT NULL,
	sequence BIGINT UNSIGNED NOT NULL,
	results LONGBLOB,
	updated_at DATETIME(6) NOT NULL
) ENGINE=InnoDB`

// prepareSpools creates the table of spools once. An existing table needs no right to
// create it.
func (st *Stream) prepareSpools(ctx context.Context, se *session) error {
	if st.drains.Load() {
		return nil
	}
	present, err := se.Query(ctx, "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'spillway_spools'")
	if err != nil {
		return err
	}
	if present[0][0] != "1" {
		if err := se.Exec(ctx, spoolTable); err != nil {
			return fmt.Errorf("create the table spillway_spools: %w", err)
		}
	}
	st.drains.Store(true)
	return nil
}

// mark stores which groups of a spool the batch contains. stored reports that the database
// already has them; the transaction is then ended.
func (w *batchWriter) mark() (stored bool, err error) {
	m := w.b.Mark
	rows, err := w.se.texts(w.ctx, "SELECT after, sequence, COALESCE(results, '') FROM spillway_spools WHERE id = ? FOR UPDATE", m.Spool[:])
	if err != nil {
		return false, err
	}
	if len(rows) == 0 {
		_, err := w.se.exec(w.ctx, "INSERT INTO spillway_spools (stream, after, sequence, updated_at, id) VALUES (?, ?, ?, UTC_TIMESTAMP(6), ?)",
			w.values([]byte(m.Name), int64(m.After), int64(m.Last), m.Spool[:]))
		return false, err
	}
	after, err := strconv.ParseUint(rows[0][0], 10, 64)
	if err != nil {
		return false, fmt.Errorf("read spillway_spools: %w", err)
	}
	last, err := strconv.ParseUint(rows[0][1], 10, 64)
	if err != nil {
		return false, fmt.Errorf("read spillway_spools: %w", err)
	}
	if stored, err = m.Compare(after, last); err != nil {
		return false, err
	}
	if stored {
		if err := w.b.SetResults([]byte(rows[0][2])); err != nil {
			return false, err
		}
		return true, w.se.Exec(w.ctx, "ROLLBACK")
	}
	_, err = w.se.exec(w.ctx, "UPDATE spillway_spools SET stream = ?, after = ?, sequence = ?, results = NULL, updated_at = UTC_TIMESTAMP(6) WHERE id = ?",
		w.values([]byte(m.Name), int64(m.After), int64(m.Last), m.Spool[:]))
	return false, err
}

// keepResults stores the results in the row that identifies the batch.
func (w *batchWriter) keepResults(results []byte) error {
	if w.b.Mark != nil {
		_, err := w.se.exec(w.ctx, "UPDATE spillway_spools SET results = ? WHERE id = ?", w.values(results, w.b.Mark.Spool[:]))
		return err
	}
	_, err := w.se.exec(w.ctx, "UPDATE spillway_batches SET results = ? WHERE id = ?", w.values(results, w.b.ID[:]))
	return err
}
