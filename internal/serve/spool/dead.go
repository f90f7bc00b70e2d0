package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/serve/queue"
)

const deadAtOnce = 500 // dead letters read or retried at once

// Filter selects dead letters: all of them, if it is empty.
type Filter struct {
	Stream  string    `json:"stream,omitempty"`   // their name
	Reason  string    `json:"reason,omitempty"`   // a part of their reason
	Since   time.Time `json:"since,omitzero"`     // accepted then or later
	Until   time.Time `json:"until,omitzero"`     // accepted before
	InDoubt *bool     `json:"in_doubt,omitempty"` // only those in doubt, or only the others; nil: both
	IDs     []int64   `json:"ids,omitzero"`       // only these; nil: all
	Upto    int64     `json:"upto,omitzero"`      // the last id; 0: that of now
}

// selection is the dead letters of a file that a filter selects.
type selection struct {
	Filter
	upto int64 // the last id
	raw  bool  // also damaged groups
}

// where returns the condition of the selected letters behind an id, and its arguments.
func (s *selection) where(after int64) (string, []any) {
	condition, args := "id > ? AND id <= ? AND (? OR NOT raw)", []any{after, s.upto, s.raw}
	add := func(given bool, sql string, arg any) {
		if given {
			condition += " AND " + sql
			args = append(args, arg)
		}
	}
	ids, _ := json.Marshal(s.IDs) // never fails
	add(s.Stream != "", "name = ?", s.Stream)
	add(s.Reason != "", "instr(reason, ?) > 0", s.Reason)
	add(!s.Since.IsZero(), "at >= ?", s.Since.UnixMicro())
	add(!s.Until.IsZero(), "at < ?", s.Until.UnixMicro())
	add(s.IDs != nil, "id IN (SELECT value FROM json_each(?))", string(ids))
	add(s.InDoubt != nil, "in_doubt = ?", s.InDoubt != nil && *s.InDoubt)
	return condition, args
}

// selects returns the dead letters of a filter that are there now.
func (f *file) selects(ctx context.Context, filter Filter) (selection, error) {
	s := selection{Filter: filter, raw: true}
	err := f.query(ctx, func(conn *sqlite.Conn) (err error) {
		s.upto, err = number(conn, "SELECT max(id) FROM dead")
		return err
	})
	if err != nil {
		return s, fmt.Errorf("read the dead letters: %w", damaged(err))
	}
	if filter.Upto > 0 {
		s.upto = min(s.upto, filter.Upto)
	}
	return s, nil
}

// count counts the selected dead letters, and those of them that are damaged groups or in doubt.
func (f *file) count(ctx context.Context, s selection) (all, raw, inDoubt int, err error) {
	condition, args := s.where(0)
	err = f.query(ctx, func(conn *sqlite.Conn) error {
		return each(conn, "SELECT count(*), total(raw), total(in_doubt AND NOT raw) FROM dead WHERE "+condition, args, func(stmt *sqlite.Stmt) {
			all, raw, inDoubt = stmt.ColumnInt(0), stmt.ColumnInt(1), stmt.ColumnInt(2)
		})
	})
	if err != nil {
		return 0, 0, 0, fmt.Errorf("count the dead letters: %w", damaged(err))
	}
	return all, raw, inDoubt, nil
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
					ID: stmt.ColumnInt64(0), Name: stmt.ColumnText(1), Sequence: uint64(stmt.ColumnInt64(2)),
					At:   time.UnixMicro(stmt.ColumnInt64(3)).UTC(),
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

// deadLetters calls yield for each dead letter of a filter, oldest first.
func (f *file) deadLetters(ctx context.Context, filter Filter, yield func(queue.DeadLetter) error) error {
	s, err := f.selects(ctx, filter)
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

// Letters returns the dead letters of a filter behind an id, oldest first: at most that many,
// and about 8 MiB.
func (s *Spool) Letters(ctx context.Context, filter Filter, after int64, most int) ([]queue.DeadLetter, error) {
	what, err := s.file.selects(ctx, filter)
	if err != nil {
		return nil, err
	}
	letters, err := s.file.selected(ctx, what, after, surveyBytes)
	return letters[:min(len(letters), most)], err
}
