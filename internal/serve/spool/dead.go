package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

const deadAtOnce = 500 // dead letters read or retried at once

// selection is dead letters of a file.
type selection struct {
	Name    string `json:"name"`     // "": of all names
	Upto    int64  `json:"upto"`     // the last id
	InDoubt bool   `json:"in_doubt"` // also those that the database may have
	Raw     bool   `json:"raw"`      // also damaged groups
}

// where returns the condition of the selected letters behind an id, and its arguments.
func (s selection) where(after int64) (string, []any) {
	return "id > ? AND id <= ? AND (? = '' OR name = ?) AND (? OR NOT raw) AND (? OR raw OR NOT in_doubt)",
		[]any{after, s.Upto, s.Name, s.Name, s.Raw, s.InDoubt}
}

// everything selects the dead letters of a name that are there now.
func (f *file) everything(ctx context.Context, name string) (selection, error) {
	s := selection{Name: name, InDoubt: true, Raw: true}
	err := f.query(ctx, func(conn *sqlite.Conn) (err error) {
		s.Upto, err = number(conn, "SELECT max(id) FROM dead")
		return err
	})
	if err != nil {
		return s, fmt.Errorf("read the dead letters: %w", damaged(err))
	}
	return s, nil
}

// count counts the selected dead letters.
func (f *file) count(ctx context.Context, s selection) (n int, err error) {
	condition, args := s.where(0)
	err = f.query(ctx, func(conn *sqlite.Conn) error {
		return each(conn, "SELECT count(*) FROM dead WHERE "+condition, args, func(stmt *sqlite.Stmt) { n = stmt.ColumnInt(0) })
	})
	if err != nil {
		return 0, fmt.Errorf("count the dead letters: %w", damaged(err))
	}
	return n, nil
}

// selected returns the selected dead letters behind an id, oldest first: at least one if
// there are any, and then no more than deadAtOnce, and limit bytes together.
func (f *file) selected(ctx context.Context, s selection, after int64, limit int) ([]queue.DeadLetter, error) {
	condition, args := s.where(after)
	var letters []queue.DeadLetter
	size, errEnough := 0, errors.New("enough")
	err := f.query(ctx, func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT id, name, sequence, at, rows, reason, payload, raw, in_doubt FROM dead "+
			"WHERE "+condition+" ORDER BY id", &sqlitex.ExecOptions{
			Args: args, ResultFunc: func(stmt *sqlite.Stmt) error {
				size += stmt.ColumnLen(6) + len(stmt.ColumnText(1))
				if len(letters) == deadAtOnce || len(letters) > 0 && size > limit {
					return errEnough
				}
				letters = append(letters, queue.DeadLetter{
					ID: stmt.ColumnInt64(0), Name: stmt.ColumnText(1), Sequence: uint64(stmt.ColumnInt64(2)), At: time.UnixMicro(stmt.ColumnInt64(3)),
					Rows: stmt.ColumnInt(4), Reason: stmt.ColumnText(5), Payload: columnBytes(stmt, 6), Raw: stmt.ColumnBool(7),
					InDoubt: stmt.ColumnBool(8),
				})
				return nil
			},
		})
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("read the dead letters: %w", damaged(err))
	}
	return letters, nil
}

// deadLetters calls yield for each dead letter, oldest first, of one name or of all with "".
func (f *file) deadLetters(ctx context.Context, name string, yield func(queue.DeadLetter) error) error {
	s, err := f.everything(ctx, name)
	last := int64(0)
	for err == nil {
		var letters []queue.DeadLetter
		letters, err = f.selected(ctx, s, last, surveyBytes)
		if len(letters) == 0 {
			break
		}
		for _, l := range letters {
			last = l.ID
			if err := yield(l); err != nil {
				return err
			}
		}
	}
	return err
}

// The work of a task.
const (
	workRetry   = "retry"
	workDiscard = "discard"
)

// task is work on dead letters that run does in small transactions, between those
// of the clients.
type task struct {
	work string
	selection
	after int64 // the last letter that was done
	done  chan struct{}
	err   error // set before done is closed
}

// do gives run work on dead letters, and returns when it is done. If ctx ends
// first, run continues. A task that is done twice does nothing the second time,
// because the letters have gone.
func (s *Spool) do(ctx context.Context, work string, what selection) error {
	t := &task{work: work, selection: what, done: make(chan struct{})}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return queue.ErrClosed
	}
	s.tasks = append(s.tasks, t)
	s.wake.Signal()
	s.mu.Unlock()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the spool: %w", context.Cause(ctx))
	}
}

// endTasks ends the tasks that are left. The caller holds mu.
func (s *Spool) endTasks() {
	for _, t := range s.tasks {
		t.err = queue.ErrClosed
		close(t.done)
	}
	s.tasks = nil
}

// step makes one transaction of the first task. To retry dead letters makes a group of those of
// each name, without their idempotency keys.
func (s *Spool) step(t *task) {
	letters, err := s.file.selected(context.Background(), t.selection, t.after, s.cfg.GroupBytes)
	if err == nil && len(letters) > 0 {
		if err = s.write(&batch{letters: letters, retry: t.work == workRetry}); err == nil {
			t.after = letters[len(letters)-1].ID
			return // the next step continues
		}
		err = fmt.Errorf("%s dead letters: %w", t.work, err)
	}
	s.mu.Lock()
	s.tasks = s.tasks[1:]
	s.mu.Unlock()
	t.err = err
	close(t.done)
}
