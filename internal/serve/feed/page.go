package feed

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/coalesce"
)

// Request asks for one page.
type Request struct {
	Args   []string // canonical texts (ParseParam) for Params, in their order
	Before string   // the cursor of the row before the page; "" for none
	Offset int      // rows skipped from the newest; 0 with Before
	Limit  int      // rows at most; 0 for the default
}

// From is the origin of a page's rows.
type From uint8

// The origins of a page.
const (
	FromWindow   From = iota // the window's snapshot
	FromDatabase             // a statement of its own
)

// Page is some of a feed's rows, newest first.
type Page struct {
	Data   []byte    // the rows as JSON objects, commas between them; not to be changed
	Rows   int       // how many
	Next   string    // the cursor for the rows that follow; "" when there are none
	Source From      //
	ReadAt time.Time // the rows are no older than this

	// CountedAt is the time of the oldest count that was used to find an offset beyond the
	// window. It is zero if the offset is exact.
	CountedAt time.Time

	Rendered *Rendered // of the window's first page in its default size; else nil

	tag uint64 // what Tag returns, if it is known already; else 0
}

// Rendered is a page as it is sent. A snapshot renders its first page once, because most
// requests ask for it.
type Rendered struct {
	Body []byte // what Page.Append appends; not to be changed
	ETag []byte // what AppendETag appends; not to be changed
}

// The JSON object around a page's rows.
const (
	pageOpen  = `{"return_code":"SUCCESS","data":[`
	pageNext  = `],"next":"`
	pageEnd   = `"}`
	pageLast  = `]}`
	pageEmpty = `{"return_code":"FAIL","data":[]}`
)

// Append appends the page as a JSON object.
func (p *Page) Append(dst []byte) []byte {
	if p.Rows == 0 {
		return append(dst, pageEmpty...)
	}
	dst = append(append(dst, pageOpen...), p.Data...)
	if p.Next == "" {
		return append(dst, pageLast...)
	}
	return append(append(append(dst, pageNext...), p.Next...), pageEnd...) // base64url: needs no escaping
}

// AppendFrame appends what Append puts around the rows of a page, which must have some, and
// returns where in dst the rows belong.
func (p *Page) AppendFrame(dst []byte) (frame []byte, rowsAt int) {
	bare := *p
	bare.Data = nil
	return bare.Append(dst), len(dst) + len(pageOpen)
}

// Size returns how many bytes Append appends.
func (p *Page) Size() int {
	switch {
	case p.Rows == 0:
		return len(pageEmpty)
	case p.Next == "":
		return len(pageOpen) + len(p.Data) + len(pageLast)
	}
	return len(pageOpen) + len(p.Data) + len(pageNext) + len(p.Next) + len(pageEnd)
}

// Tag returns a hash of the page's content, equal on every replica for equal content.
func (p *Page) Tag() uint64 {
	if p.tag != 0 {
		return p.tag
	}
	return xxhash.Sum64(p.Data) ^ (xxhash.Sum64String(p.Next)*31 + 1)
}

// AppendETag appends the entity tag of content with that hash.
func AppendETag(dst []byte, hash uint64) []byte {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], hash)
	dst = append(dst, '"')
	dst = hex.AppendEncode(dst, raw[:])
	return append(dst, '"')
}

// Page returns the page that r asks for. now is the request's time. A hit in the window
// takes no lock and allocates nothing. Errors wrap ErrRequest or ErrCursor (the client's
// mistake), or ErrBusy, ErrCounting or ErrUnavailable (retry later), or ErrLongKeys. Others
// are the database's.
func (f *Feed) Page(ctx context.Context, now time.Time, r Request) (Page, error) {
	if r.Limit == 0 {
		r.Limit = f.cfg.Limit
	}
	if err := f.check(&r); err != nil {
		return Page{}, err
	}
	w, err := f.window(r.Args, now)
	if err != nil {
		return Page{}, err
	}
	s, err := w.get(ctx, now)
	if err != nil && w.ctx.Err() != nil && f.base.Err() == nil {
		// The window was evicted during the wait: retry once.
		if w, err = f.window(r.Args, now); err == nil {
			s, err = w.get(ctx, now)
		}
	}
	if err != nil {
		f.counters.refused.Add(1)
		return Page{}, err
	}
	if start, known := f.start(s, &r); known {
		if p, ok := s.page(start, r.Limit); ok {
			f.counters.windowPages.Add(1)
			return p, nil
		}
	}
	p, err := f.older(ctx, w, s, r)
	switch {
	case err == nil:
		f.counters.databasePages.Add(1)
		return p, nil
	case errors.Is(err, ErrCursor):
		return Page{}, err
	case errors.Is(err, ErrCounting):
	case errors.Is(err, coalesce.ErrFull) || errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %w", ErrBusy, err)
	}
	f.counters.refused.Add(1)
	return Page{}, err
}

// check validates a request.
func (f *Feed) check(r *Request) error {
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

// start returns the position in s where the page begins, or false if it is outside of s.
func (f *Feed) start(s *snapshot, r *Request) (int, bool) {
	if r.Before == "" {
		return r.Offset, r.Offset < s.rows.Len() || !s.full
	}
	i, ok := s.cursors[r.Before]
	return i + 1, ok
}

// pageRead is a page read from the database, shared by identical requests.
type pageRead struct {
	rows   Rows
	readAt time.Time
}

// older reads a page beyond the window, by key.
func (f *Feed) older(ctx context.Context, w *window, s *snapshot, r Request) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	at := location{}
	switch {
	case r.Before != "":
		key, skip, err := parseCursor(r.Before, f.fingerprint, len(f.cfg.Key))
		if err != nil {
			return Page{}, err
		}
		at.after, at.skip = key, skip
	case r.Offset > 0 && r.Offset <= s.rows.Len():
		at.after = s.rows.Keys[r.Offset-1] // exact: the row before is in the window
	case r.Offset > 0:
		var err error
		if at, err = w.locate(ctx, s, r.Offset); err != nil {
			return Page{}, err
		}
		if at.end {
			return Page{Source: FromDatabase, ReadAt: s.readAt, CountedAt: at.readAt}, nil
		}
	}
	p, err := f.read(ctx, Range{Args: w.args, After: at.after, Skip: at.skip, Limit: r.Limit + 1})
	p.CountedAt = at.readAt
	return p, err
}

// read reads one page and shares the statement with identical requests. q.Limit is one more
// than the page's rows: the additional row shows that a next page exists.
func (f *Feed) read(ctx context.Context, q Range) (Page, error) {
	// Each caller waits at most Timeout. The statement is cancelled when the last one has left.
	got, _, err := f.pages.Do(ctx, pageName(q), func(ctx context.Context) (*pageRead, error) {
		if err := f.cfg.Gate.enter(ctx); err != nil {
			return nil, err
		}
		defer f.cfg.Gate.leave()
		read := &pageRead{readAt: time.Now()}
		if err := f.source.Read(ctx, q, &read.rows); err != nil {
			return nil, fmt.Errorf("read page: %w", err)
		}
		return read, nil
	})
	if err != nil {
		return Page{}, err
	}
	n := min(got.rows.Len(), q.Limit-1)
	p := Page{Data: got.rows.Slice(0, n), Rows: n, Source: FromDatabase, ReadAt: got.readAt}
	if got.rows.Len() > n && n > 0 {
		if p.Next = f.next(q, got.rows.Keys[:n]); p.Next == "" {
			return Page{}, ErrLongKeys
		}
	}
	return p, nil
}

// next returns the cursor of the last row of a page that q has read, with those keys; "" if
// there is none.
func (f *Feed) next(q Range, keys []Key) string {
	for i := len(keys) - 1; i >= 0; i-- {
		if cursorFits(keys[i], f.cfg.CursorMax) {
			return string(appendSkip(nil, f.fingerprint, keys[i], len(keys)-1-i))
		}
	}
	if !cursorFits(q.After, f.cfg.CursorMax) {
		return ""
	}
	return string(appendSkip(nil, f.fingerprint, q.After, q.Skip+len(keys)))
}

// pageName returns the key that identical statements share.
func pageName(q Range) string {
	b := appendArgs(make([]byte, 0, 64), q.Args)
	b = append(append(b, byte(len(q.After)>>8), byte(len(q.After))), q.After...)
	b = binary.AppendUvarint(b, uint64(q.Skip))
	b = binary.AppendUvarint(b, uint64(q.Limit))
	return string(b)
}

// appendArgs appends an unambiguous encoding of args.
func appendArgs(dst []byte, args []string) []byte {
	for _, a := range args {
		dst = binary.AppendUvarint(dst, uint64(len(a)))
		dst = append(dst, a...)
	}
	return dst
}
