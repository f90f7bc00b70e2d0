package cores

import (
	"slices"
	"testing"
)

func TestSet(t *testing.T) {
	for text, want := range map[string]string{"0": "0", "0-3,8": "0-3,8", "3,1,2,2": "1-3", "4-4,6\n": "4,6"} {
		set, err := ParseSet(text)
		if err != nil || set.String() != want {
			t.Errorf("%q: %q, %v; want %q", text, set, err, want)
		}
	}
	for _, text := range []string{"", "a", "3-1", "-1", "1-", "0-99999", "1,,2"} {
		if set, err := ParseSet(text); err == nil {
			t.Errorf("%q: %q", text, set)
		}
	}
}

func FuzzParseSet(f *testing.F) {
	for _, text := range []string{"0-3,8", "1", "7,3-5", "x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := ParseSet(text)
		if err != nil {
			return
		}
		again, err := ParseSet(set.String())
		if err != nil || !slices.Equal(set, again) || !slices.IsSorted(set) {
			t.Errorf("%q: %v, again %v: %v", text, set, again, err)
		}
	})
}

func TestAllot(t *testing.T) {
	for _, c := range []struct {
		cores string
		cpus  []float64
		want  []string
	}{
		{"0-1", []float64{1, 1}, []string{"0", "1"}},
		{"0-1", []float64{0.5, 1, 0.5}, []string{"1", "0", "1"}},
		{"2-5", []float64{1.5, 1, 1.5}, []string{"3-5", "2", "3-5"}},
		{"0-7", []float64{1.5, 1, 1.5}, []string{"1-3", "0", "1-3"}},
		{"0-7", []float64{2, 4}, []string{"0-1", "2-5"}},
		{"0-1", []float64{1, 1, 0.5}, nil},
		{"0", []float64{0.5, 0.75}, nil},
	} {
		available, _ := ParseSet(c.cores)
		sets, err := Allot(available, c.cpus)
		if (err == nil) != (c.want != nil) {
			t.Errorf("%v of %s: %v", c.cpus, c.cores, err)
		}
		for i := range c.want {
			if sets[i].String() != c.want[i] {
				t.Errorf("%v of %s: host %d has %s, want %s", c.cpus, c.cores, i, sets[i], c.want[i])
			}
		}
	}
}

// TestAllotFits checks on all small machines that sets of whole shares have no core in common with others, and that every set has
// room for its share.
func TestAllotFits(t *testing.T) {
	choices := []float64{0.25, 0.5, 1, 1.5, 2}
	for n := range 6 {
		available := make(Set, n)
		for i := range available {
			available[i] = i
		}
		for i := range len(choices) * len(choices) * len(choices) {
			cpus := []float64{choices[i%5], choices[i/5%5], choices[i/25]}
			sets, err := Allot(available, cpus)
			if fits := cpus[0]+cpus[1]+cpus[2] <= float64(n); fits != (err == nil) {
				t.Fatalf("%v of %d: %v", cpus, n, err)
			}
			for a := range sets {
				if float64(len(sets[a])) < cpus[a] || whole(cpus[a]) && float64(len(sets[a])) != cpus[a] {
					t.Errorf("%v of %d: %v", cpus, n, sets)
				}
				for b := range sets {
					if a != b && whole(cpus[a]) && slices.ContainsFunc(sets[a], func(core int) bool { return slices.Contains(sets[b], core) }) {
						t.Errorf("%v of %d: %v have a core in common", cpus, n, sets)
					}
				}
			}
		}
	}
}

func TestSplit(t *testing.T) {
	own, target, err := Split(Set{0, 2, 5, 7}, 1)
	if err != nil || own.String() != "7" || target.String() != "0,2,5" {
		t.Errorf("%s and %s: %v", own, target, err)
	}
	for cores, generator := range map[int]int{1: 1, 2: 2} {
		if _, _, err := Split(make(Set, cores), generator); err == nil {
			t.Errorf("%d cores, %d for the generator: no error", cores, generator)
		}
	}
}
