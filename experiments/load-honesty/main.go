// Command load-honesty checks what load generators say against what is known:
//
//   - a server that stalls for one second in every ten, at 1,000 requests a
//     second: the true p99 is computed, spillway load must agree with it, and
//     closed loops are printed beside it;
//   - Little's law for 3,000 requests over 300 connections: requests in flight
//     must be rate times time in the target (ab and spillway load).
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"
)

func main() {
	spillway := flag.String("spillway", "bin/spillway", "the program to measure")
	seconds := flag.Int("seconds", 60, "seconds under the stalls, a multiple of 10")
	rounds := flag.Int("rounds", 3, "rounds of Little's law")
	flag.Parse()
	if err := errors.Join(stalls(*spillway, *seconds), little(*spillway, *rounds)); err != nil {
		fmt.Fprintln(os.Stderr, "load-honesty:", err)
		os.Exit(1)
	}
}

const (
	rate   = 1000
	period = 10 * time.Second
	stall  = time.Second
)

// staller answers at once, except that nothing is answered in the last second
// of every ten.
type staller struct {
	mu sync.RWMutex // held for writing during a stall
}

func (s *staller) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	io.WriteString(w, "ok")
}

func (s *staller) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(period - stall):
		}
		s.mu.Lock()
		select {
		case <-stop:
		case <-time.After(stall):
		}
		s.mu.Unlock()
	}
}

// serve serves handler on a free port until stop.
func serve(handler http.Handler) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return "http://" + listener.Addr().String() + "/", func() {
		server.Close()
		<-done
	}, nil
}

// figures is what both experiments read from spillway's JSON.
type figures struct {
	Steps []struct {
		Done     int64
		Rate     float64 `json:"rate_hz"`
		Validity string
		Reasons  []string
		Response struct {
			P50 float64 `json:"p50_seconds"`
			P99 float64 `json:"p99_seconds"`
		}
		Service struct {
			P99 float64 `json:"p99_seconds"`
		}
		Little struct {
			InFlight float64 `json:"in_flight_mean"`
			Service  float64 `json:"service_mean_seconds"`
			Ratio    float64
		}
	}
}

func load(spillway string, args ...string) (f figures, err error) {
	output, err := exec.Command(spillway, append([]string{"load", "--json"}, args...)...).Output()
	if err != nil {
		return f, fmt.Errorf("%s load: %w", spillway, err)
	}
	if err := json.Unmarshal(output, &f); err != nil || len(f.Steps) != 1 {
		return f, fmt.Errorf("read what load says: %w", err)
	}
	return f, nil
}

// stalls compares p99 with the computed one. Of all arrivals a tenth is due in
// a stall; evenly spaced, their waits are spread evenly from 0 to 1 s. So the
// share that waits longer than x is 0.1 (1 s - x), which is 1 % at x = 0.9 s.
func stalls(spillway string, seconds int) error {
	handler := &staller{}
	url, stop, err := serve(handler)
	if err != nil {
		return err
	}
	defer stop()
	end := make(chan struct{})
	defer close(end)
	go handler.run(end)
	open, err := load(spillway, url, "--rate", strconv.Itoa(rate), "-d", fmt.Sprintf("%ds", seconds), "-c", "2000")
	if err != nil {
		return err
	}
	closed, err := load(spillway, url, "-d", fmt.Sprintf("%ds", seconds), "-c", "10")
	if err != nil {
		return err
	}
	ab, err := exec.Command("ab", "-q", "-k", "-c", "10", "-t", strconv.Itoa(seconds), "-n", "100000000", url).Output()
	if err != nil {
		return fmt.Errorf("ab: %w", err)
	}
	wrk, err := exec.Command("wrk", "-t1", "-c10", "-d"+strconv.Itoa(seconds), "--latency", url).Output()
	if err != nil {
		return fmt.Errorf("wrk: %w", err)
	}
	share := stall.Seconds() / period.Seconds()
	want := stall.Seconds() * (1 - 0.01/share)
	got := open.Steps[0].Response.P99
	fmt.Printf("a stall of %s in every %s, %d s\n", stall, period, seconds)
	fmt.Printf("  computed p99 at %d/s              %8.1f ms\n", rate, want*1e3)
	fmt.Printf("  spillway load --rate %d           %8.1f ms  (%+.1f %%)  p50 %.2f ms  %s\n", rate, got*1e3, 100*(got/want-1),
		open.Steps[0].Response.P50*1e3, open.Steps[0].Validity)
	fmt.Printf("  spillway load -c 10, a closed loop  %8.1f ms\n", closed.Steps[0].Response.P99*1e3)
	fmt.Printf("  ab -k -c 10, a closed loop          %8s ms\n", word(ab, `(?m)^\s+99%\s+(\S+)`))
	fmt.Printf("  wrk -t1 -c10, a closed loop         %8s     (wrk makes up the requests that it did not send)\n",
		word(wrk, `(?m)^\s+99%\s+(\S+)`))
	if got < 0.95*want || got > 1.05*want {
		return fmt.Errorf("p99 %.3f s is not within 5 %% of %.3f s", got, want)
	}
	return nil
}

// slow answers after 5 ms, so that 300 connections have something to wait for.
func slow(w http.ResponseWriter, _ *http.Request) {
	time.Sleep(5 * time.Millisecond)
	io.WriteString(w, "ok")
}

func little(spillway string, rounds int) error {
	url, stop, err := serve(http.HandlerFunc(slow))
	if err != nil {
		return err
	}
	defer stop()
	fmt.Println("3,000 requests over 300 short connections: rate x mean time in the target, over the connections in use")
	for range rounds {
		output, err := exec.Command("ab", "-q", "-n", "3000", "-c", "300", url).Output()
		if err != nil {
			return fmt.Errorf("ab: %w", err)
		}
		perSecond, _ := strconv.ParseFloat(word(output, `Requests per second:\s+(\S+)`), 64)
		total, _ := strconv.ParseFloat(word(output, `Total:\s+\d+\s+(\d+)`), 64)
		fmt.Printf("  ab                %8.0f/s x %6.2f ms = %6.1f of 300\n", perSecond, total, perSecond*total/1e3)
		ours, err := load(spillway, url, "-n", "3000", "-c", "300", "--per-connection", "1")
		if err != nil {
			return err
		}
		l := ours.Steps[0].Little
		fmt.Printf("  spillway load     %8.0f/s x %6.2f ms, %6.1f in flight, N/(XR) = %.3f\n", ours.Steps[0].Rate, l.Service*1e3, l.InFlight,
			l.Ratio)
		if l.Ratio < 0.9 || l.Ratio > 1.1 {
			return fmt.Errorf("the books do not balance: N/(XR) = %.3f", l.Ratio)
		}
	}
	return nil
}

func word(output []byte, pattern string) string {
	match := regexp.MustCompile(pattern).FindSubmatch(output)
	if match == nil {
		return "?"
	}
	return string(match[1])
}
