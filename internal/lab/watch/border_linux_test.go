package watch

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
)

// A burnt is the CPU time of a process at a time.
type burnt struct {
	At  time.Time     `json:"at"`
	CPU time.Duration `json:"cpu"`
}

// serveBurning answers each request after a ms of CPU time. /burnt lists the CPU time of the process so far, with a reading
// before and after each request and several within.
func serveBurning(a, _ int) (map[string]float64, error) {
	var (
		mu      sync.Mutex
		history []burnt
	)
	read := func() time.Duration {
		var used unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used)
		history = append(history, burnt{time.Now(), time.Duration(used.Nano())})
		return time.Duration(used.Nano())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			end := read() + time.Duration(a)*time.Millisecond
			if r.URL.Path == "/burnt" {
				_ = json.NewEncoder(w).Encode(history)
				return
			}
			for read() < end {
				spin(1 << 17)
			}
		}))
	}()
	return map[string]float64{"port": float64(listener.Addr().(*net.TCPAddr).Port)}, nil
}

// burntBetween is what the server says it used between two times.
func burntBetween(history []burnt, from, to time.Time) float64 {
	at := func(t time.Time) float64 {
		i, _ := slices.BinarySearchFunc(history, t, func(b burnt, t time.Time) int { return b.At.Compare(t) })
		if i == 0 || i == len(history) {
			return history[min(i, len(history)-1)].CPU.Seconds()
		}
		before, after := history[i-1], history[i]
		share := t.Sub(before.At).Seconds() / after.At.Sub(before.At).Seconds()
		return before.CPU.Seconds() + share*(after.CPU-before.CPU).Seconds()
	}
	return at(to) - at(from)
}

func readBurnt(t *testing.T, url string) (history []burnt) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"burnt", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&history); err != nil {
		t.Fatal(err)
	}
	return history
}

// TestStepsAreIndependent loads a process that knows its CPU time, in steps of very different load. The figure of a step is that
// of the process within 5 %, and within what the samples were away from the borders, which a busy machine delays.
func TestStepsAreIndependent(t *testing.T) {
	t.Parallel()
	repeatDisturbed(t, func() string { return loadSteps(t) })
}

func loadSteps(t *testing.T) (wrong string) {
	t.Helper()
	server := start(t, "serve", 4, 0)
	url := fmt.Sprintf("http://127.0.0.1:%d/", int(server.figures["port"]))
	listener := listenWatch(t, "127.0.0.1:0", "")
	serveWatch(t, listener, ServeConfig{
		Watcher: New(time.Now(), watch(t, server.spec())), Clock: func() time.Time { return time.Now().Add(90 * time.Second) },
	})
	o := load.Options{
		Target: url, Output: load.Output{ReportInterval: time.Second},
		Amount: load.Amount{Rate: "4,120,4", Duration: 2500 * time.Millisecond}, Policy: load.Policy{Arrival: "constant", Connections: "2", Timeout: time.Minute},
	}
	header := result.NewHeader("test", nil)
	set := (*Set)(nil)
	run, err := load.Execute(t.Context(), o, load.Hooks{Watch: func() (_ load.Watcher, err error) {
		spec := Spec{Processes: []string{"app=" + server.spec()}, Remotes: []string{"http://" + listener.Addr().String()}}
		set, err = OpenSet(t.Context(), spec, slog.New(slog.DiscardHandler))
		return set, err
	}}, header, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	var all []string
	history := readBurnt(t, url)
	for i := range run.Steps {
		step, usage := &run.Steps[i], run.Usage(i)
		from := run.Header.StartedAt.Add(time.Duration(step.Start * float64(time.Second)))
		to := from.Add(time.Duration(step.Total.Elapsed * float64(time.Second)))
		want := burntBetween(history, from, to)
		processes := usage.Of(result.SamplerProcess)
		if len(processes) != 2 {
			t.Fatalf("%+v", processes)
		}
		for _, p := range processes {
			got, off := p.Value(result.CPUUser)+p.Value(result.CPUSystem), p.Value(result.BorderError)
			if math.IsNaN(off) {
				all = append(all, fmt.Sprintf("%s, %q: no samples at the borders, %.4g s of CPU time, want %.4g", step.Name, p.Host, got, want))
				continue
			}
			if !(math.Abs(got-want) <= 0.05*want+2*off) {
				all = append(all, fmt.Sprintf("%s, %q: %.4g s of CPU time, want %.4g; samples are up to %.3g s from the borders", step.Name, p.Host, got, want, off))
			}
		}
	}
	return strings.Join(all, "; ")
}
