package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"spillway/internal/exit"
	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// Finding is the result of one part of the self-test.
type Finding struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Text   string `json:"text"` // the figures and their limits

	contended bool // other programs took the CPU that the generator needed
}

// Limits of the self-test.
const (
	ceilingMin    = 5000.0           // requests per second against a server that does nothing
	stallError    = 0.05             // deviation of p99 with a stall from the computed value
	lagP99Max     = time.Millisecond // of the pacer, with a free core
	evenSpreadMax = 0.25             // standard deviation of evenly spaced arrivals, in gaps
	ksCritical    = 1.63             // Kolmogorov-Smirnov, 1 %, times sqrt(n)
	stallAfter    = time.Second      // from the start of a step
)

// SelfTest measures the generator on this machine: its highest rate against a
// server that does nothing, whether a stall shows in p99, and whether requests
// arrive when they are due. It takes about twelve seconds.
func SelfTest(ctx context.Context, seed uint64, report func(Finding)) (passed bool, err error) {
	passed = true
	for _, part := range []func(context.Context, uint64) (Finding, error){testCeiling, testStall, testPacer, testEven, testPoisson} {
		finding, err := part(ctx, seed)
		if err != nil {
			return false, err
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		passed = passed && finding.Passed
		report(finding)
	}
	return passed, nil
}

// ExecuteSelfTest runs SelfTest and prints a line per finding, or one JSON document.
// Its error has the code exit.Failed if a part of the test fails.
func ExecuteSelfTest(ctx context.Context, seed uint64, asJSON bool, w io.Writer) error {
	findings := []Finding{}
	passed, err := SelfTest(ctx, seed, func(f Finding) {
		findings = append(findings, f)
		if !asJSON {
			verdict := "FAIL"
			if f.Passed {
				verdict = "pass"
			}
			fmt.Fprintf(w, "%-4s  %-17s  %s\n", verdict, f.Name, f.Text)
		}
	})
	if err != nil {
		return err
	}
	if asJSON {
		document := struct {
			Passed   bool      `json:"passed"`
			Findings []Finding `json:"findings"`
		}{passed, findings}
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		if err := out.Encode(document); err != nil {
			return fmt.Errorf("write findings: %w", err)
		}
	}
	if !passed {
		return exit.FailedError(errors.New("self-test failed: do not trust measurements on this machine now"))
	}
	return nil
}

// trial is one step against a null server and its results.
type trial struct {
	total    *result.Total
	response *histogram.Histogram
	service  *histogram.Histogram
	lag      *histogram.Histogram
	arrivals []int64 // times at which the server received requests
}

// try runs one step. The server stalls at stallAt for stallFor.
func try(ctx context.Context, seed uint64, step Step, poisson bool, stallAt, stallFor time.Duration) (t trial, err error) {
	clock := target.NewClock()
	server, err := startNullServer(clock)
	if err != nil {
		return t, err
	}
	tg, err := target.Open(ctx, target.Config{
		URL: "http://" + server.address.String() + "/", Timeout: DefaultTimeout, Clock: clock,
		Seed: seed,
	})
	if err == nil && stallAt > 0 {
		server.stallLater(stallAt, stallFor)
	}
	if err == nil {
		config := Config{Target: tg, Clock: clock, Steps: []Step{step}, Poisson: poisson, Timeout: DefaultTimeout, Seed: seed}
		_, err = Run(ctx, config, Listener{Total: func(total *result.Total) error {
			t.total = total
			return nil
		}})
	}
	if closeErr := server.close(); err == nil {
		err = closeErr
	}
	if err != nil || t.total == nil {
		return t, fmt.Errorf("self-test: %w", errOr(err, ctx.Err()))
	}
	t.arrivals = server.seen()
	return t, t.decode()
}

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

func (t *trial) decode() (err error) {
	if t.response, err = histogram.Decode(string(t.total.Latency.Response)); err != nil {
		return err
	}
	if t.service, err = histogram.Decode(string(t.total.Latency.Service)); err != nil {
		return err
	}
	t.lag, err = histogram.Decode(string(t.total.Latency.Lag))
	return err
}

func testCeiling(ctx context.Context, seed uint64) (Finding, error) {
	f := Finding{Name: "ceiling"}
	t, err := try(ctx, seed, Step{Connections: 32, Duration: 2 * time.Second}, false, 0, 0)
	if err != nil {
		return f, err
	}
	rate := float64(t.total.Done) / t.total.Elapsed
	cpu := (t.total.Cost.CPUUser + t.total.Cost.CPUSystem) / float64(max(t.total.Done, 1))
	f.Passed = rate >= ceilingMin && t.total.Errors.Total() == 0 && math.Abs(t.total.Little.Ratio-1) <= littleMax
	f.contended = t.total.Validity == result.HostContended
	f.Text = fmt.Sprintf("%.0f/s against a server that does nothing, %.2f us of CPU per request; in flight over rate times service time "+
		"%.3f (1 = Little's law holds), errors %d",
		rate, cpu*1e6, t.total.Little.Ratio, t.total.Errors.Total())
	return f, nil
}

// testStall stalls the server for one second of five. One fifth of the requests
// are due during the stall. Their waits are spread evenly between 0 and 1 s, so
// 1 % of all requests wait longer than 0.95 s.
func testStall(ctx context.Context, seed uint64) (Finding, error) {
	const rate, length, stall = 1000, 5 * time.Second, time.Second
	f := Finding{Name: "stall"}
	t, err := try(ctx, seed, Step{Profile: Constant(rate, length), Connections: 2000, Duration: length}, false, stallAfter, stall)
	if err != nil {
		return f, err
	}
	share := stall.Seconds() / length.Seconds()
	want := stall.Seconds() * (1 - 0.01/share)
	got := t.response.Quantile(0.99).Seconds()
	f.Passed = math.Abs(got-want) <= stallError*want
	f.contended = t.total.Validity == result.HostContended
	f.Text = fmt.Sprintf("a stall of %s in %s at %d/s: p99 %.3f s, computed %.3f s, allowed %.0f %%", stall, length, rate, got, want,
		100*stallError)
	return f, nil
}

func testPacer(ctx context.Context, seed uint64) (Finding, error) {
	const rate, length = 5000, 2 * time.Second
	f := Finding{Name: "pacer"}
	t, err := try(ctx, seed, Step{Profile: Constant(rate, length), Connections: 100, Duration: length}, false, 0, 0)
	if err != nil {
		return f, err
	}
	lag := t.lag.Quantile(0.99)
	achieved := float64(t.total.Done) / (rate * length.Seconds())
	f.Passed = lag <= lagP99Max && achieved >= 0.999
	f.Text = fmt.Sprintf("at %d/s: %.2f %% achieved, pacer lag p50 %s, p99 %s (at most %s)", rate, 100*achieved, round(t.lag.Quantile(0.5)),
		round(lag), lagP99Max)
	return f, nil
}

func testEven(ctx context.Context, seed uint64) (Finding, error) {
	const rate, length = 500, 2 * time.Second
	f := Finding{Name: "constant arrivals"}
	t, err := try(ctx, seed, Step{Profile: Constant(rate, length), Connections: 100, Duration: length}, false, 0, 0)
	if err != nil {
		return f, err
	}
	var gaps moments
	for _, gap := range gapsOf(t.arrivals) {
		gaps.add(gap * rate)
	}
	f.Passed = math.Abs(gaps.mean()-1) < 0.02 && gaps.stdDev() <= evenSpreadMax
	f.Text = fmt.Sprintf("%d arrivals at the server: mean gap %.4f, standard deviation %.4f of the intended gap (at most %.2f)",
		len(t.arrivals), gaps.mean(), gaps.stdDev(), evenSpreadMax)
	return f, nil
}

func testPoisson(ctx context.Context, seed uint64) (Finding, error) {
	const rate, length = 500, 3 * time.Second
	f := Finding{Name: "poisson arrivals"}
	t, err := try(ctx, seed, Step{Profile: Constant(rate, length), Connections: 100, Duration: length}, true, 0, 0)
	if err != nil {
		return f, err
	}
	gaps := gapsOf(t.arrivals)
	distance := exponentialDistance(gaps, rate)
	critical := ksCritical / math.Sqrt(float64(len(gaps)))
	f.Passed = distance <= critical
	f.Text = fmt.Sprintf("%d arrivals at the server: distance to the exponential distribution %.4f (Kolmogorov-Smirnov, 1 %% at %.4f)",
		len(t.arrivals), distance, critical)
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
