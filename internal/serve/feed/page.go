package feed

import (
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/cespare/xxhash/v2"

	"spillway/internal/serve/compress"
)

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
	Cached   CachedPage

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
