// Package histogram holds latency histograms: HdrHistogram with the range, the precision and the reading rules that
// this project uses everywhere.
//
// A histogram counts durations from 0 to Highest. A value is kept to within 64 ns or 0.1 % of itself, whichever is
// larger (slices: 64 ns or 1 %). Longer values are counted at Highest and reported by Clamped, so none is lost
// silently. Memory is fixed when the histogram is made: 200 KiB for New, 28 KiB for NewSlice, whatever is recorded.
//
// A histogram has no lock. Give each worker thread (not each connection) its own and merge them when the second is
// over; merging adds counts, so the result is the histogram of the union. Percentiles are never averaged.
//
// The package does no file format: Encode gives the standard V2 compressed form that every HdrHistogram tool reads.
package histogram

import (
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The range and precision of every histogram.
const (
	// Lowest is the smallest duration told apart from 0; the unit of the counts is 64 ns.
	Lowest = 100 * time.Nanosecond
	// Highest is the longest duration kept; a longer one is counted here and in Clamped.
	Highest = 10 * time.Minute
	// Digits is the number of significant decimal digits kept by New.
	Digits = 3
	// SliceDigits is the number kept by NewSlice: enough for one second of a timeline at a seventh of the size.
	SliceDigits = 2
)

// A Histogram counts durations. It is not safe for concurrent use; make one with New, NewSlice or Decode.
type Histogram struct {
	hdr     *hdrhistogram.Histogram
	clamped int64
}

// New returns an empty histogram at full precision (Digits). It takes 200 KiB and never grows.
func New() *Histogram { return sized(Digits) }

// NewSlice returns an empty histogram at slice precision (SliceDigits). It takes 28 KiB and never grows.
func NewSlice() *Histogram { return sized(SliceDigits) }

func sized(digits int) *Histogram {
	return &Histogram{hdr: hdrhistogram.New(int64(Lowest), int64(Highest), digits)}
}

// Record counts one duration. It takes about 3 ns and does not allocate. A negative duration (a clock read twice out
// of order) counts as 0; one above Highest counts as Highest and raises Clamped.
func (h *Histogram) Record(d time.Duration) { h.RecordN(d, 1) }

// RecordN counts n equal durations; n must not be negative.
func (h *Histogram) RecordN(d time.Duration, n int64) {
	if uint64(d) > uint64(Highest) {
		d = h.clamp(d, n)
	}
	if err := h.hdr.RecordValues(int64(d), n); err != nil {
		panic("bug: record " + err.Error())
	}
}

// clamp brings d into the range; it is kept out of RecordN so that the common path stays short.
func (h *Histogram) clamp(d time.Duration, n int64) time.Duration {
	if d < 0 {
		return 0
	}
	h.clamped += n
	return Highest
}

// Merge adds every count of from. Precision is that of the receiver: merging a full histogram into a slice coarsens it.
func (h *Histogram) Merge(from *Histogram) {
	h.clamped += from.clamped
	h.add(from.hdr)
}

// add adds the counts of a library histogram; what lies above Highest is clamped.
func (h *Histogram) add(from *hdrhistogram.Histogram) {
	if above := h.hdr.Merge(from); above > 0 {
		h.RecordN(Highest+1, above)
	}
}

// Reset forgets everything recorded and keeps the memory.
func (h *Histogram) Reset() {
	h.hdr.Reset()
	h.clamped = 0
}

// Count is the number of durations recorded.
func (h *Histogram) Count() int64 { return h.hdr.TotalCount() }

// Clamped is the number of durations that were longer than Highest. It is not part of the encoded form.
func (h *Histogram) Clamped() int64 { return h.clamped }

// Min is the shortest duration recorded, within the precision; 0 when there is none.
func (h *Histogram) Min() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return time.Duration(h.hdr.Min())
}

// Max is the longest duration recorded, within the precision; 0 when there is none.
func (h *Histogram) Max() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return min(time.Duration(h.hdr.Max()), Highest)
}

// Mean is the arithmetic mean, within the precision; 0 when nothing was recorded.
func (h *Histogram) Mean() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return time.Duration(h.hdr.Mean())
}

// StdDev is the standard deviation; 0 when nothing was recorded.
func (h *Histogram) StdDev() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return time.Duration(h.hdr.StdDev())
}

// Encode gives the histogram in V2 compressed form, base64: the payload of an HdrHistogram log line. An empty histogram
// encodes as "", so that a file need not carry it.
func (h *Histogram) Encode() (string, error) {
	if h.Count() == 0 {
		return "", nil
	}
	payload, err := h.hdr.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "", fmt.Errorf("encode histogram: %w", err)
	}
	return string(payload), nil
}

// maxCount is more samples than any run can make; a payload that claims more is damaged. It keeps every sum of decoded
// histograms far from overflow.
const maxCount = 1 << 40

// Decode reads what Encode gave. The empty string is an empty histogram at slice precision. A histogram of another
// tool, with another range, is recounted at full precision. Text that is not a V2 compressed histogram is an error; the
// memory taken meanwhile is bounded by the format (58 MB for the widest geometry).
func Decode(payload string) (*Histogram, error) {
	if payload == "" {
		return NewSlice(), nil
	}
	hdr, err := hdrhistogram.Decode([]byte(payload))
	if err != nil {
		return nil, fmt.Errorf("decode histogram: %w", err)
	}
	if hdr.TotalCount() > maxCount {
		return nil, fmt.Errorf("decode histogram: %d samples are more than any run makes", hdr.TotalCount())
	}
	if sameRange(hdr) {
		return &Histogram{hdr: hdr}, nil
	}
	h := New()
	h.add(hdr)
	return h, nil
}

// sameRange says whether hdr counts in the buckets of New or NewSlice.
func sameRange(hdr *hdrhistogram.Histogram) bool {
	digits := hdr.SignificantFigures()
	return hdr.LowestTrackableValue() == int64(Lowest) && hdr.HighestTrackableValue() == int64(Highest) &&
		(digits == Digits || digits == SliceDigits)
}

// TailSamples is the ten-beyond rule: a percentile is stated only when at least this many samples lie beyond it, so p99
// wants 1,000 samples and p99.9 wants 10,000. With fewer, the figure would be the luck of a handful of requests.
const TailSamples = 10

// z95 is the normal quantile of a two-sided 95 % interval.
const z95 = 1.96

// Quantile is the duration that a fraction q of the samples do not exceed (q from 0 to 1), within the precision; 0 when
// nothing was recorded. It answers for every q: ask Carries whether the figure may be shown.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return min(time.Duration(h.hdr.ValueAtPercentile(q*100)), Highest)
}

// Carries says whether the sample is large enough for the quantile q: the ten-beyond rule.
func (h *Histogram) Carries(q float64) bool { return Carries(h.Count(), q) }

// Carries says whether n samples are enough for the quantile q: the ten-beyond rule.
func Carries(n int64, q float64) bool {
	const rounding = 1e-6 // 1-q is not exact in binary: 100 samples carry 0.9
	return q > 0 && q < 1 && (1-q)*float64(n) > TailSamples-rounding
}

// Interval is the 95 % confidence interval of the quantile q by order statistics: the samples of rank
// floor(nq-1.96 s) and ceil(nq+1.96 s)+1 with s = sqrt(nq(1-q)). It assumes nothing about the distribution but that the
// samples are independent; latencies of neighbouring requests are not quite, so read it as the least width. ok is false
// when the sample does not carry q or a rank falls outside it.
func (h *Histogram) Interval(q float64) (low, high time.Duration, ok bool) {
	n := h.Count()
	if !Carries(n, q) {
		return 0, 0, false
	}
	centre, spread := float64(n)*q, z95*math.Sqrt(float64(n)*q*(1-q))
	first, last := int64(math.Floor(centre-spread)), int64(math.Ceil(centre+spread))+1
	if first < 1 || last > n {
		return 0, 0, false
	}
	return h.rank(first), h.rank(last), true
}

// rank is the k-th shortest sample, k from 1.
func (h *Histogram) rank(k int64) time.Duration {
	return h.Quantile(float64(k) / float64(h.Count()))
}

// A Point is one step of the cumulative distribution.
type Point struct {
	Quantile float64       // fraction of the samples at or below Value, 0 to 1
	Value    time.Duration // the longest duration of this step
	Count    int64         // samples at or below Value
}

// Curve is the cumulative distribution for a chart over log(1/(1-q)): a few points in each halving of the rest, up to
// the last quantile that the sample carries, and never beyond.
func (h *Histogram) Curve() []Point {
	var points []Point
	for _, b := range h.hdr.CumulativeDistributionWithTicks(4) {
		q := b.Quantile / 100
		if q > 0 && !h.Carries(q) {
			break
		}
		points = append(points, Point{Quantile: q, Value: min(time.Duration(b.ValueAt), Highest), Count: b.Count})
	}
	return points
}
