package histogram

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

// latencies draws samples over the whole range, dense where latencies are.
func latencies(label string) *rapid.Generator[[]time.Duration] {
	one := rapid.OneOf(
		rapid.Int64Range(0, int64(time.Millisecond)),
		rapid.Int64Range(0, int64(time.Second)),
		rapid.Int64Range(0, int64(Highest)),
	)
	return rapid.Custom(func(t *rapid.T) []time.Duration {
		raw := rapid.SliceOfN(one, 1, 300).Draw(t, label)
		samples := make([]time.Duration, len(raw))
		for i, v := range raw {
			samples[i] = time.Duration(v)
		}
		return samples
	})
}

func recorded(h *Histogram, samples []time.Duration) *Histogram {
	for _, d := range samples {
		h.Record(d)
	}
	return h
}

// near says whether got is want within the precision of the histogram.
func near(got, want time.Duration, share float64) bool {
	return math.Abs(float64(got-want)) <= max(64, share*float64(want))
}

func TestQuantileIsWithinPrecisionOfSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := latencies("samples").Draw(t, "s")
		full, slice := recorded(New(), samples), recorded(NewSlice(), samples)
		slices.Sort(samples)
		for _, q := range []float64{0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1} {
			rank := min(max(int(q*float64(len(samples))+0.5), 1), len(samples))
			want := samples[rank-1]
			if got := full.Quantile(q); !near(got, want, 0.001) {
				t.Fatalf("q=%v of %d: %v, want %v", q, len(samples), got, want)
			}
			if got := slice.Quantile(q); !near(got, want, 0.01) {
				t.Fatalf("slice q=%v of %d: %v, want %v", q, len(samples), got, want)
			}
		}
		if got := full.Max(); !near(got, samples[len(samples)-1], 0.001) {
			t.Fatalf("max %v, want %v", got, samples[len(samples)-1])
		}
		if got := full.Min(); !near(got, samples[0], 0.001) {
			t.Fatalf("min %v, want %v", got, samples[0])
		}
		var sum float64
		for _, d := range samples {
			sum += float64(d)
		}
		if got, want := full.Mean(), time.Duration(sum/float64(len(samples))); !near(got, want, 0.001) {
			t.Fatalf("mean %v, want %v", got, want)
		}
	})
}

func TestMergeIsUnion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := latencies("a").Draw(t, "a"), latencies("b").Draw(t, "b")
		union := recorded(recorded(New(), a), b)
		merged := recorded(New(), a)
		merged.Merge(recorded(New(), b))
		if !union.hdr.Equals(merged.hdr) {
			t.Fatal("merge differs from the histogram of the union")
		}
		coarse := recorded(recorded(NewSlice(), a), b)
		coarsened := NewSlice()
		coarsened.Merge(union)
		if !coarse.hdr.Equals(coarsened.hdr) {
			t.Fatal("coarsening a full histogram differs from recording at slice precision")
		}
	})
}

func TestEncodeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := recorded(New(), latencies("samples").Draw(t, "s"))
		payload, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		if !got.hdr.Equals(want.hdr) || got.Count() != want.Count() {
			t.Fatal("decoded histogram differs")
		}
	})
}

func TestOutOfRangeIsClampedAndCounted(t *testing.T) {
	h := New()
	h.Record(-time.Second)
	h.Record(Highest)
	if h.Clamped() != 0 || h.Min() != 0 {
		t.Fatalf("clamped %d, min %v; want 0, 0", h.Clamped(), h.Min())
	}
	h.RecordN(Highest+time.Hour, 3)
	h.Record(math.MaxInt64)
	if h.Count() != 6 || h.Clamped() != 4 || h.Max() != Highest {
		t.Fatalf("count %d, clamped %d, max %v", h.Count(), h.Clamped(), h.Max())
	}
	sum := New()
	sum.Merge(h)
	sum.Merge(h)
	if sum.Clamped() != 8 {
		t.Fatalf("merged clamped %d, want 8", sum.Clamped())
	}
	h.Reset()
	if h.Count() != 0 || h.Clamped() != 0 || h.Max() != 0 || h.Quantile(0.5) != 0 || h.Mean() != 0 {
		t.Fatal("reset histogram is not empty")
	}
}

func TestEmptyEncodesAsNothing(t *testing.T) {
	if payload, err := New().Encode(); payload != "" || err != nil {
		t.Fatalf("%q, %v", payload, err)
	}
	h, err := Decode("")
	if err != nil || h.Count() != 0 {
		t.Fatalf("%v, %v", h, err)
	}
}

func TestDecodeForeignHistogram(t *testing.T) {
	foreign := hdrhistogram.New(1, int64(24*time.Hour), 4)
	for _, d := range []time.Duration{time.Millisecond, time.Hour} {
		if err := foreign.RecordValue(int64(d)); err != nil {
			t.Fatal(err)
		}
	}
	payload, err := foreign.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	h, err := Decode(string(payload))
	if err != nil {
		t.Fatal(err)
	}
	if h.Count() != 2 || h.Clamped() != 1 || !near(h.Min(), time.Millisecond, 0.001) || h.Max() != Highest {
		t.Fatalf("count %d clamped %d min %v max %v", h.Count(), h.Clamped(), h.Min(), h.Max())
	}
}

func TestDecodeRefuses(t *testing.T) {
	huge := New()
	huge.RecordN(time.Second, maxCount+1)
	tooMany, err := huge.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, payload := range map[string]string{"text": "not base64!", "short": "AAAA", "too many samples": tooMany} {
		if _, err := Decode(payload); err == nil || !strings.HasPrefix(err.Error(), "decode histogram: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	payload, err := recorded(NewSlice(), []time.Duration{1, time.Millisecond, time.Second}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add("")
	f.Fuzz(func(t *testing.T, payload string) {
		h, err := Decode(payload)
		if err != nil {
			return
		}
		if h.Count() < 0 || h.Max() > Highest || h.Quantile(0.5) > h.Max() {
			t.Fatalf("count %d, median %v, max %v", h.Count(), h.Quantile(0.5), h.Max())
		}
		New().Merge(h)
	})
}

func TestRecordDoesNotAllocate(t *testing.T) {
	h := New()
	d := 100 * time.Microsecond
	if n := testing.AllocsPerRun(1000, func() { h.Record(d); d += 777 }); n != 0 {
		t.Fatalf("%v allocations a record", n)
	}
}

func TestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		h    *Histogram
		want int
	}{"full": {New(), 201 << 10}, "slice": {NewSlice(), 29 << 10}} {
		if got := c.h.hdr.ByteSize(); got > c.want {
			t.Errorf("%s: %d bytes, documented as at most %d", name, got, c.want)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	h := New()
	b.ReportAllocs()
	d := time.Duration(0)
	for b.Loop() {
		d = (d*1103515245 + 12345) & (1<<21 - 1) // up to 2 ms, no order
		h.Record(d)
	}
}

func benchmarkSecond() *Histogram {
	h := New()
	for i := range 20000 {
		h.Record(time.Duration(i*i) * 10)
	}
	return h
}

func BenchmarkMergeIntoSlice(b *testing.B) {
	second, slice := benchmarkSecond(), NewSlice()
	for b.Loop() {
		slice.Merge(second)
	}
}

func BenchmarkEncodeSlice(b *testing.B) {
	slice := NewSlice()
	slice.Merge(benchmarkSecond())
	for b.Loop() {
		payload, err := slice.Encode()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(payload)), "bytes")
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCarries(t *testing.T) {
	f := func(n int64, q float64, want bool) {
		t.Helper()
		if got := Carries(n, q); got != want {
			t.Errorf("Carries(%d, %v) = %v", n, q, got)
		}
	}
	f(19, 0.5, false)
	f(20, 0.5, true)
	f(99, 0.9, false)
	f(100, 0.9, true)
	f(999, 0.99, false)
	f(1000, 0.99, true)
	f(9999, 0.999, false)
	f(10000, 0.999, true)
	f(100000, 0.9999, true)
	f(1<<40, 1, false)
	f(1<<40, 0, false)
	f(0, 0.5, false)
}

func TestIntervalRanks(t *testing.T) {
	h := New()
	for i := 1; i <= 1000; i++ {
		h.Record(time.Duration(i) * time.Second / 10)
	}
	// n q = 990, 1.96 sqrt(n q (1-q)) = 6.17: ranks 983 and 998.
	low, high, _, ok := Censored{h, New()}.Interval(0.99)
	if !ok || !near(low, 98300*time.Millisecond, 0.001) || !near(high, 99800*time.Millisecond, 0.001) {
		t.Fatalf("p99 in [%v, %v] %v", low, high, ok)
	}
	if _, _, _, ok := (Censored{h, New()}).Interval(0.999); ok {
		t.Fatal("an interval for a percentile that the sample does not carry")
	}
}

// TestIntervalCovers draws many samples of a known distribution: about 95 % of the intervals must hold the true value.
func TestIntervalCovers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const trials, n = 400, 2000
	trueP99 := time.Duration(4.60517 * float64(time.Millisecond)) // of an exponential with mean 1 ms
	covered := 0
	h := New()
	for range trials {
		h.Reset()
		for range n {
			h.Record(time.Duration(rnd.ExpFloat64() * float64(time.Millisecond)))
		}
		low, high, _, ok := Censored{h, New()}.Interval(0.99)
		if !ok {
			t.Fatal("no interval")
		}
		if low <= trueP99 && trueP99 <= high {
			covered++
		}
	}
	if share := float64(covered) / trials; share < 0.92 || share > 0.99 {
		t.Fatalf("%.3f of the intervals hold the true p99, want about 0.95", share)
	}
}

// TestCumulative compares with counting, away from the bounds by more than the precision.
func TestCumulative(t *testing.T) {
	bounds := []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second}
	rapid.Check(t, func(t *rapid.T) {
		h := New()
		want := make([]int64, len(bounds))
		for _, d := range rapid.SliceOf(rapid.SampledFrom([]time.Duration{0, 900 * time.Microsecond, 1100 * time.Microsecond, 9 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second})).Draw(t, "durations") {
			h.Record(d)
			for i, b := range bounds {
				if d <= b {
					want[i]++
				}
			}
		}
		if got := h.Cumulative(bounds); !slices.Equal(got, want) {
			t.Fatalf("%d, want %d", got, want)
		}
	})
}
