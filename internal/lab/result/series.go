package result

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// A Series is the samples of one subject in order of time, with one row of values per figure.
type Series struct {
	Host    string // a Watch.Host
	Sampler string
	Subject string
	At      []float64            // ascending
	Values  map[string][]float64 // by name, as long as At; NaN if a sample lacks the figure
	Borders []int                // places in At of the samples taken at borders of steps
	Errors  []SampleError        // errors of the sampler
}

// A SampleError is a failed reading. If a gap was recorded for it, nothing was read between From and Until.
type SampleError struct {
	At          float64
	Text        string
	Gap         bool // From and Until are known
	From, Until float64
}

// SeriesOf groups samples by host, sampler and subject, in order of first appearance.
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

// Series returns the series of the run's samples in the order of its watches. Subjects that no watch names come last.
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
		t.Errors = append(t.Errors, SampleError{At: s.At, Text: s.Error})
	}
	if s.Gap != nil {
		t.addGap(s.Gap, s.At)
	}
	if len(s.Values) == 0 {
		return
	}
	n := len(t.At)
	t.At = append(t.At, s.At)
	if s.Border {
		t.Borders = append(t.Borders, n)
	}
	for name, v := range s.Values {
		row := t.Values[name]
		for len(row) < n { // earlier samples lack the figure
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

// addGap adds the times of a gap to the error that began it. A process that was replaced between two readings had none.
func (t *Series) addGap(gap *Gap, until float64) {
	if n := len(t.Errors); n == 0 || t.Errors[n-1].Gap || t.Errors[n-1].At < gap.From {
		t.Errors = append(t.Errors, SampleError{At: gap.From})
	}
	last := &t.Errors[len(t.Errors)-1]
	last.Text, last.Gap, last.From, last.Until = gap.Reason, true, gap.From, until
}

// Has reports whether any sample has the figure.
func (t *Series) Has(name string) bool { return t.Values[name] != nil }

// Count is the number of samples between two times that have the figure.
func (t *Series) Count(name string, from, to float64) int {
	n := 0
	for range t.inside(name, from, to) {
		n++
	}
	return n
}

// inside yields time and value of each sample between two times that has the figure.
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

// Growth is the growth of a counter between two times. Values at both ends are interpolated linearly between samples. If
// samples cover only a part of the time, their growth is scaled to the whole. It is NaN with fewer than two samples, if
// they cover less than half of the time, or if the counter went backwards because of a restart.
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

// borderReach is how far in seconds a sample may lie from the border for which it was taken. A busy host reads late.
const borderReach = 1.0

// StepGrowth is the Growth of a counter between the borders of a step. It uses the samples that were taken at these borders, as
// far as there are any, so that the figure does not depend on the steps before and after. What they cover is scaled to the whole.
func (t *Series) StepGrowth(name string, from, to float64) float64 {
	begin, end := t.border(name, from), t.border(name, to)
	if math.IsNaN(begin) {
		begin = from
	}
	if math.IsNaN(end) {
		end = to
	}
	return t.Growth(name, begin, end) * (to - from) / (end - begin)
}

// BorderError is how far in seconds the samples for StepGrowth are from the borders, at most. It is NaN if a border has none.
func (t *Series) BorderError(name string, from, to float64) float64 {
	begin, end := t.border(name, from), t.border(name, to)
	if !(begin < end) {
		return math.NaN()
	}
	return math.Max(math.Abs(begin-from), math.Abs(end-to))
}

// border is the time of the sample with the figure that was taken for a border at a time, NaN if there is none.
func (t *Series) border(name string, at float64) float64 {
	row, nearest := t.Values[name], math.NaN()
	if row == nil {
		return nearest
	}
	for _, i := range t.Borders {
		distance := math.Abs(t.At[i] - at)
		if !math.IsNaN(row[i]) && distance <= borderReach && !(distance >= math.Abs(nearest-at)) {
			nearest = t.At[i]
		}
	}
	return nearest
}

// around returns the samples with the figure from the last one at or before from to the first one at or after to.
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

// interpolate is the value at x, which must lie within at.
func interpolate(at, values []float64, x float64) float64 {
	i := sort.SearchFloat64s(at, x)
	if i == 0 || at[i] == x {
		return values[i]
	}
	share := (x - at[i-1]) / (at[i] - at[i-1])
	return values[i-1] + share*(values[i]-values[i-1])
}

// Max is the highest value between two times, NaN without a sample.
func (t *Series) Max(name string, from, to float64) float64 {
	return t.fold(name, from, to, math.Max)
}

// Min is the lowest value between two times, NaN without a sample.
func (t *Series) Min(name string, from, to float64) float64 {
	return t.fold(name, from, to, math.Min)
}

// Mean is the mean of the values between two times, NaN without a sample.
func (t *Series) Mean(name string, from, to float64) float64 {
	sum, n := 0.0, 0
	for _, v := range t.inside(name, from, to) {
		sum += v
		n++
	}
	return sum / float64(n) // 0/0 is NaN
}

// Last is the last value between two times, NaN without a sample.
func (t *Series) Last(name string, from, to float64) float64 {
	return t.fold(name, from, to, func(_, v float64) float64 { return v })
}

// fold joins the values between two times, NaN without a sample.
func (t *Series) fold(name string, from, to float64, join func(joined, v float64) float64) float64 {
	joined := math.NaN()
	for _, v := range t.inside(name, from, to) {
		if math.IsNaN(joined) {
			joined = v
		}
		joined = join(joined, v)
	}
	return joined
}

// Interpolate is a gauge at a time, interpolated between the samples around it. It is NaN if these are more than gap
// seconds apart.
func (t *Series) Interpolate(name string, at, gap float64) float64 {
	times, values := t.around(name, at, at)
	if n := len(times); n == 0 || times[0] > at || times[n-1] < at || times[n-1]-times[0] > gap {
		return math.NaN()
	}
	return interpolate(times, values, at)
}

// Slope is a gauge's growth per second between two times by least squares, NaN with fewer than two samples.
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
