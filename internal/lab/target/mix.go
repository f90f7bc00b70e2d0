package target

import (
	"cmp"
	"errors"
	"fmt"
	"sort"
	"strings"
	"unicode"
)

// namesMax is the number of names in a mix. Every name has histograms of its own.
const namesMax = 32

// mix chooses the next request by weight. It is immutable.
type mix struct {
	upTo   []int // cumulative weights of the requests
	labels []int // per request, the index of its name
	names  []string
}

// mixEntry is one request of a mix.
type mixEntry struct {
	weight int
	name   string // given by the user; "": none
	text   string // the name if there is none
	group  string // the same if the mix has too many names
}

// newMix returns the mix of the entries. A single request without a name keeps
// having none. Requests with the same name share it.
func newMix(entries []mixEntry) (mix, error) {
	m := mix{}
	for _, e := range entries {
		total := e.weight
		if len(m.upTo) > 0 {
			total += m.upTo[len(m.upTo)-1]
		}
		m.upTo = append(m.upTo, total)
	}
	if len(entries) == 0 {
		return m, errors.New("no request to send")
	}
	if m.labels = make([]int, len(entries)); len(entries) == 1 && entries[0].name == "" {
		return m, nil
	}
	if m.nameAll(entries, func(e *mixEntry) string { return cmp.Or(e.name, e.text) }) ||
		m.nameAll(entries, func(e *mixEntry) string { return cmp.Or(e.name, e.group) }) {
		return m, nil
	}
	return m, fmt.Errorf("the requests have more than %d names; give requests that belong together the same name", namesMax)
}

// nameAll reports whether the names are few enough.
func (m *mix) nameAll(entries []mixEntry, name func(*mixEntry) string) bool {
	m.names = nil
	index := make(map[string]int)
	for i := range entries {
		n := name(&entries[i])
		label, found := index[n]
		if !found {
			if label = len(m.names); label == namesMax {
				return false
			}
			index[n] = label
			m.names = append(m.names, n)
		}
		m.labels[i] = label
	}
	return true
}

// draw returns the number of a request.
func (m *mix) draw(s *Source) int {
	if len(m.upTo) <= 1 {
		return 0
	}
	n := s.random.IntN(m.upTo[len(m.upTo)-1])
	return sort.SearchInts(m.upTo, n+1)
}

// label returns the index of a request's name.
func (m *mix) label(request int) int {
	if request >= len(m.labels) {
		return 0
	}
	return m.labels[request]
}

// cutName cuts name=NAME from the start of a request, if it is there.
func cutName(text string) (name, rest string, err error) {
	after, found := strings.CutPrefix(text, "name=")
	if !found {
		return "", text, nil
	}
	name, rest = cutWord(after)
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:", r)
	}) {
		return "", "", fmt.Errorf("name %q: use up to 64 letters, digits and any of -_./: in it", name)
	}
	return name, rest, nil
}
