package result

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// A Track is the samples of one subject in order of time, one row of values for each figure.
type Series struct {
	Host    string // a Watch.Host
	Sampler string
	Subject string
	At      []float64            // ascending
	Values  map[string][]float64 // by name, as long as At; NaN where a sample has no such figure
	Errors  []SampleError        // what the sampler said
}

// A SampleError is what kept a sampler from reading, and since when.
type SampleError struct {
	At   float64
	Text string
}

// Tracks sorts samples by what they are of: by host, sampler and subject in the order in which these first appear.
func SeriesOf(samples []Sample) []*Series {
	type key struct{ host, sampler, subject string }
	order := make([]*Sample, len(samples))
	for i := range samples {
		order[i] = &samples[i]
	}
	tracks := make(map[key]*Series)
	var all []*Series
	for _, s := range order {
		k := key{s.Host, s.Sampler, s.Subject}
		if tracks[k] == nil {
			tracks[k] = &Series{Host: s.Host, Sampler: s.Sampler, Subject: s.Subject, Values: make(map[string][]float64)}
			all = append(all, tracks[k])
		}
	}
	slices.SortStableFunc(order, func(a, b *Sample) int { return cmp.Compare(a.At, b.At) })
	for _, s := range order {
		tracks[key{s.Host, s.Sampler, s.Subject}].add(s)
	}
	return all
}

// Tracks are those of the run's samples in the order in which its watches name them; what these do not name comes last.
func (r *Run) Series() []*Series {
	place := func(t *Series) (watch, subject int) {
		watch = slices.IndexFunc(r.Watches, func(w Watch) bool { return w.Host == t.Host })
		if watch < 0 {
			return len(r.Watches), 0
		}
		subjects := r.Watches[watch].Subjects
		subject = slices.IndexFunc(subjects, func(s Subject) bool { return s.Sampler == t.Sampler && s.Name == t.Subject })
		if subject < 0 {
			subject = len(subjects)
		}
		return watch, subject
	}
	tracks := SeriesOf(r.Samples)
	slices.SortStableFunc(tracks, func(a, b *Series) int {
		watchA, subjectA := place(a)
		watchB, subjectB := place(b)
		return cmp.Or(cmp.Compare(watchA, watchB), cmp.Compare(subjectA, subjectB))
	})
	return tracks
}

func (t *Series) add(s *Sample) {
	if s.Error != "" {
		t.Errors = append(t.Errors, SampleError{s.At, s.Error})
	}
	if len(s.Values) == 0 {
		return
	}
	n := len(t.At)
	t.At = append(t.At, s.At)
	for name, v := range s.Values {
		row := t.Values[name]
		for len(row) < n { // the figure was not there before
			row = append(row, math.NaN())
		}
		t.Values[name] = append(row[:n], v)
	}
	for name, row := range t.Values {
		if len(row) == n {
			t.Values[name] = append(row, math.NaN())
		}
	}
}

// Has reports whether any sample has the figure.
func (t *Series) Has(name string) bool { return t.Values[name] != nil }

// Within is the number of samples from one time to another that have the figure.
func (t *Series) Count(name string, from, to float64) int {
	n := 0
	for range t.inside(name, from, to) {
		n++
	}
	return n
}

// inside gives time and value of each sample from one time to another that has the figure.
func (t *Series) inside(name string, from, to float64) func(yield func(at, v float64) bool) {
	return func(yield func(at, v float64) bool) {
		row := t.Values[name]
		for i := sort.SearchFloat64s(t.At, from); row != nil && i < len(t.At) && t.At[i] <= to; i++ {
			if !math.IsNaN(row[i]) && !yield(t.At[i], row[i]) {
				return
			}
		}
	}
}

// Grown is how much the counter grew from one time to another, its values at the two ends interpolated linearly between
// the samples around them. Where the samples begin after from or end before to, the growth that they show is taken for
// the whole. It is NaN when fewer than two samples are known, when they cover less than half of the time, and when the
// counter went backwards: then what is counted was restarted.
func (t *Series) Growth(name string, from, to float64) float64 {
	at, values := t.around(name, from, to)
	if len(at) < 2 || !(to > from) || !slices.IsSorted(values) {
		return math.NaN()
	}
	begin, end := max(from, at[0]), min(to, at[len(at)-1])
	if !(end-begin >= (to-from)/2) {
		return math.NaN()
	}
	grown := interpolate(at, values, end) - interpolate(at, values, begin)
	return grown * (to - from) / (end - begin)
}

// around is the samples with the figure from the last at or before from to the first at or behind to.
func (t *Series) around(name string, from, to float64) (at, values []float64) {
	row := t.Values[name]
	if row == nil {
		return nil, nil
	}
	first := sort.SearchFloat64s(t.At, from)
	for i := min(first, len(t.At)-1); i >= 0; i-- {
		if t.At[i] <= from && !math.IsNaN(row[i]) {
			first = i
			break
		}
	}
	for i := first; i < len(t.At); i++ {
		if math.IsNaN(row[i]) {
			continue
		}
		at, values = append(at, t.At[i]), append(values, row[i])
		if t.At[i] >= to {
			break
		}
	}
	return at, values
}

// interpolate is the value at x, which lies within at.
func interpolate(at, values []float64, x float64) float64 {
	i := sort.SearchFloat64s(at, x)
	if i == 0 || at[i] == x {
		return values[i]
	}
	share := (x - at[i-1]) / (at[i] - at[i-1])
	return values[i-1] + share*(values[i]-values[i-1])
}

// Highest is the highest value that was seen from one time to another, NaN without a sample.
func (t *Series) Max(name string, from, to float64) float64 {
	highest := math.NaN()
	for _, v := range t.inside(name, from, to) {
		if !(v <= highest) {
			highest = v
		}
	}
	return highest
}

// Lowest is the lowest value that was seen from one time to another, NaN without a sample.
func (t *Series) Min(name string, from, to float64) float64 {
	lowest := math.NaN()
	for _, v := range t.inside(name, from, to) {
		if !(v >= lowest) {
			lowest = v
		}
	}
	return lowest
}

// Mean is the mean of the values that were seen from one time to another, NaN without a sample.
func (t *Series) Mean(name string, from, to float64) float64 {
	sum, n := 0.0, 0
	for _, v := range t.inside(name, from, to) {
		sum += v
		n++
	}
	return sum / float64(n) // 0/0 is NaN
}

// Last is the value that was seen last from one time to another, NaN without a sample.
func (t *Series) Last(name string, from, to float64) float64 {
	last := math.NaN()
	for _, v := range t.inside(name, from, to) {
		last = v
	}
	return last
}

// Between is the gauge at a time on the line between the samples before and behind it, NaN where these are further apart
// than gap seconds.
func (t *Series) Interpolate(name string, at, gap float64) float64 {
	times, values := t.around(name, at, at)
	if n := len(times); n == 0 || times[0] > at || times[n-1] < at || times[n-1]-times[0] > gap {
		return math.NaN()
	}
	return interpolate(times, values, at)
}

// Slope is the gauge's growth a second from one time to another by least squares, NaN with fewer than two samples.
func (t *Series) Slope(name string, from, to float64) float64 {
	var n, sumX, sumY float64
	for at, v := range t.inside(name, from, to) {
		n, sumX, sumY = n+1, sumX+at, sumY+v
	}
	meanX, meanY := sumX/n, sumY/n
	var square, product float64
	for at, v := range t.inside(name, from, to) {
		square += (at - meanX) * (at - meanX)
		product += (at - meanX) * (v - meanY)
	}
	return product / square // 0/0 is NaN
}
