package feed

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Columns are the names of a statement's output columns, in the order of its rows.
type Columns []string

// Fields are the columns that a request selects. The zero value is all of them.
type Fields struct {
	labels map[string]bool // their names as JSON strings
	list   string          // their names, once each, with commas between them
}

// All reports whether all columns are selected.
func (f Fields) All() bool { return f.labels == nil }

// String returns the names of the selected columns, once each, as Select reads them.
func (f Fields) String() string { return f.list }

// Select returns the fields that lists name: names of columns with commas between them. Empty
// lists select all columns, and repeated names count once. The error wraps ErrRequest and
// contains the known names.
func (c Columns) Select(lists ...string) (Fields, error) {
	var f Fields
	for _, list := range lists {
		if list == "" {
			continue
		}
		for name := range strings.SplitSeq(list, ",") {
			if !slices.Contains(c, name) {
				return Fields{}, fmt.Errorf("%w: fields contains %.80q; the known fields are %s", ErrRequest, name, strings.Join(c, ","))
			}
			label := string(AppendString(nil, []byte(name)))
			if f.labels[label] {
				continue
			}
			if f.labels == nil {
				f.labels, f.list = make(map[string]bool), name
			} else {
				f.list += "," + name
			}
			f.labels[label] = true
		}
	}
	return f, nil
}

// selection is the part of a page's rows that is sent.
type selection struct {
	fields Fields
	size   int // bytes of the rows with only these fields
}

// Select restricts the page to some fields. The page still shares the memory of all its
// fields: what is sent is read from there.
func (p *Page) Select(f Fields) {
	if f.All() {
		return
	}
	p.Rendered, p.selected = nil, &selection{fields: f}
	hash := xxhash.New()
	rows := projection{fields: f, rows: p.Data}
	for piece := rows.next(); piece != nil; piece = rows.next() {
		p.selected.size += len(piece)
		_, _ = hash.Write(piece) // cannot fail
	}
	p.tag = p.tagOf(hash.Sum64())
}

// Selected reports whether the page is restricted to some fields.
func (p *Page) Selected() bool { return p.selected != nil }

// Reader returns a reader of what Append appends. It holds no copy of the rows.
func (p *Page) Reader() io.Reader {
	frame, rowsAt := p.AppendFrame(nil)
	r := &pageReader{piece: frame[:rowsAt], rows: projection{rows: p.Data}, end: frame[rowsAt:]}
	if p.selected != nil {
		r.rows.fields = p.selected.fields
	}
	return r
}

// pageReader reads a page piece by piece.
type pageReader struct {
	piece []byte // what is left of the current one
	rows  projection
	end   []byte // behind the rows
}

func (r *pageReader) Read(b []byte) (int, error) {
	if len(r.piece) == 0 {
		r.piece = r.rows.next()
	}
	if len(r.piece) == 0 {
		r.piece, r.end = r.end, nil
	}
	if len(r.piece) == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	n := copy(b, r.piece)
	r.piece = r.piece[n:]
	return n, nil
}

// projection removes fields from encoded rows: JSON objects with commas between them, without
// white space around their braces and names, as the sources write them. It does not check
// them: whatever the rows are, the result is not longer.
type projection struct {
	fields Fields
	rows   []byte // what is left
	inside bool   // of an object
	some   bool   // the result has a field of this object
}

// next returns the next piece of the result, which shares the memory of the rows; nil at the
// end.
func (p *projection) next() []byte {
	if p.fields.All() {
		return p.take(len(p.rows))
	}
	for len(p.rows) > 0 {
		if !p.inside || p.rows[0] == '}' {
			p.inside, p.some = p.rows[0] == '{', false
			return p.take(1)
		}
		name := 0
		if p.rows[0] == ',' {
			name = 1
		}
		colon := stringEnd(p.rows, name)
		end := valueEnd(p.rows, colon)
		if !p.fields.labels[string(p.rows[name:colon])] {
			p.take(end)
			continue
		}
		if !p.some {
			p.some = true
			return p.take(end)[name:]
		}
		return p.take(end)
	}
	return nil
}

// take returns the next n bytes; nil for none.
func (p *projection) take(n int) []byte {
	if n == 0 {
		return nil
	}
	taken := p.rows[:n]
	p.rows = p.rows[n:]
	return taken
}

// stringEnd returns the position behind the JSON string that begins at i.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// valueEnd returns the position behind the JSON value that begins at i, or one byte before:
// that of the comma or the brace which follows.
func valueEnd(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = stringEnd(b, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return i
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}
