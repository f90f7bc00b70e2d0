package result

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hdr encodes durations with the geometry that package histogram uses.
func hdr(t testing.TB, digits int, samples ...time.Duration) HDR {
	t.Helper()
	h := hdrhistogram.New(100, int64(10*time.Minute), digits)
	for _, d := range samples {
		if err := h.RecordValue(int64(d)); err != nil {
			t.Fatal(err)
		}
	}
	payload, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return HDR(payload)
}

func count(t testing.TB, payload HDR) int64 {
	t.Helper()
	if payload == "" {
		return 0
	}
	h, err := hdrhistogram.Decode([]byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	return h.TotalCount()
}

// sampleRun is a run of two steps of three seconds each, as written by a host.
func sampleRun(t testing.TB, host string, start time.Time) *Run {
	t.Helper()
	run := &Run{
		Header: Header{
			Run: "r1", StartedAt: start, Command: []string{"spillway", "load", "http://127.0.0.1/"}, Tool: "v1", Go: "go1.26",
			Seed: 7, Target: "http://127.0.0.1/", Machine: Machine{Host: host, Cores: 2, TCPTWReuse: 2},
		},
		End: End{Reason: Finished, Elapsed: 6},
	}
	rnd := rand.New(rand.NewPCG(uint64(len(host)), 1))
	for i := range 2 {
		step := StepRun{
			Step:  Step{Index: i, Loop: LoopOpen, Arrival: "constant", OfferedHz: 10, Connections: 4, Duration: 3, Start: float64(3 * i)},
			Total: Total{Step: i, Elapsed: 3, Validity: Valid},
		}
		var all []time.Duration
		for second := range 3 {
			samples := make([]time.Duration, 10)
			for k := range samples {
				samples[k] = time.Duration(rnd.ExpFloat64() * float64(time.Millisecond))
			}
			all = append(all, samples...)
			slice := Slice{
				Step: i, Second: second, Length: 1, Connections: 4, CPUUser: 0.01, CPUSystem: 0.02,
				Counters: Counters{Due: 11, Sent: 10, Done: 10, Completed: 9, BytesIn: 1000, BytesOut: 100, Connects: 1, Statuses: map[int]int64{200: 9, 502: 1}},
				Latency:  Latency{Response: hdr(t, 2, samples...), Service: hdr(t, 2, samples...)},
			}
			slice.Errors[StatusError] = 1
			slice.Errors[Unsent] = 1
			step.Slices = append(step.Slices, slice)
			step.Total.Add(&slice.Counters)
		}
		step.Total.Latency = Latency{Response: hdr(t, 3, all...), Service: hdr(t, 3, all...)}
		step.Total.Connections = ConnectionStats{ParallelMax: 4, ParallelMean: 4, Slots: 4, RequestsMin: 7, RequestsMax: 8, RequestsMean: 7.5}
		step.Total.Little = Little{InFlightMean: 0.01, Rate: 10, ServiceMean: 0.001, Ratio: 1}
		step.Total.Cost = Cost{CPUUser: 0.03, CPUSystem: 0.06, Threads: 1, ThreadBusyMax: 0.03}
		run.Steps = append(run.Steps, step)
	}
	return run
}

var sampleStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// encoded writes the run as a plain file.
func encoded(t testing.TB, run *Run) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := (&writer{out: &file}).write(run.records()...); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}
