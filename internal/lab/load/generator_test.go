package load

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// finding is what one test of the generator found.
type finding struct {
	passed    bool
	text      string // the figures and their limits
	contended bool   // other programs took the CPU that the generator needed
}

const (
	ceilingMin = 5000.0      // requests per second against a server that does nothing
	stallError = 0.05        // deviation of p99 with a stall from the computed value
	ksCritical = 1.63        // Kolmogorov-Smirnov, 1 %, times sqrt(n)
	stallAfter = time.Second // from the start of a step
)

// TestGenerator runs what depends least on how busy the machine is; other
// programs can only make it worse, so the best of three counts. A part may only fail if
// the machine was disturbed.
func TestGenerator(t *testing.T) {
	for _, part := range []func() (finding, error){
		func() (finding, error) {
			limit := time.Hour
			if testing.Short() { // an interrupted step is judged as it is
				limit = time.Second / 2
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			return testCeiling(ctx, 1)
		},
		func() (finding, error) { return testStall(t.Context(), 1) },
	} {
		var findings []finding
		delays := time.Duration(0)
		for len(findings) < 3 && (len(findings) == 0 || !findings[len(findings)-1].passed) {
			stop := measureDelays()
			found, err := part()
			delays = stop()
			if err != nil {
				found.passed, found.text = false, err.Error()
			}
			findings = append(findings, found)
		}
		if last := findings[len(findings)-1]; !last.passed && !last.contended && delays < delayMax {
			t.Errorf("%+v", findings)
		}
	}
}

// nullStep is one step against a null server and its results.
type nullStep struct {
	total    *result.Total
	response *histogram.Histogram
}

// runNullStep runs one step. The server stalls at stallAt for stallFor.
func runNullStep(ctx context.Context, seed uint64, step Step, stallAt, stallFor time.Duration) (t nullStep, err error) {
	clock := target.NewClock()
	server, err := startNullServer(clock)
	if err != nil {
		return t, err
	}
	tg, err := target.Open(ctx, target.Config{
		URL: "http://" + server.address.String() + "/", Timeout: 10 * time.Second, Clock: clock,
		Seed: seed,
	})
	if err == nil && stallAt > 0 {
		server.stallLater(stallAt, stallFor)
	}
	if err == nil {
		config := Config{Target: tg, Clock: clock, Steps: []Step{step}, Timeout: 10 * time.Second, Seed: seed}
		_, err = Run(ctx, config, Listener{Total: func(total *result.Total) error {
			t.total = total
			return nil
		}})
	}
	if closeErr := server.close(); err == nil {
		err = closeErr
	}
	if err != nil || t.total == nil {
		return t, fmt.Errorf("run against a null server: %w", errOr(err, ctx.Err()))
	}
	t.response, err = histogram.Decode(string(t.total.Latency.Response))
	return t, err
}

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

func testCeiling(ctx context.Context, seed uint64) (finding, error) {
	f := finding{}
	t, err := runNullStep(ctx, seed, Step{Connections: 32, Duration: 2 * time.Second}, 0, 0)
	if err != nil {
		return f, err
	}
	rate := float64(t.total.Done) / t.total.Elapsed
	cpu := (t.total.Cost.CPUUser + t.total.Cost.CPUSystem) / float64(max(t.total.Done, 1))
	f.passed = rate >= ceilingMin && t.total.Errors.Total() == 0 && math.Abs(t.total.Little.Ratio-1) <= littleMax
	f.contended = t.total.Validity == result.HostContended
	f.text = fmt.Sprintf("%.0f/s against a server that does nothing, %.2f us of CPU per request; in flight over rate times service time "+
		"%.3f (1 = Little's law holds), errors %d",
		rate, cpu*1e6, t.total.Little.Ratio, t.total.Errors.Total())
	return f, nil
}

// testStall stalls the server for one second of five. One fifth of the requests
// are due during the stall. Their waits are spread evenly between 0 and 1 s, so
// 1 % of all requests wait longer than 0.95 s.
func testStall(ctx context.Context, seed uint64) (finding, error) {
	const rate, length, stall = 1000, 5 * time.Second, time.Second
	f := finding{}
	t, err := runNullStep(ctx, seed, Step{Rate: rate, Connections: 2000, Duration: length}, stallAfter, stall)
	if err != nil {
		return f, err
	}
	share := stall.Seconds() / length.Seconds()
	want := stall.Seconds() * (1 - 0.01/share)
	got := t.response.Quantile(0.99).Seconds()
	f.passed = math.Abs(got-want) <= stallError*want
	f.contended = t.total.Validity == result.HostContended
	f.text = fmt.Sprintf("a stall of %s in %s at %d/s: p99 %.3f s, computed %.3f s, allowed %.0f %%", stall, length, rate, got, want,
		100*stallError)
	return f, nil
}

// gapsOf returns the seconds between consecutive times.
func gapsOf(times []int64) []float64 {
	var gaps []float64
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, time.Duration(times[i]-times[i-1]).Seconds())
	}
	return gaps
}

// exponentialDistance is the largest distance between the distribution of the gaps
// and the exponential distribution with that rate.
func exponentialDistance(gaps []float64, rate float64) float64 {
	sorted := slices.Sorted(slices.Values(gaps))
	distance, n := 0.0, float64(len(sorted))
	for i, gap := range sorted {
		expected := 1 - math.Exp(-gap*rate)
		distance = max(distance, math.Abs(expected-float64(i)/n), math.Abs(expected-float64(i+1)/n))
	}
	return distance
}
