package feed

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"time"
	"weak"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/coalesce"
	"spillway/internal/serve/compress"
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

// From is the origin of a page's rows.
type From uint8

// The origins of a page.
const (
	FromWindow   From = iota // the window's snapshot
	FromDatabase             // a statement of its own
)

// Page is some of a feed's rows, newest first.
type Page struct {
	Data     []byte    // the rows as JSON objects, commas between them; not to be changed
	Rows     int       // how many
	Next     string    // the cursor for the rows that follow; "" when there are none
	Source   From      //
	Envelope Envelope  // what Append writes around the rows
	ReadAt   time.Time // the rows are no older than this

	// CountedAt is the time of the oldest count that was used to find an offset beyond the
	// window. It is zero if the offset is exact.
	CountedAt time.Time

	Rendered *Rendered // of the window's first page in its default size; else nil

	tag      uint64     // what Tag returns, if it is known already; else 0
	selected *selection // of its fields; nil: all
}

// Rendered is a page as it is sent. A snapshot renders its first page once, because most
// requests ask for it.
type Rendered struct {
	Body []byte // what Page.Append appends; not to be changed
	ETag []byte // what AppendETag appends; not to be changed

	Forms compress.Forms // Body compressed
}

// Envelope is the JSON around the rows of an answer.
type Envelope uint8

// The envelopes.
const (
	EnvelopeData Envelope = iota // {"data":[ROWS],"next":"CURSOR"}
	EnvelopeNone                 // [ROWS]; the caller sends the cursor
	EnvelopeCode                 // {"return_code":"SUCCESS","data":[ROWS],"next":"CURSOR"}, FAIL without rows
	EnvelopeOne                  // ROW, of an answer with one row
)

// What Page.Append writes instead of the envelope's end if there is a next page.
const (
	pageNext = `],"next":"`
	pageEnd  = `"}`
)

// around returns what is written before and behind the rows, and whether the next page's
// cursor is part of it.
func (p *Page) around() (open, end string, next bool) {
	switch {
	case p.Envelope == EnvelopeNone:
		return "[", "]", false
	case p.Envelope == EnvelopeOne:
		return "", "", false
	case p.Envelope == EnvelopeData:
		return `{"data":[`, `]}`, p.Next != ""
	case p.Rows == 0:
		return `{"return_code":"FAIL","data":[`, `]}`, false
	}
	return `{"return_code":"SUCCESS","data":[`, `]}`, p.Next != ""
}

// NewPage returns the page of a whole result: its rows as JSON objects with commas between
// them, how many they are, and their xxhash.
func NewPage(data []byte, rows int, hash uint64, e Envelope) Page {
	p := Page{Data: data, Rows: rows, Envelope: e}
	p.tag = p.tagOf(hash)
	return p
}

// tagOf returns the hash of the page's content from that of its rows. It depends on the
// envelope, so that a client that has rows in another one gets them again.
func (p *Page) tagOf(rows uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15
	return rows ^ (xxhash.Sum64String(p.Next)*31 + 1) ^ (uint64(p.Envelope)+1)*odd
}

// Append appends the page as JSON.
func (p *Page) Append(dst []byte) []byte {
	open, end, next := p.around()
	dst = append(dst, open...)
	if p.selected == nil {
		dst = append(dst, p.Data...)
	} else {
		rows := projection{fields: p.selected.fields, rows: p.Data}
		for piece := rows.next(); piece != nil; piece = rows.next() {
			dst = append(dst, piece...)
		}
	}
	if !next {
		return append(dst, end...)
	}
	return append(append(append(dst, pageNext...), p.Next...), pageEnd...) // base64url: needs no escaping
}

// AppendFrame appends what Append puts around the rows of a page, and returns where in dst
// the rows belong.
func (p *Page) AppendFrame(dst []byte) (frame []byte, rowsAt int) {
	open, _, _ := p.around()
	bare := *p
	bare.Data = nil
	return bare.Append(dst), len(dst) + len(open)
}

// Size returns how many bytes Append appends.
func (p *Page) Size() int {
	open, end, next := p.around()
	size := len(open) + len(p.Data)
	if p.selected != nil {
		size = len(open) + p.selected.size
	}
	if next {
		return size + len(pageNext) + len(p.Next) + len(pageEnd)
	}
	return size + len(end)
}

// Tag returns a hash of the page's content, equal on every replica for equal content.
func (p *Page) Tag() uint64 {
	if p.tag != 0 {
		return p.tag
	}
	return p.tagOf(xxhash.Sum64(p.Data))
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
// takes no lock and allocates nothing. Errors wrap ErrRequest, ErrCursor or param.ErrValue
// (the client's mistake), or ErrBusy, ErrCounting or ErrUnavailable (retry later), or
// ErrLongKeys. Others are the database's.
func (f *Feed) Page(ctx context.Context, now time.Time, r Request) (Page, error) {
	if r.Limit == 0 {
		r.Limit = f.cfg.Limit
	}
	if err := f.check(&r); err != nil {
		return Page{}, err
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
			if start, known := f.start(s, &r); known {
				if p, ok := s.page(start, r.Limit); ok {
					w.hits.Add(1)
					return p, nil
				}
			}
			w.older.Add(1)
			var p Page
			if p, err = f.olderPage(ctx, w, s, r); err == nil {
				return f.answered(p, nil)
			}
		}
		if !errors.Is(err, errDropped) {
			return f.answered(Page{}, err)
		}
	}
	return f.answered(f.outsidePage(ctx, r))
}

// Held returns the page that r asks for if a window holds it and it has at most bytes bytes. Otherwise nothing is counted, and
// Page will tell. It does not wait.
func (f *Feed) Held(now time.Time, r Request, bytes int) (Page, Hit, bool) {
	if r.Limit == 0 {
		r.Limit = f.cfg.Limit
	}
	if f.check(&r) != nil {
		return Page{}, Hit{}, false
	}
	var room [128]byte
	w := (*f.windows.Load())[string(appendArgs(room[:0], r.Args))]
	if w == nil {
		return Page{}, Hit{}, false
	}
	s := w.current.Load()
	if s == nil || s.parked || w.tooOld(s, now) {
		return Page{}, Hit{}, false
	}
	start, known := f.start(s, &r)
	if !known {
		return Page{}, Hit{}, false
	}
	p, ok := s.page(start, r.Limit)
	if !ok || p.Size() > bytes {
		return Page{}, Hit{}, false
	}
	w.hit(now)
	return p, Hit{w, s}, true
}

// hit counts a request that the window answers.
func (w *window) hit(now time.Time) {
	w.ask(now)
	w.hits.Add(1)
}

// Hit is where Held has found a page. It keeps the rows in memory.
type Hit struct {
	window   *window
	snapshot *snapshot
}

// Held is a Hit that does not keep the rows in memory. The zero value is none.
type Held struct {
	window   weak.Pointer[window]
	snapshot weak.Pointer[snapshot]
	until    time.Time
}

// Hold returns the Held of a hit at now. The zero Hit has none.
func (h Hit) Hold(now time.Time) Held {
	if h.window == nil {
		return Held{}
	}
	read := h.snapshot.readAt
	age := max(now.Sub(read), 0).Truncate(time.Second)
	until := min(age+time.Second, h.window.feed.cfg.StaleMax)
	return Held{weak.Make(h.window), weak.Make(h.snapshot), read.Add(until)}
}

// Again reports whether Feed.Held still finds the same page at now, of the same age in whole seconds, and counts a request if so.
func (h *Held) Again(now time.Time) bool {
	if !now.Before(h.until) {
		return false
	}
	w, s := h.window.Value(), h.snapshot.Value()
	if w == nil || s == nil || w.current.Load() != s {
		return false
	}
	w.hit(now)
	return true
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

// pageRead is rows read from the database, shared by requests.
type pageRead struct {
	rows   Rows
	readAt time.Time
}

// olderPage reads a page beyond the window, by key.
func (f *Feed) olderPage(ctx context.Context, w *window, s *snapshot, r Request) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	at := location{}
	switch {
	case r.Before != "":
		var err error
		if at.after, err = parseCursor(r.Before, f.fingerprint, len(f.cfg.Key)); err != nil {
			return Page{}, err
		}
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
	got, err := f.read(ctx, w.name, Range{Args: w.args, After: at.after, Skip: at.skip, Limit: r.Limit + 1})
	if err != nil {
		return Page{}, err
	}
	p, err := f.cut(got, 0, r.Limit)
	p.CountedAt = at.readAt
	return p, err
}

// outsidePage reads a page for a value that has no window. Requests for nearby offsets share
// one statement.
func (f *Feed) outsidePage(ctx context.Context, r Request) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	name, q := string(appendArgs(nil, r.Args)), Range{Args: cloneArgs(r.Args)}
	if r.Before != "" {
		var err error
		if q.After, err = parseCursor(r.Before, f.fingerprint, len(f.cfg.Key)); err != nil {
			return Page{}, err
		}
		q.Limit = r.Limit + 1
		got, err := f.read(ctx, name, q)
		if err != nil {
			return Page{}, err
		}
		return f.cut(got, 0, r.Limit)
	}
	if r.Offset > f.cfg.Window {
		return Page{}, fmt.Errorf("%w: more values of the parameters are in use than windows are kept; use next", ErrCounting)
	}
	q.Limit = roundRows(r.Offset + r.Limit + 1)
	got, err := f.read(ctx, name, q)
	if err != nil {
		return Page{}, err
	}
	f.countOutside(name)
	return f.cut(got, r.Offset, r.Limit)
}

// roundRows returns the power of two that is at least n, so that requests for other pages
// share a statement.
func roundRows(n int) int { return 1 << bits.Len(uint(n-1)) }

// cut returns the page of up to limit rows from start in what was read. One more row was
// asked for: it shows that a next page exists.
func (f *Feed) cut(got *pageRead, start, limit int) (Page, error) {
	start = min(start, got.rows.Len())
	end := min(start+limit, got.rows.Len())
	p := Page{Data: got.rows.Slice(start, end), Rows: end - start, Source: FromDatabase, ReadAt: got.readAt}
	if len(p.Data) < len(got.rows.Data)/2 {
		p.Data = bytes.Clone(p.Data) // a slow client must not keep the other rows
	}
	if end < got.rows.Len() && end > start {
		last := got.rows.Keys[end-1]
		if !cursorFits(last, f.cfg.CursorMax) {
			return Page{}, ErrLongKeys
		}
		p.Next = string(appendCursor(nil, f.fingerprint, last))
	}
	return p, nil
}

// read reads rows for the value of that name and shares the statement with identical
// requests. ctx must have a deadline. A request is refused as soon as it is predicted to miss
// it; the statement is cancelled when the last one has left.
func (f *Feed) read(ctx context.Context, name string, q Range) (*pageRead, error) {
	end, _ := ctx.Deadline()
	got, _, err := f.pages.DoClass(ctx, name, pageName(q), func(ctx context.Context) (*pageRead, error) {
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
		read := &pageRead{readAt: time.Now()}
		if err := f.source.Read(ctx, q, &read.rows); err != nil {
			return nil, fmt.Errorf("read page: %w", err)
		}
		read.readAt = readAt(read.readAt, read.rows.ReadAt)
		return read, nil
	})
	return got, err
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
