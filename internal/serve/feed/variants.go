package feed

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"spillway/internal/plans"
	"spillway/internal/serve/param"
)

// variants is a source that reads each range from one of several sources, whose statements differ. All have the same tables and columns.
type variants struct {
	choose func(r Range) (Source, Range, error) // the source of a range, and the range there
	check  func() ([]Source, error)             // those to check
	known  func() []Source                      // those that may know the columns
}

// Read implements Source.
func (v *variants) Read(ctx context.Context, r Range, rows *Rows) error {
	source, r, err := v.choose(r)
	if err != nil {
		return err
	}
	return source.Read(ctx, r, rows)
}

// Keys implements Source.
func (v *variants) Keys(ctx context.Context, r Range, every int) (Walk, error) {
	source, r, err := v.choose(r)
	if err != nil {
		return Walk{}, err
	}
	return source.Keys(ctx, r, every)
}

// Check implements Source.
func (v *variants) Check(ctx context.Context, window int) error {
	sources, err := v.check()
	for i := 0; err == nil && i < len(sources); i++ {
		err = sources[i].Check(ctx, window)
	}
	return err
}

// Columns implements Source.
func (v *variants) Columns() []Column {
	for _, source := range v.known() {
		if columns := source.Columns(); columns != nil {
			return columns
		}
	}
	return nil
}

// Expand returns a source on a database that has no arrays: with lists, there is a source for each of
// param.Expand's statements. open returns the one of a definition without lists. The shortest and the
// longest lists are checked.
func Expand(def Definition, d plans.Dialect, open func(Definition) (Source, error)) (Source, error) {
	expansions, err := param.Expand(def.SQL, d, def.Params)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", &def, err)
	}
	var sources []Source
	for _, expansion := range expansions {
		of := def
		of.SQL, of.Params = expansion.SQL, expansion.Params
		source, err := open(of)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", &def, err)
		}
		sources = append(sources, source)
	}
	if !slices.ContainsFunc(def.Params, func(p param.Param) bool { return p.ListMax > 0 }) {
		return sources[0], nil
	}
	ends := sources
	if len(sources) > 2 {
		ends = []Source{sources[0], sources[len(sources)-1]}
	}
	return &variants{
		choose: func(r Range) (Source, Range, error) {
			n, args, err := param.ExpandArguments(def.Params, r.Args)
			if err != nil {
				return nil, r, fmt.Errorf("%s: %w", &def, err)
			}
			r.Args = args
			return sources[n], r, nil
		},
		check: func() ([]Source, error) { return ends, nil },
		known: func() []Source { return sources },
	}, nil
}

// optional has the sources of a statement that tests whether parameters are NULL, as in :x IS NULL OR a = :x.
// A database may plan such a statement once for all values. So there is a source for each combination of parameters
// that are NULL, with a statement that knows it.
type optional struct {
	def    Definition
	d      plans.Dialect
	open   func(Definition) (Source, error)
	tested []int // positions of the parameters

	mu      sync.Mutex
	sources map[uint]Source // bit i: the i-th of tested is NULL
}

// testedMost is how many parameters have combinations.
const testedMost = 8

// Optional returns the source of a feed or a query. open returns the one of a definition.
func Optional(def Definition, d plans.Dialect, open func(Definition) (Source, error)) (Source, error) {
	o := &optional{def: def, d: d, open: open, sources: make(map[uint]Source)}
	for i, p := range def.Params {
		if p.Optional && p.Default == param.Absent && !p.Filter && p.ListMax == 0 && len(o.tested) < testedMost &&
			plans.KnowNull(def.SQL, d, p.Name, true) != def.SQL {
			o.tested = append(o.tested, i)
		}
	}
	if source, err := open(def); err != nil || def.IsQuery() || len(o.tested) == 0 {
		return source, err
	}
	first, err := o.source(0)
	return &variants{choose: o.choose, check: o.check, known: func() []Source { return []Source{first} }}, err
}

// source returns the source for some parameters that are NULL.
func (o *optional) source(null uint) (Source, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if source, ok := o.sources[null]; ok {
		return source, nil
	}
	of := o.def
	for i, position := range o.tested {
		of.SQL = plans.KnowNull(of.SQL, o.d, of.Params[position].Name, null&(1<<i) != 0)
	}
	source, err := o.open(of)
	if err == nil {
		o.sources[null] = source
	}
	return source, err
}

func (o *optional) choose(r Range) (Source, Range, error) {
	if len(r.Args) != len(o.def.Params) {
		return nil, r, fmt.Errorf("%s: %d arguments for %d parameters", &o.def, len(r.Args), len(o.def.Params))
	}
	null := uint(0)
	for i, position := range o.tested {
		if r.Args[position] == param.Absent {
			null |= 1 << i
		}
	}
	source, err := o.source(null)
	return source, r, err
}

// check returns the sources without the parameters, with each of them alone, and with all, so that the advice is for as few as
// possible.
func (o *optional) check() (sources []Source, err error) {
	all := uint(1)<<len(o.tested) - 1
	combinations := []uint{all}
	for i := range o.tested {
		combinations = append(combinations, all&^(1<<i))
	}
	if len(o.tested) > 1 {
		combinations = append(combinations, 0)
	}
	for _, null := range combinations {
		source, err := o.source(null)
		if err != nil {
			return nil, err
		}
		sources = append(sources, source)
	}
	return sources, nil
}
