package query

import (
	"context"

	"spillway/internal/serve/param"
)

// Definition is what a query asks: one SELECT with named, typed parameters. It is
// the part of a query's configuration that its Source needs.
type Definition struct {
	Name   string // the query's path, for messages, metrics and cache keys
	SQL    string // a SELECT; parameters as :name
	Params []param.Param
}

// Source runs a query's statement. Its methods may be called concurrently.
type Source interface {
	// Run appends the statement's rows to rows, in the order that the database
	// gives them. args are the canonical texts of Definition.Params, in their
	// order. It stops with an error that wraps ErrTooLarge at the row that goes over
	// limit. When ctx ends the statement is cancelled in the database.
	Run(ctx context.Context, args []string, limit Limit, rows *Rows) error
}

// Limit bounds a result.
type Limit struct {
	Rows  int
	Bytes int // of the encoded rows
}

// Rows are encoded rows.
type Rows struct {
	Data  []byte // JSON objects, commas between them
	Count int
}

// Begin starts a row: the source then appends one JSON object to Data and calls End.
func (r *Rows) Begin() {
	if r.Count > 0 {
		r.Data = append(r.Data, ',')
	}
}

// End closes the row that Begin started. It returns an error that wraps
// ErrTooLarge when the rows are over the limit.
func (r *Rows) End(limit Limit) error {
	r.Count++
	switch {
	case r.Count > limit.Rows:
		return tooLarge("rows_max", limit.Rows, "rows")
	case len(r.Data) > limit.Bytes:
		return tooLarge("bytes_max", limit.Bytes, "bytes")
	}
	return nil
}

// Reset empties r and keeps its memory.
func (r *Rows) Reset() { r.Data, r.Count = r.Data[:0], 0 }
