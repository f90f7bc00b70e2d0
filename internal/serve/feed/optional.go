package feed

import (
	"context"
	"fmt"
	"sync"

	"spillway/internal/plans"
	"spillway/internal/serve/param"
)

// optional is a source with parameters whose statement tests whether they are NULL, as in :x IS NULL OR a = :x.
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
	_, err := o.source(0)
	return o, err
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

// sourceOf returns the source for the arguments of r.
func (o *optional) sourceOf(r Range) (Source, error) {
	if len(r.Args) != len(o.def.Params) {
		return nil, fmt.Errorf("%s: %d arguments for %d parameters", &o.def, len(r.Args), len(o.def.Params))
	}
	null := uint(0)
	for i, position := range o.tested {
		if r.Args[position] == param.Absent {
			null |= 1 << i
		}
	}
	return o.source(null)
}

// Read implements Source.
func (o *optional) Read(ctx context.Context, r Range, rows *Rows) error {
	source, err := o.sourceOf(r)
	if err != nil {
		return err
	}
	return source.Read(ctx, r, rows)
}

// Keys implements Source.
func (o *optional) Keys(ctx context.Context, r Range, every int) (Walk, error) {
	source, err := o.sourceOf(r)
	if err != nil {
		return Walk{}, err
	}
	return source.Keys(ctx, r, every)
}

// Check implements Source, without the parameters, with each of them alone, and with all, so that its advice is for
// as few as possible.
func (o *optional) Check(ctx context.Context, window int) error {
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
		if err == nil {
			err = source.Check(ctx, window)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Columns implements Source.
func (o *optional) Columns() []Column {
	source, err := o.source(0)
	if err != nil {
		return nil
	}
	return source.Columns()
}
