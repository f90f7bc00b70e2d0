package feed

import "github.com/cespare/xxhash/v2"

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
