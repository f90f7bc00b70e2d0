package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/ohler55/ojg/oj"

	"spillway/internal/lab/target"
)

// parseAnswer returns the body of an answer as JSON. Nesting is bounded by package json.
func parseAnswer(body []byte) (any, error) {
	if !json.Valid(body) {
		return nil, errors.New("the answer is not JSON")
	}
	return oj.Parse(body)
}

// find returns the value in an answer, whose body parsed returns as JSON. Its error does not quote the answer.
func (e *extraction) find(a *target.Answer, parsed func() (any, error), random *rand.Rand) (text, error) {
	if e.header != "" {
		if values := a.Header.Values(e.header); len(values) > 0 {
			return text{text: values[e.choose(len(values), random)]}, nil
		}
		return text{}, fmt.Errorf("extract %s: the answer has no header %s", e.name, e.header)
	}
	if a.Cut {
		return text{}, fmt.Errorf("extract %s: the answer is larger than what is kept of it, %d bytes", e.name, len(a.Body))
	}
	if e.pattern != nil {
		return e.match(a.Body, random)
	}
	root, err := parsed()
	if err != nil {
		return text{}, fmt.Errorf("extract %s: %w", e.name, err)
	}
	found := e.path.Get(root)
	if len(found) == 0 {
		return text{}, fmt.Errorf("extract %s: nothing in the answer is at %s", e.name, e.path)
	}
	one := found[e.choose(len(found), random)]
	if s, isText := one.(string); isText {
		return text{text: s}, nil
	}
	raw, err := json.Marshal(one)
	if err != nil {
		return text{}, fmt.Errorf("extract %s: %w", e.name, err)
	}
	return text{text: string(raw), json: true}, nil
}

// match returns the first group of the pattern, or the whole match without groups.
func (e *extraction) match(body []byte, random *rand.Rand) (text, error) {
	most := 1
	if e.random {
		most = -1
	}
	matches := e.pattern.FindAllSubmatch(body, most)
	if len(matches) == 0 {
		return text{}, fmt.Errorf("extract %s: nothing in the answer matches %s", e.name, e.pattern)
	}
	groups := matches[e.choose(len(matches), random)]
	return text{text: string(groups[min(1, len(groups)-1)])}, nil
}

// choose returns the index of one of n matches.
func (e *extraction) choose(n int, random *rand.Rand) int {
	if e.random {
		return random.IntN(n)
	}
	return 0
}
