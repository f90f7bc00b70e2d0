package feed

import (
	"context"
	"fmt"
	"slices"

	"spillway/internal/plans"
	"spillway/internal/serve/param"
)

// expanded is the source of a feed with lists on a database that has no arrays: one source for
// each of param.Expand's statements.
type expanded struct {
	name    string
	params  []Param
	sources []Source
}

// Expanded is the source of a feed on a database that has no arrays.
type Expanded[F Described] struct {
	Source
	One F // the source of one width of the lists, which Check checks; all widths have the same tables and columns
}

// Columns implements Described.
func (e *Expanded[F]) Columns() []Column { return e.One.Columns() }

// Expand returns the source of a feed. open returns the one of a definition without lists.
func Expand[F Described](def Definition, d plans.Dialect, open func(Definition) (F, error)) (*Expanded[F], error) {
	expansions, err := param.Expand(def.SQL, d, def.Params)
	if err != nil {
		return nil, fmt.Errorf("feed %s: %w", def.Name, err)
	}
	var one F
	e := &expanded{name: def.Name, params: def.Params}
	for _, expansion := range expansions {
		of := def
		of.SQL, of.Params = expansion.SQL, expansion.Params
		if one, err = open(of); err != nil {
			return nil, fmt.Errorf("feed %s: %w", def.Name, err)
		}
		e.sources = append(e.sources, one)
	}
	if !slices.ContainsFunc(def.Params, func(p Param) bool { return p.ListMax > 0 }) {
		return &Expanded[F]{Source: one, One: one}, nil
	}
	return &Expanded[F]{Source: e, One: one}, nil
}

// source returns the source for the arguments of r, and r with the arguments for it.
func (e *expanded) source(r Range) (Source, Range, error) {
	n, args, err := param.ExpandArguments(e.params, r.Args)
	if err != nil {
		return nil, r, fmt.Errorf("feed %s: %w", e.name, err)
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
