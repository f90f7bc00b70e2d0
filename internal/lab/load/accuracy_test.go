package load

import (
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// ending is how a scripted server ends a request.
type ending int

const (
	answers ending = iota
	hangs          // until the client gives up
	resets
	closes // without an answer
)

// script is what the server does with one request: it waits, and ends it.
type script struct {
	wait time.Duration
	end  ending
}

// scripted starts a server that treats its n-th request, from 0, as the script says, and opens it. Over TLS, sessions drive
// it; without, an event loop.
func scripted(t testing.TB, secure bool, timeout time.Duration, of func(n int64) script) (*target.Target, target.Clock, *atomic.Int64) {
	t.Helper()
	seen := new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := of(seen.Add(1) - 1)
		if s.wait > 0 {
			<-time.After(s.wait)
		}
		switch s.end {
		case answers:
			io.WriteString(w, "ok")
		case hangs:
			<-r.Context().Done()
		default:
			cut(w, s.end == resets)
		}
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		startTLS(t, server)
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	clock := target.NewClock()
	return openTarget(t, target.Config{URL: server.URL, Insecure: secure, Timeout: timeout}, clock), clock, seen
}

// cut closes the connection of a request, or resets it.
func cut(w http.ResponseWriter, reset bool) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// truth is a percentile of the response times of the requests with the numbers from up to to, which begin as soon as they are due. A request
// without an answer ranks above every answer.
func truth(from, to int64, q float64, timeout time.Duration, of func(int64) script) (d time.Duration, atLeast bool) {
	var known, all []time.Duration
	for i := from; i < to; i++ {
		s := of(i)
		waited := s.wait
		if s.end == hangs {
			waited = timeout
		}
		if s.end == answers {
			known = append(known, waited)
		}
		all = append(all, waited)
	}
	slices.Sort(known)
	slices.Sort(all)
	rank := max(int(math.Ceil(q*float64(to-from)-1e-9)), 1) - 1
	if rank < len(known) {
		return known[rank], false
	}
	return all[rank], true
}

// TestPercentilesOfAllRequests compares percentiles with the truth, computed from what the server did.
func TestPercentilesOfAllRequests(t *testing.T) {
	t.Parallel()
	spread := func(i int64) time.Duration { return 200*time.Millisecond + time.Duration(i%97)*4*time.Millisecond }
	for name, of := range map[string]func(int64) script{
		"answers": func(i int64) script { return script{wait: spread(i)} },
		"a tenth hangs": func(i int64) script {
			if i%10 == 0 {
				return script{end: hangs}
			}
			return script{wait: spread(i)}
		},
		"stalls, resets and closes": func(i int64) script {
			switch {
			case i%50 == 0:
				return script{wait: 900 * time.Millisecond}
			case i%250 == 1:
				return script{wait: 100 * time.Millisecond, end: resets}
			case i%500 == 2:
				return script{wait: 50 * time.Millisecond, end: closes}
			}
			return script{wait: spread(i)}
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); comparePercentiles(t, false, 500, 0, of) })
		t.Run(name+" over TLS", func(t *testing.T) { t.Parallel(); comparePercentiles(t, true, 250, 1200*time.Millisecond, of) })
	}
}

// comparePercentiles repeats a run if it was slower than computed: other programs can only make it slower. So does the race
// detector, with which the server, a part of this process, cannot keep to its script; then only what is too fast is an error.
func comparePercentiles(t *testing.T, secure bool, rate float64, warmup time.Duration, of func(int64) script) {
	slow := percentilesSlow(t, secure, rate, warmup, of)
	if raceDetector() {
		return
	}
	for attempt := 1; slow != "" && attempt < 5; attempt++ {
		slow = percentilesSlow(t, secure, rate, warmup, of)
	}
	if slow != "" {
		t.Error(slow)
	}
}

// raceDetector reports whether this program was built with it.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func percentilesSlow(t *testing.T, secure bool, rate float64, warmup time.Duration, of func(int64) script) (slow string) {
	const length, timeout, limit = 2 * time.Second, 1100 * time.Millisecond, time.Second
	tg, clock, _ := scripted(t, secure, timeout, of)
	slo, err := result.ParseSLO("p99<1s")
	if err != nil {
		t.Fatal(err)
	}
	r := runLoad(t, t.Context(), Config{
		Target: tg, Clock: clock, SLO: slo, Timeout: timeout,
		Steps: []Step{{Rate: rate, Connections: 400, Duration: length, Warmup: warmup}},
	})
	total := &r.totals[0]
	times, err := total.Latency.Responses()
	if err != nil {
		t.Fatal(err)
	}
	from, n := int64(rate*warmup.Seconds()), int64(rate*length.Seconds())
	if times.Count() != n || total.Due != n {
		t.Errorf("%d response times of %d requests", times.Count(), n)
	}
	for _, q := range []float64{0.5, 0.99, 0.999} {
		got, atLeast := times.Quantile(q)
		want, wantAtLeast := truth(from, from+n, q, timeout, of)
		text := fmt.Sprintf("p%g %s (at least: %v), computed %s (%v): %s %q", q*100, got, atLeast, want, wantAtLeast, total.Validity, total.Reasons)
		if wantAtLeast && !atLeast || float64(got) < 0.98*float64(want) {
			t.Error(text)
		}
		if !r.inTime(total, atLeast == wantAtLeast && float64(got) <= 1.02*float64(want)) {
			slow = text
		}
	}
	want, atLeast := truth(from, from+n, 0.99, timeout, of)
	if met := total.SLO[0].Met; met && (atLeast || want >= limit) {
		t.Errorf("p99 %s (at least: %v), SLO %+v", want, atLeast, total.SLO[0])
	} else if !r.inTime(total, met == (!atLeast && want < limit)) {
		slow = fmt.Sprintf("p99 %s, SLO %+v", want, total.SLO[0])
	}
	return slow
}

// TestInterruptedRequests interrupts a run whose target does not answer some requests: they are unfinished, and waited until
// they were given up.
func TestInterruptedRequests(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		for _, rate := range []float64{0, 200} {
			tg, clock, seen := scripted(t, secure, time.Minute, func(n int64) script {
				if n%20 == 19 {
					return script{end: hangs}
				}
				return script{}
			})
			ctx, cancel := context.WithCancel(t.Context())
			var interrupting sync.WaitGroup
			interrupting.Go(func() {
				defer cancel()
				for seen.Load() < 60 && ctx.Err() == nil {
					<-time.After(5 * time.Millisecond)
				}
			})
			r := runLoad(t, ctx, Config{Target: tg, Clock: clock, Steps: []Step{{Rate: rate, Connections: 10, Duration: time.Hour}}})
			interrupting.Wait()
			total := &r.totals[0]
			unfinished := total.Errors[result.Unfinished]
			if !r.interrupted || unfinished < 2 || unfinished > 10 || total.Errors.Total() != unfinished+total.Errors[result.Unsent] {
				t.Errorf("TLS %v, %v: interrupted %v, errors %s", secure, rate, r.interrupted, total.Errors.String())
			}
			if shortest := decode(t, total.Latency.ResponseUnanswered).Max(); shortest < interruptGrace {
				t.Errorf("TLS %v: an unfinished request waited %s, less than the grace period", secure, shortest)
			}
			if total.Completed > total.Done || total.Rate() > float64(total.Done)/total.Elapsed {
				t.Errorf("TLS %v: %d completed of %d in %g s", secure, total.Completed, total.Done, total.Elapsed)
			}
			r.checkLittle(t, 0, secure)
		}
	}
}

// checkLittle checks that Little's law holds exactly. It is nearly so with sessions, whose goroutines may start late.
func (r *records) checkLittle(t testing.TB, step int, sessions bool) {
	t.Helper()
	total, allowed := &r.totals[step], 0.001
	if sessions {
		allowed = littleMax
	}
	if !r.inTime(total, math.Abs(total.Little.Ratio-1) <= allowed) {
		t.Errorf("step %d: N/(XR) = %g: %+v", step, total.Little.Ratio, total.Little)
	}
}

// slowServer answers one request at a time and takes at least that long for each.
func slowServer(t testing.TB, each time.Duration) (*target.Target, target.Clock) {
	t.Helper()
	var serving sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		serving.Lock()
		defer serving.Unlock()
		<-time.After(each)
		io.WriteString(w, "ok")
	}))
	t.Cleanup(server.Close)
	clock := target.NewClock()
	return openTarget(t, target.Config{URL: server.URL, Timeout: time.Minute}, clock), clock
}

// TestOverload offers 80/s to a server that takes 20 ms per request. Only what it answers within the step is in the rate, and
// the generator is not to blame. The drain lasts as long as the step.
func TestOverload(t *testing.T) {
	t.Parallel()
	const rate, length, each = 80, 4 * time.Second, 20 * time.Millisecond
	slo, err := result.ParseSLO("rate>=75")
	if err != nil {
		t.Fatal(err)
	}
	for connections, warmup := range map[int]time.Duration{1000: 0, 20: 500 * time.Millisecond} {
		t.Run(fmt.Sprintf("%d connections", connections), func(t *testing.T) {
			t.Parallel()
			tg, clock := slowServer(t, each)
			r := runLoad(t, t.Context(), Config{
				Target: tg, Clock: clock, SLO: slo, Timeout: time.Minute,
				Steps: []Step{{Rate: rate, Connections: connections, Duration: length, Warmup: warmup}},
			})
			total := &r.totals[0]
			if most := int64(length/each) + 1; total.Completed > most || total.Rate() > 51 {
				t.Errorf("rate %g/s, %d completed; the server answers at most %d", total.Rate(), total.Completed, most)
			}
			if total.Due != int64(rate*length.Seconds()) || total.SLO[0].Met {
				t.Errorf("%d due, SLO %+v", total.Due, total.SLO[0])
			}
			text := strings.Join(total.Sentences(), "\n")
			if !r.inTime(total, total.Validity == result.Valid && total.Overloaded && strings.Contains(text, "the backlog grew by ")) {
				t.Errorf("%s, overloaded %v: %s", total.Validity, total.Overloaded, text)
			}
			r.checkLittle(t, 0, false)
			if completed := r.slices[0][0].Completed; completed > int64(time.Second/each)+1 {
				t.Errorf("%d answers are in the first second", completed)
			}
		})
	}
}

// TestFailingTarget has a target that fails every request in its way: the generator is never to blame.
func TestFailingTarget(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]script{"resets": {end: resets}, "closes": {end: closes}, "hangs": {end: hangs}, "slow resets": {wait: 20 * time.Millisecond, end: resets}} {
		for _, step := range failingSteps() {
			tg, clock, _ := scripted(t, false, 50*time.Millisecond, func(int64) script { return of })
			r := runLoad(t, t.Context(), Config{Target: tg, Clock: clock, Steps: []Step{step}})
			r.checkFailing(t, name)
			r.checkLittle(t, 0, false)
		}
	}
	clock := target.NewClock()
	dead := openTarget(t, target.Config{URL: "http://127.0.0.1:1/"}, clock)
	for _, step := range failingSteps() {
		r := runLoad(t, t.Context(), Config{Target: dead, Clock: clock, Steps: []Step{step}})
		r.checkFailing(t, "refused")
	}
}

// failingSteps are a closed loop, which fails as fast as the machine can, and an open one.
func failingSteps() []Step {
	const length = time.Second / 2
	return []Step{{Connections: 10, Duration: length / 2}, {Rate: 300, Connections: 10, Duration: length}}
}

func (r *records) checkFailing(t testing.TB, name string) {
	t.Helper()
	total := &r.totals[0]
	if total.Done != 0 || total.Completed != 0 || !r.inTime(total, total.Requests() >= 30 && total.Validity == result.Valid) {
		t.Errorf("%s: %s with %d answered, errors %s: %q", name, total.Validity, total.Done, total.Errors.String(), total.Reasons)
	}
}
