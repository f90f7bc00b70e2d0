// Package cores divides the CPU cores of this machine among the hosts of a measurement, and measures who used them.
//
// A Host is a load generator, a target or a simulated host: some processes, and the cores that they may use. A Meter reads how
// much CPU each host used, for how long its quota stopped it, and how much of its cores was used by anything else. The last
// figure shows whether the measurement was disturbed: a host that waits for its own threads or its own quota is at its capacity,
// and a host whose cores are used by other programs is contended.
//
// Pin puts a load generator and its target on separate cores, and gives the cores back however the process ends.
package cores

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A Set is a set of cores by number, in order.
type Set []int

// coresMax limits the numbers of cores; the kernel's limit is lower.
const coresMax = 8192

// ParseSet reads a list as the kernel writes it: "0-3,8".
func ParseSet(text string) (Set, error) {
	var set Set
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 16)
		last, errLast := strconv.ParseUint(high, 10, 16)
		if err != nil || errLast != nil || first > last || last >= coresMax {
			return nil, fmt.Errorf("%q is no list of cores such as 0-3,8", text)
		}
		for core := first; core <= last; core++ {
			set = append(set, int(core))
		}
	}
	slices.Sort(set)
	return slices.Compact(set), nil
}

// String returns the list as ParseSet reads it, "" for an empty set.
func (s Set) String() string {
	var parts []string
	for i := 0; i < len(s); {
		last := i
		for last+1 < len(s) && s[last+1] == s[last]+1 {
			last++
		}
		text := strconv.Itoa(s[i])
		if last > i {
			text += "-" + strconv.Itoa(s[last])
		}
		parts = append(parts, text)
		i = last + 1
	}
	return strings.Join(parts, ",")
}

// MarshalText writes the set as String does.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the set as ParseSet does.
func (s *Set) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSet(string(text))
	return err
}

// CPUsMin is the smallest share of a host: the kernel's shortest quota is 1 ms, of a period of at most 5 ms.
const CPUsMin = 0.25

// whole reports whether a share is a number of complete cores.
func whole(cpus float64) bool { return cpus == math.Trunc(cpus) }

// Allot divides the available cores: a whole number of CPUs gets that many cores of its own, and all other shares have as many in
// common as they need together. The error says why they do not fit.
func Allot(available Set, cpus []float64) ([]Set, error) {
	const rounding = 1e-9
	sum, parts := 0.0, 0.0
	for _, n := range cpus {
		sum += n
		if !whole(n) {
			parts += n
		}
	}
	if sum > float64(len(available))+rounding {
		return nil, fmt.Errorf("the shares of CPU add up to %g, and this machine has %d cores", sum, len(available))
	}
	sets, next := make([]Set, len(cpus)), 0
	for i, n := range cpus {
		if whole(n) {
			sets[i] = slices.Clone(available[next : next+int(n)])
			next += int(n)
		}
	}
	common := available[next : next+int(math.Ceil(parts-rounding))]
	for i, n := range cpus {
		if !whole(n) {
			sets[i] = slices.Clone(common)
		}
	}
	return sets, nil
}
