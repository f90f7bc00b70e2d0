package stream

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

// Outcome is what became of a request.
type Outcome struct {
	Stored   int       `json:"stored"`            // records that are in the table
	Refused  []Refusal `json:"refused,omitempty"` // the others, in order
	Replayed bool      `json:"-"`                 // it is that of an earlier request with the same key
}

// OutcomeNow returns the outcome of a request as RequestTable keeps it, from its
// Result's refusals. A Sink calls it once those are final.
func (e *Entry) OutcomeNow() ([]byte, error) {
	data, err := json.Marshal(e.fresh())
	if err != nil {
		return nil, fmt.Errorf("encode an outcome: %w", err)
	}
	return data, nil
}

// fresh is the outcome of a request that is stored for the first time.
func (e *Entry) fresh() Outcome {
	o := Outcome{Stored: e.Records.Len() - len(e.Result.Refused), Refused: e.refused}
	if len(e.Result.Refused) == 0 {
		return o
	}
	o.Refused = slices.Clone(e.refused)
	for _, r := range e.Result.Refused {
		o.Refused = append(o.Refused, Refusal{Index: e.Records.Index(r.Row), Reason: r.Reason})
	}
	slices.SortFunc(o.Refused, func(a, b Refusal) int { return cmp.Compare(a.Index, b.Index) })
	return o
}

// outcome returns what the client of a committed request is told.
func (e *Entry) outcome() (Outcome, error) {
	switch {
	case e.Result.Reused:
		return Outcome{}, ErrKeyReused
	case e.Result.Stored == nil:
		return e.fresh(), nil
	}
	o := Outcome{Replayed: true}
	if err := json.Unmarshal(e.Result.Stored, &o); err != nil {
		return Outcome{}, fmt.Errorf("read the outcome of an idempotency key: %w", err)
	}
	return o, nil
}
