package feed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"spillway/internal/serve/param"
)

// Definition is the part of a feed's configuration that its Source needs: one SELECT, and
// the columns of its result that order it. An adapter turns it into statements of its
// dialect.
type Definition struct {
	Name   string      // the feed's path, for messages, metrics and cursors
	SQL    string      // a SELECT without ORDER BY and LIMIT; parameters as :name
	Key    []KeyColumn // at least one; together unique and NOT NULL
	Params []Param     // in the order of Range.Args

	RFC3339       bool // timestamps in UTC with Z and a fixed number of digits
	NumbersAsText bool // decimals and integers of 64 bits as strings
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

// Param is a named, typed parameter of the feed's statement.
type Param = param.Param

// ParamType says how a parameter's text is checked and passed. A Source receives canonical
// texts.
type ParamType = param.Type

// The parameter types.
const (
	Text      = param.Text
	Integer   = param.Integer
	Real      = param.Real
	Boolean   = param.Boolean
	Timestamp = param.Timestamp
	UUID      = param.UUID
)

// Range is a run of rows in the feed's order.
type Range struct {
	Args  []string // one argument (param.Argument) for each of Definition.Params
	After Key      // only rows after this key; "": from the first row
	Until Key      // up to and including this key; "": to the end
	Skip  int      // rows to skip at the start; keep it small, the database reads them
	Limit int      // rows at most; always > 0
}

// Source reads a feed's rows from a database. Its methods may be called concurrently. An
// error caused by the request's key, such as a forged cursor, wraps ErrCursor, and one caused
// by the values of Range.Args param.ErrValue. Other errors are the database's.
type Source interface {
	// Read appends the rows of r to rows, first row first.
	Read(ctx context.Context, r Range, rows *Rows) error
	// Keys counts the rows of r. It returns the count, the key of each every-th row (the
	// every-th, the 2*every-th, ...) and the key of the last row. It reads only key columns.
	Keys(ctx context.Context, r Range, every int) (Walk, error)
	// Check has the database explain the statements for a window of that many rows. If a
	// table of more than 10,000 rows would be sorted or scanned, the error names the index
	// to add. Every error names the feed.
	Check(ctx context.Context, window int) error
}

// Described is a source that knows its columns from its check on.
type Described interface {
	Source
	// Columns returns the columns of the rows; nil if they are not known yet.
	Columns() []Column
}

// Walk is the result of Source.Keys.
type Walk struct {
	Keys  []Key // the key of each every-th row
	Last  Key   // the key of the last row; "" if there was none
	Count int   // rows

	ReadAt time.Time // as in Rows
}

// Rows are rows of a feed as JSON objects.
type Rows struct {
	Data []byte // the objects, joined by commas
	Ends []int  // Ends[i] is the end of row i in Data
	Keys []Key  // Keys[i] is the key of row i

	// ReadAt is a time that the rows are no older than; zero: the start of the read.
	ReadAt time.Time
}

// Len returns the number of rows.
func (r *Rows) Len() int { return len(r.Ends) }

// Reset empties r and keeps its memory.
func (r *Rows) Reset() {
	r.Data, r.Ends, r.Keys, r.ReadAt = r.Data[:0], r.Ends[:0], r.Keys[:0], time.Time{}
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

// Begin starts a row. The source then appends one JSON object to r.Data and calls End.
func (r *Rows) Begin() {
	if len(r.Ends) > 0 {
		r.Data = append(r.Data, ',')
	}
}

// End closes the row that Begin started, with its key.
func (r *Rows) End(key Key) {
	r.Ends = append(r.Ends, len(r.Data))
	r.Keys = append(r.Keys, key)
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
