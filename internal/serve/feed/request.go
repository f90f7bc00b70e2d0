package feed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// Request asks for one page.
type Request struct {
	Args   []string // arguments (param.Argument) for Params, in their order
	Before string   // the cursor of the row before the page; "" for none
	Offset int      // rows skipped from the newest; 0 with Before
	Limit  int      // rows at most; 0 for the default
}

// Page returns the page that r asks for. now is the request's time. A hit in the window
// takes no lock and allocates nothing. Errors wrap ErrRequest, ErrCursor or param.ErrValue
// (the client's mistake), or ErrBusy, ErrCounting or ErrUnavailable (retry later), or
// ErrLongKeys. Others are the database's.
func (f *Feed) Page(ctx context.Context, now time.Time, r Request) (Page, error) {
	if err := f.complete(&r); err != nil {
		return Page{}, err
	}
	if w, s := f.current(now, r.Args); s != nil {
		if p, ok := s.page(&r); ok {
			p.Cached = CachedPage{w, s}
			w.hit(now)
			return p, nil
		}
	}
	for range attemptsMax {
		w, err := f.window(r.Args, now)
		if err != nil {
			return f.answered(Page{}, err)
		}
		if w == nil {
			break
		}
		s, err := w.get(ctx, now)
		if err == nil {
			if p, ok := s.page(&r); ok {
				w.hits.Add(1)
				return p, nil
			}
			w.older.Add(1)
			var p Page
			if p, err = f.pageFromDatabase(ctx, w, s, r); err == nil {
				return f.answered(p, nil)
			}
		}
		if !errors.Is(err, errDropped) {
			return f.answered(Page{}, err)
		}
	}
	return f.answered(f.pageFromDatabase(ctx, nil, nil, r))
}

// attemptsMax is how often a request looks for another window after one was removed.
const attemptsMax = 3

// answered counts an answer from the database and says what kind of error err is.
func (f *Feed) answered(p Page, err error) (Page, error) {
	switch {
	case err == nil:
		f.counters.databasePages.Add(1)
		p.Envelope = f.cfg.Envelope
		return p, nil
	case errors.Is(err, ErrCursor), errors.Is(err, param.ErrValue):
		return Page{}, err
	case errors.Is(err, ErrCounting):
	case errors.Is(err, coalesce.ErrFull) || errors.Is(err, queue.ErrOverloaded) || errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", ErrBusy, err)
	}
	f.counters.refused.Add(1)
	return Page{}, err
}

// complete fills in the default of a request and validates it.
func (f *Feed) complete(r *Request) error {
	if r.Limit == 0 {
		r.Limit = f.cfg.Limit
	}
	switch {
	case r.Limit < 1 || r.Limit > f.cfg.LimitMax:
		return fmt.Errorf("%w: limit must be 1 to %d", ErrRequest, f.cfg.LimitMax)
	case r.Offset < 0 || r.Offset > f.cfg.OffsetMax:
		return fmt.Errorf("%w: offset must be 0 to %d", ErrRequest, f.cfg.OffsetMax)
	case r.Before != "" && r.Offset != 0:
		return fmt.Errorf("%w: give offset or before, not both", ErrRequest)
	case len(r.Args) != len(f.cfg.Params):
		return fmt.Errorf("%w: %d parameters where the feed has %d", ErrRequest, len(r.Args), len(f.cfg.Params))
	}
	return nil
}

// pageFromDatabase reads the page that r asks for, because s, the rows of its window, ends before. w and s are nil if its value
// has no window. Then requests for nearby offsets share one statement.
func (f *Feed) pageFromDatabase(ctx context.Context, w *window, s *snapshot, r Request) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	var name string
	var args []string
	if w != nil {
		name, args = w.name, w.args
	} else {
		name, args = string(param.AppendArgs(nil, r.Args)), param.CloneArgs(r.Args)
	}
	if f.pauses.Has(name) {
		return Page{}, ErrPaused
	}
	var at location // the page follows this row and
	var passed int  // as many rows of the result
	after, known, err := f.follows(s, &r)
	switch {
	case known:
		at.after = after
	case w == nil && r.Offset > f.cfg.Window:
		err = fmt.Errorf("%w: more values of the parameters are in use than windows are kept; use next", ErrCounting)
	case w == nil:
		passed = r.Offset
	default:
		at, err = w.locate(ctx, s, r.Offset)
	}
	if err != nil {
		return Page{}, err
	}
	if at.end {
		return Page{Source: FromDatabase, ReadAt: s.readAt, CountedAt: at.readAt}, nil
	}
	q := Range{Args: args, After: at.after, Skip: at.skip, Limit: passed + r.Limit + 1}
	first := w == nil && r.Before == ""
	if first {
		q.Limit = 1 << bits.Len(uint(q.Limit-1)) // at least as many, so that requests for other pages share the statement
	}
	key := string(pageName(nil, q.Args, q))
	got, _, err := f.pages.DoClass(ctx, name, key, f.reading(ctx, key, q))
	if err != nil {
		return Page{}, err
	}
	if first {
		f.mu.Lock()
		f.admission.count(f.hash(name)) // a value without a window
		f.mu.Unlock()
	}
	p, err := f.cut(got, passed, r.Limit)
	p.CountedAt = at.readAt
	return p, err
}

// follows returns the key of the row before the page that r asks for, if that is known. s may be nil.
func (f *Feed) follows(s *snapshot, r *Request) (after Key, known bool, err error) {
	switch {
	case r.Before != "":
		after, err = parseCursor(r.Before, f.fingerprint, len(f.cfg.Key))
	case s == nil || r.Offset > s.rows.Len():
		return "", false, nil
	case r.Offset > 0:
		after = s.rows.Keys[r.Offset-1] // exact: the row before is in the window
	}
	return after, true, err
}

// cut returns the page of up to limit rows from start in what was read. One more row was
// asked for: it shows that a next page exists.
func (f *Feed) cut(got *Rows, start, limit int) (Page, error) {
	start = min(start, got.Len())
	end := min(start+limit, got.Len())
	p := Page{Data: got.Slice(start, end), Rows: end - start, Source: FromDatabase, ReadAt: got.ReadAt}
	if len(p.Data) < len(got.Data)/2 {
		p.Data = bytes.Clone(p.Data) // a slow client must not keep the other rows
	}
	if end < got.Len() && end > start {
		last := got.Keys[end-1]
		if !cursorFits(last, f.cfg.CursorMax) {
			return Page{}, ErrLongKeys
		}
		p.Next = string(appendCursor(nil, f.fingerprint, last))
	}
	return p, nil
}

// reading returns the function that reads rows, which have a ReadAt. Identical requests share its statement. ctx must have a deadline. A
// request is refused as soon as it is predicted to miss it; the statement is cancelled when the last one has left.
func (f *Feed) reading(ctx context.Context, _ string, q Range) func(context.Context) (*Rows, error) {
	end, _ := ctx.Deadline()
	return func(ctx context.Context) (*Rows, error) {
		left := time.Until(end)
		// A statement that had to wait for others of its value may have too little time.
		if left < f.cfg.Timeout*3/4 && left < f.cfg.Gate.PredictedWait() {
			return nil, ErrBusy
		}
		leave, err := f.cfg.Gate.Enter(ctx, max(left, 1))
		if err != nil {
			return nil, err
		}
		defer leave()
		rows, begin := new(Rows), time.Now()
		err = f.source.Read(ctx, q, rows)
		f.pages.Took(time.Since(begin), err)
		if err != nil {
			return nil, fmt.Errorf("read page: %w", err)
		}
		rows.ReadAt = readAt(begin, rows.ReadAt)
		return rows, nil
	}
}

// pageName appends the key that identical statements share to b. The arguments of q are args.
func pageName(b []byte, args []string, q Range) []byte {
	b = param.AppendArgs(b, args)
	b = append(append(b, byte(len(q.After)>>8), byte(len(q.After))), q.After...)
	b = binary.AppendUvarint(b, uint64(q.Skip))
	return binary.AppendUvarint(b, uint64(q.Limit))
}
