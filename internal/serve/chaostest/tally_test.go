package chaostest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// tally counts what happened in a run.
type tally struct {
	mu         sync.Mutex
	operations map[string]int // by name; those that failed have a suffix
	outcomes   map[string]int // of records
}

func newTally() *tally {
	return &tally{operations: make(map[string]int), outcomes: make(map[string]int)}
}

func (y *tally) operation(name string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.operations[name]++
}

func (y *tally) outcome(name string, records int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.outcomes[name] += records
}

func (y *tally) add(other *tally) {
	for name, n := range other.operations {
		y.operations[name] += n
	}
	for name, n := range other.outcomes {
		y.outcomes[name] += n
	}
}

// String lists the counts.
func (y *tally) String() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	list := func(counts map[string]int) string {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			all = append(all, fmt.Sprintf("%s %d", name, counts[name]))
		}
		return strings.Join(all, ", ")
	}
	return "records: " + list(y.outcomes) + "\n  operations: " + list(y.operations)
}
