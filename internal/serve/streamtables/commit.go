package streamtables

import (
	"context"
	"crypto/rand"
	"fmt"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// Session is a connection on which a batch is stored.
type Session interface {
	tables.Session
	// Begin begins a transaction, with the timeouts and the durability that the batch needs.
	Begin(ctx context.Context) error
	// InsertRows inserts rows of the batch, or of its Trial, and sets the Results of those that the database refuses.
	InsertRows(ctx context.Context, rows []stream.Row) error
	// InsertKeys stores requests in spillway_requests, under keys that have no row there.
	InsertKeys(ctx context.Context, requests []*stream.Entry) error
	// Commit commits the transaction, as stream.Sink says. It calls Batch.Committing, and sets Batch.Level.
	Commit(ctx context.Context) error
}

// Commit stores a batch of the stream with that table in one transaction, as stream.Sink says. After an error the transaction may be open:
// the caller ends it, and classifies the error if it wraps none of the package stream.
func Commit(ctx context.Context, s Session, d tables.Dialect, table string, b *stream.Batch) error {
	w := &writer{Session: s, d: d, table: table, b: b}
	if err := s.Begin(ctx); err != nil {
		return err
	}
	known, err := w.identify(ctx)
	if err != nil {
		return err
	}
	if known {
		return w.confirm(ctx)
	}
	b.Progress()
	if err := w.fill(ctx); err != nil {
		if d.Locked(err) {
			return fmt.Errorf("%w: %w", stream.ErrBlocked, err)
		}
		return err
	}
	if err := w.finish(ctx); err != nil {
		return err
	}
	return s.Commit(ctx)
}

// writer writes one batch.
type writer struct {
	Session
	d     tables.Dialect
	table string // with its schema: idempotency keys belong to it
	b     *stream.Batch
}

// identify stores the batch's id, or compares its Mark. It returns true if the database has the
// batch, or groups of it: nothing more of it is to be stored, and its Results are set.
func (w *writer) identify(ctx context.Context) (known bool, err error) {
	if w.b.Mark != nil {
		return w.judgeMark(ctx)
	}
	stored, err := w.insertID(ctx, w.b.ID)
	if err != nil || stored {
		return false, err
	}
	return true, w.replay(ctx)
}

// insertID stores a batch id, or returns false if the database has it. It waits for a transaction that has stored it and not ended.
func (w *writer) insertID(ctx context.Context, id [16]byte) (stored bool, err error) {
	n, err := w.Exec(ctx, w.d.InsertNew("spillway_batches (id, created_at) VALUES (?, "+w.d.Now+")"), id)
	return n > 0, err
}

// replay takes the Results of the attempt that was committed.
func (w *writer) replay(ctx context.Context) error {
	rows, err := w.Rows(ctx, "SELECT results FROM spillway_batches WHERE id = ?", w.b.ID)
	if err != nil {
		return unconfirmed(err)
	}
	if len(rows) == 0 {
		return fmt.Errorf("%w: the batch id no longer exists", stream.ErrTransient)
	}
	return w.b.SetResults([]byte(rows[0][0]))
}

// confirm commits a batch id that nothing else uses. What an earlier transaction has stored may
// not be on the disk yet, nor have reached a standby: it has when a later one has.
func (w *writer) confirm(ctx context.Context) error {
	w.b.Progress()
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	_, err := w.insertID(ctx, id)
	if err == nil {
		err = w.Commit(ctx)
	}
	if err != nil {
		return unconfirmed(err)
	}
	return nil
}

// unconfirmed is the error of a batch that an earlier transaction has stored.
func unconfirmed(err error) error {
	return fmt.Errorf("%w: confirm an earlier attempt: %w", stream.ErrUnconfirmed, err)
}

// fill stores the rows and the idempotency keys.
func (w *writer) fill(ctx context.Context) error {
	found, err := w.findKeys(ctx)
	if err != nil {
		return err
	}
	if err := w.InsertRows(ctx, w.b.Rows(nil)); err != nil {
		return err
	}
	return w.storeKeys(ctx, found)
}

// finish stores what became of the records, and deletes the ids of earlier batches.
func (w *writer) finish(ctx context.Context) error {
	if w.b.Mark != nil {
		if err := w.verify(ctx); err != nil {
			return err
		}
	}
	w.b.Progress()
	results, err := w.b.Results()
	switch {
	case err != nil:
		return err
	case w.b.Mark != nil:
		err = w.insertDrained(ctx, results)
	case results != nil:
		_, err = w.Exec(ctx, "UPDATE spillway_batches SET results = ? WHERE id = ?", results, w.b.ID)
	}
	if err != nil || len(w.b.Forget) == 0 {
		return err
	}
	ids := make([]any, len(w.b.Forget))
	for i, id := range w.b.Forget {
		ids[i] = id
	}
	in, ids := w.d.In(ids)
	_, err = w.Exec(ctx, "DELETE FROM spillway_batches WHERE id "+in, ids...)
	return err
}

// verify makes sure that no record is refused for a condition of the server.
func (w *writer) verify(ctx context.Context) error {
	held := w.b.Verify()
	if held == nil || len(w.b.Trial) == 0 {
		return held
	}
	if _, err := w.Exec(ctx, "SAVEPOINT trial"); err != nil {
		return err
	}
	if err := w.InsertRows(ctx, w.b.TrialRows()); err != nil {
		return err
	}
	if _, err := w.Exec(ctx, "ROLLBACK TO SAVEPOINT trial"); err != nil {
		return err
	}
	return w.b.VerifyTrial(held)
}

// raced wraps the error of a row that another process has inserted meanwhile: a retry finds it.
func (w *writer) raced(err error) error {
	if err != nil && w.d.Duplicate(err) {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	return err
}
