package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/serve/param"
)

// Definition is the part of a feed's or a query's configuration that its Source needs: one
// SELECT, and of a feed the columns of its result that order it. A query is a feed without a
// key: its statement runs as it is, with its own order. An adapter turns a feed's into
// statements of its dialect.
type Definition struct {
	Name   string        // the path, for messages, metrics, cursors and cache keys
	SQL    string        // a SELECT, of a feed without ORDER BY and LIMIT; parameters as :name
	Key    []KeyColumn   // of a feed: at least one; together unique and NOT NULL
	Params []param.Param // in the order of Range.Args

	RFC3339       bool // timestamps in UTC with Z and a fixed number of digits
	NumbersAsText bool // decimals and integers of 64 bits as strings

	Plans *PlanLog // gets the plans that Source.Check finds; nil: nobody wants them
}

// IsQuery reports whether d has no key.
func (d *Definition) IsQuery() bool { return len(d.Key) == 0 }

// String names the feed or the query in errors.
func (d *Definition) String() string {
	if d.IsQuery() {
		return "query " + d.Name
	}
	return "feed " + d.Name
}

// KeyPositions returns where the columns of the key are among the columns of a result.
func (d *Definition) KeyPositions(columns []string) ([]int, error) {
	var positions []int
	for _, k := range d.Key {
		i := slices.Index(columns, k.Name)
		if i < 0 {
			return nil, fmt.Errorf("the key column %q is not an output column; the statement yields %s", k.Name, strings.Join(columns, ", "))
		}
		positions = append(positions, i)
	}
	return positions, nil
}

// Labels returns the text before each value of a row's JSON object: {"id": or ,"name":
func Labels(columns []string) [][]byte {
	labels := make([][]byte, len(columns))
	for i, name := range columns {
		label := []byte{','}
		if i == 0 {
			label = []byte{'{'}
		}
		labels[i] = append(AppendString(label, []byte(name)), ':')
	}
	return labels
}

// CheckFilters returns an error if a filter is not one of the output columns.
func (d *Definition) CheckFilters(columns []string) error {
	for _, p := range d.Params {
		if p.Filter && !slices.Contains(columns, p.Name) {
			return fmt.Errorf("the filter %s is not among the columns that the statement selects", p.Name)
		}
	}
	return nil
}

// EachFilter calls check with -1, and with the position of each filter in Params, until it
// returns an error. The error names the filter.
func (d *Definition) EachFilter(check func(position int) error) error {
	if err := check(-1); err != nil {
		return err
	}
	for i, p := range d.Params {
		if !p.Filter {
			continue
		}
		if err := check(i); err != nil {
			return fmt.Errorf("with the filter %s: %w", p.Name, err)
		}
	}
	return nil
}

// KeyColumn is one output column of the feed's statement that orders it.
type KeyColumn struct {
	Name      string
	Ascending bool // false: the largest value first
}

// Range is a run of rows in the feed's order. A query has all its rows: it has only Args.
type Range struct {
	Args  []string // one argument (param.Argument) for each of Definition.Params
	After Key      // only rows after this key; "": from the first row
	Until Key      // up to and including this key; "": to the end
	Skip  int      // rows to skip at the start; keep it small, the database reads them
	Limit int      // rows at most; always > 0
}

// Source reads the rows of a feed or a query from a database. Its methods may be called
// concurrently. An error caused by the request's key, such as a forged cursor, wraps ErrCursor,
// and one caused by the values of Range.Args param.ErrValue. Other errors are the database's.
// Every error names the feed or the query.
type Source interface {
	Reader
	// Keys counts the rows of r. It returns the count, the key of each every-th row (the
	// every-th, the 2*every-th, ...) and the key of the last row. It reads only key columns.
	Keys(ctx context.Context, r Range, every int) (Walk, error)
	// Check has the database explain the statements for a window of that many rows. If a
	// table of more than 10,000 rows would be sorted or scanned, the error names the index
	// to add. The statement of a query is only prepared.
	Check(ctx context.Context, window int) error
	// Columns returns the columns of the rows; nil if they are not known yet. They are after
	// Check.
	Columns() []Column
}

// Reader is the part of a Source that a query needs.
type Reader interface {
	// Read appends the rows of r to rows, first row first. An error leaves rows unchanged.
	// When ctx ends, the statement is cancelled in the database.
	Read(ctx context.Context, r Range, rows *Rows) error
}

// Walk is the result of Source.Keys.
type Walk struct {
	Keys  []Key // the key of each every-th row
	Last  Key   // the key of the last row; "" if there was none
	Count int   // rows

	ReadAt time.Time // as in Rows
}

// Rows are rows as JSON objects. Only those of a feed have keys.
type Rows struct {
	Data []byte // the objects, joined by commas
	Ends []int  // of a feed: Ends[i] is the end of row i in Data
	Keys []Key  // of a feed: Keys[i] is the key of row i

	// Limit bounds the rows of a query. At the first row beyond it, Read ends with an error
	// that wraps ErrTooLarge.
	Limit Limit
	// Each, if it is not nil, takes each row of a query, which it must not keep; Data is empty
	// then. Its error ends Read. A source that starts again counts from 0 again.
	Each func(object []byte) error

	// ReadAt is a time that the rows are no older than; zero: the start of the read.
	ReadAt time.Time
	// Began is when the statement had a connection and began, also if it failed; zero: the start
	// of the read.
	Began time.Time

	count int
}

// Limit bounds the result of a query.
type Limit struct {
	Rows  int
	Bytes int // of the encoded rows
}

// ErrTooLarge means that a result exceeds Rows.Limit.
var ErrTooLarge = errors.New("the result is too large")

// Len returns the number of rows.
func (r *Rows) Len() int { return r.count }

// Reset empties r and keeps its memory.
func (r *Rows) Reset() {
	r.truncate(0, 0)
	r.ReadAt, r.Began = time.Time{}, time.Time{}
}

// Slice returns the bytes of rows i to j-1 with commas between them. They must not be
// changed.
func (r *Rows) Slice(i, j int) []byte {
	if i >= j {
		return nil
	}
	start := 0
	if i > 0 {
		start = r.Ends[i-1] + 1 // behind the comma
	}
	return r.Data[start:r.Ends[j-1]]
}

// Begin starts a row. One JSON object is then appended to r.Data, and End called.
func (r *Rows) Begin() {
	if len(r.Data) > 0 {
		r.Data = append(r.Data, ',')
	}
}

// End closes the row of a feed that Begin started, with its key.
func (r *Rows) End(key Key) {
	r.count++
	r.Ends = append(r.Ends, len(r.Data))
	r.Keys = append(r.Keys, key)
}

// EndUnkeyed closes the row of a query that Begin started. Its error ends the read.
func (r *Rows) EndUnkeyed() error {
	r.count++
	switch {
	case r.count > r.Limit.Rows:
		return fmt.Errorf("%w: more than %d rows (rows_max)", ErrTooLarge, r.Limit.Rows)
	case len(r.Data) > r.Limit.Bytes:
		return fmt.Errorf("%w: more than %d bytes (bytes_max)", ErrTooLarge, r.Limit.Bytes)
	case r.Each != nil:
		row := r.Data
		r.Data = r.Data[:0]
		return r.Each(row)
	}
	return nil
}

// truncate removes the rows from n on. They begin behind so many bytes.
func (r *Rows) truncate(n, bytes int) {
	r.Data, r.count = r.Data[:bytes], n
	if r.Keys != nil {
		r.Ends, r.Keys = r.Ends[:n], r.Keys[:n]
	}
}

// Column is one column of a statement's rows.
type Column struct {
	Name string
	JSON JSONType
	Null bool // rows may have null
}

// JSONType is the JSON form of the values of a column that are not null.
type JSONType string

// The JSON types.
const (
	JSONAny       JSONType = ""
	JSONInteger   JSONType = "integer"
	JSONNumber    JSONType = "number"
	JSONFloat     JSONType = "float" // a number, or NaN, Infinity or -Infinity as a string
	JSONBoolean   JSONType = "boolean"
	JSONFlag      JSONType = "flag" // true for 1, false for 0, and other integers as they are
	JSONString    JSONType = "string"
	JSONDate      JSONType = "date"
	JSONTimestamp JSONType = "timestamp" // RFC 3339
	JSONUUID      JSONType = "uuid"
	JSONBytes     JSONType = "bytes" // base64
	JSONArray     JSONType = "array"
)
