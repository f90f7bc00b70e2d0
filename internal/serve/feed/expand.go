package feed

import (
	"context"
	"fmt"
	"slices"

	"spillway/internal/plans"
	"spillway/internal/serve/param"
)

// expanded is a source with lists on a database that has no arrays: one source for each of
// param.Expand's statements. All have the same tables and columns.
type expanded struct {
	def     Definition
	sources []Source
}

// Expand returns a source on a database that has no arrays. open returns the one of a
// definition without lists.
func Expand(def Definition, d plans.Dialect, open func(Definition) (Source, error)) (Source, error) {
	expansions, err := param.Expand(def.SQL, d, def.Params)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", &def, err)
	}
	e := &expanded{def: def}
	for _, expansion := range expansions {
		of := def
		of.SQL, of.Params = expansion.SQL, expansion.Params
		source, err := open(of)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", &def, err)
		}
		e.sources = append(e.sources, source)
	}
	if !slices.ContainsFunc(def.Params, func(p param.Param) bool { return p.ListMax > 0 }) {
		return e.sources[0], nil
	}
	return e, nil
}

// source returns the source for the arguments of r, and r with the arguments for it.
func (e *expanded) source(r Range) (Source, Range, error) {
	n, args, err := param.ExpandArguments(e.def.Params, r.Args)
	if err != nil {
		return nil, r, fmt.Errorf("%s: %w", &e.def, err)
	}
	r.Args = args
	return e.sources[n], r, nil
}

// Read implements Source.
func (e *expanded) Read(ctx context.Context, r Range, rows *Rows) error {
	source, r, err := e.source(r)
	if err != nil {
		return err
	}
	return source.Read(ctx, r, rows)
}

// Keys implements Source.
func (e *expanded) Keys(ctx context.Context, r Range, every int) (Walk, error) {
	source, r, err := e.source(r)
	if err != nil {
		return Walk{}, err
	}
	return source.Keys(ctx, r, every)
}

// Check implements Source, for the shortest and the longest lists.
func (e *expanded) Check(ctx context.Context, window int) error {
	if err := e.sources[0].Check(ctx, window); err != nil || len(e.sources) == 1 {
		return err
	}
	return e.sources[len(e.sources)-1].Check(ctx, window)
}

// Columns implements Source.
func (e *expanded) Columns() []Column {
	for _, source := range e.sources {
		if columns := source.Columns(); columns != nil {
			return columns
		}
	}
	return nil
}
