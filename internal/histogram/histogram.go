// Package histogram provides latency histograms: HdrHistogram with the range, precision and rules for percentiles that
// this project uses everywhere.
//
// A histogram counts durations from 0 to Highest with an error of at most 64 ns or 0.1 %, whichever is larger (NewSlice:
// 64 ns or 1 %). Longer durations are counted at Highest and reported by Clamped. Memory is constant: 200 KiB for New,
// 28 KiB for NewSlice.
//
// A histogram has no lock. Give each worker thread its own, and merge them at the end of the second. Merging adds counts,
// so the result is the histogram of the union. Percentiles must never be averaged.
//
// Encode writes the standard V2 compressed form, which every HdrHistogram tool reads.
package histogram

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Range and precision of every histogram.
const (
	// Lowest is the shortest duration distinguished from 0. The unit of the counts is 64 ns.
	Lowest = 100 * time.Nanosecond
	// Highest is the longest duration. Longer ones are counted here and in Clamped.
	Highest = 10 * time.Minute
	// Digits is the number of significant decimal digits of New.
	Digits = 3
	// SliceDigits is that of NewSlice, for one second of a timeline at a seventh of the size.
	SliceDigits = 2
)

// A Histogram counts durations. It is not safe for concurrent use. Create one with New, NewSlice or Decode.
type Histogram struct {
	hdr     *hdrhistogram.Histogram
	clamped int64
}

// New returns an empty histogram at full precision (Digits). It takes 200 KiB.
func New() *Histogram { return sized(Digits) }

// NewSlice returns an empty histogram at slice precision (SliceDigits). It takes 28 KiB.
func NewSlice() *Histogram { return sized(SliceDigits) }

func sized(digits int) *Histogram {
	return &Histogram{hdr: hdrhistogram.New(int64(Lowest), int64(Highest), digits)}
}

// Record counts one duration. It does not allocate. A negative duration counts as 0. A duration above Highest counts as
// Highest and increments Clamped.
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

// clamp brings d into the range. It is separate so that RecordN stays short.
func (h *Histogram) clamp(d time.Duration, n int64) time.Duration {
	if d < 0 {
		return 0
	}
	h.clamped += n
	return Highest
}

// Merge adds every count of from, at the precision of the receiver.
func (h *Histogram) Merge(from *Histogram) {
	h.clamped += from.clamped
	h.add(from.hdr)
}

// add adds the counts of a library histogram and clamps values above Highest.
func (h *Histogram) add(from *hdrhistogram.Histogram) {
	if above := h.hdr.Merge(from); above > 0 {
		h.RecordN(Highest+1, above)
	}
}

// Reset clears the histogram and keeps its memory.
func (h *Histogram) Reset() {
	h.hdr.Reset()
	h.clamped = 0
}

// Count is the number of recorded durations.
func (h *Histogram) Count() int64 { return h.hdr.TotalCount() }

// Clamped is the number of durations above Highest. Encode does not include it.
func (h *Histogram) Clamped() int64 { return h.clamped }

// Min is the shortest duration, within the precision; 0 without durations.
func (h *Histogram) Min() time.Duration { return time.Duration(h.hdr.Min()) }

// Max is the longest duration, within the precision; 0 without durations.
func (h *Histogram) Max() time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return min(time.Duration(h.hdr.Max()), Highest)
}

// Mean is the arithmetic mean, within the precision; 0 without durations.
func (h *Histogram) Mean() time.Duration { return time.Duration(h.hdr.Mean()) }

// StdDev is the standard deviation, within the precision; 0 without durations.
func (h *Histogram) StdDev() time.Duration { return time.Duration(h.hdr.StdDev()) }

// Encode returns the histogram in V2 compressed form in base64, the payload of an HdrHistogram log line. An empty
// histogram encodes as "".
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

// maxCount bounds the samples of a decoded histogram, so that sums cannot overflow. No run makes as many.
const maxCount = 1 << 40

// Decode reads the output of Encode. The empty string is an empty histogram at slice precision. A histogram of another
// tool with another range is counted again at full precision. Text that is not a V2 compressed histogram is an error.
// The format bounds the memory for decoding to 58 MB.
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

// sameRange reports whether hdr has the buckets of New or NewSlice.
func sameRange(hdr *hdrhistogram.Histogram) bool {
	digits := hdr.SignificantFigures()
	return hdr.LowestTrackableValue() == int64(Lowest) && hdr.HighestTrackableValue() == int64(Highest) &&
		(digits == Digits || digits == SliceDigits)
}

// TailSamples is how many samples must lie beyond a percentile for it to be stated: p99 needs 1,000 samples and p99.9
// needs 10,000. With fewer samples, a handful of requests would decide the figure.
const TailSamples = 10

// Quantile is the duration that a fraction q of the samples (0 to 1) do not exceed, within the precision; 0 without
// samples. Use Carries to decide whether the sample is large enough for q.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.Count() == 0 {
		return 0
	}
	return min(time.Duration(h.hdr.ValueAtPercentile(q*100)), Highest)
}

// Carries reports whether at least TailSamples samples lie beyond the quantile q.
func (h *Histogram) Carries(q float64) bool { return Carries(h.Count(), q) }

// Carries reports whether at least TailSamples of n samples lie beyond the quantile q.
func Carries(n int64, q float64) bool {
	const rounding = 1e-6 // 1-q is not exact in binary, but 100 samples suffice for 0.9
	return q > 0 && q < 1 && (1-q)*float64(n) > TailSamples-rounding
}

// Cumulative returns for each bound how many durations are at most as long, within the precision. Bounds must ascend.
func (h *Histogram) Cumulative(bounds []time.Duration) []int64 {
	counts := make([]int64, len(bounds))
	for _, bar := range h.hdr.Distribution() {
		for i := len(bounds) - 1; i >= 0 && bar.To <= int64(bounds[i]); i-- {
			counts[i] += bar.Count
		}
	}
	return counts
}

// rank is the k-th shortest sample, k from 1.
func (h *Histogram) rank(k int64) time.Duration {
	return h.Quantile(float64(k) / float64(h.Count()))
}
