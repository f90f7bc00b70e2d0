package watch

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// remoteRun is a run of a RemoteWatch.
type remoteRun struct {
	samples chan result.Sample
	stop    func()
}

func runRemote(t testing.TB, r *RemoteWatch) *remoteRun {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	run := &remoteRun{samples: make(chan result.Sample, 100_000)}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, func(s *result.Sample) error { run.samples <- *s; return nil }) }()
	run.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r.Close()
	}
	return run
}

// await reads samples until one is as wanted.
func (r *remoteRun) await(t testing.TB, what string, wanted func(result.Sample) bool) result.Sample {
	t.Helper()
	for {
		if s := apptest.Receive(t, what, r.samples); wanted(s) {
			return s
		}
	}
}

func TestRemote(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const shift = 90 * time.Second
	for _, token := range []string{"", serveToken} {
		served := newServedWatcher()
		listener := listenWatch(t, "127.0.0.1:0", token)
		stop := serveWatch(t, listener, ServeConfig{Watcher: served.watcher, Token: token, Clock: func() time.Time { return time.Now().Add(shift) }})
		start := time.Now()
		r, err := Remote(t.Context(), "http://"+listener.Addr().String(), token, start)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		w := r.Watch()
		if w.Host != listener.Addr().String() || w.Machine.Cores == 0 || len(w.Subjects) != 1 || w.Subjects[0].Name != "one" {
			t.Errorf("Watch = %+v", w)
		}
		t.Logf("the clock is %.6f s ahead, give or take %.6f", w.ClockOffset, w.ClockError)
		if off := math.Abs(w.ClockOffset - shift.Seconds()); w.ClockError <= 0 || off > w.ClockError || w.ClockError > took.Seconds() {
			t.Errorf("offset %v ± %v, want %v ± at most %v, which joining took", w.ClockOffset, w.ClockError, shift, took)
		}
		run := runRemote(t, r)
		s := run.await(t, "a sample", func(s result.Sample) bool { return s.Sampler == result.SamplerHost })
		now := time.Since(start).Seconds()
		if s.Host != w.Host || s.Subject != "one" || s.At < -w.ClockError || s.At > now+w.ClockError {
			t.Errorf("at %g s came %+v", now, s)
		}
		run.stop()
		stop()
	}
}

// TestRemoteClock checks that the clocks are compared repeatedly.
func TestRemoteClock(t *testing.T) {
	t.Parallel()
	listener := listenWatch(t, "127.0.0.1:0", "")
	serveWatch(t, listener, ServeConfig{Watcher: New(time.Now()), Clock: func() time.Time { return time.Now().Add(-time.Hour) }})
	r, err := Remote(t.Context(), "http://"+listener.Addr().String(), "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	run := runRemote(t, r)
	defer run.stop()
	s := run.await(t, "a comparison of the clocks", func(s result.Sample) bool { return s.Subject == "clock" })
	if v := s.Values; math.Abs(v["clock_offset_seconds"]+3600) > v["clock_uncertainty_seconds"] || v["round_trip_seconds"] <= 0 || s.Host == "" {
		t.Errorf("%+v", s)
	}
}

// TestRemoteOutage stops the other watch and starts it again, with another time 0.
func TestRemoteOutage(t *testing.T) {
	t.Parallel()
	listener := listenWatch(t, "127.91.0.1:0", "") // no client takes a port of this address meanwhile
	address := listener.Addr().String()
	stop := serveWatch(t, listener, ServeConfig{Watcher: newServedWatcher().watcher})
	start := time.Now()
	r, err := Remote(t.Context(), "http://"+address+"/", "", start)
	if err != nil {
		t.Fatal(err)
	}
	run := runRemote(t, r)
	defer run.stop()
	host := func(s result.Sample) bool { return s.Sampler == result.SamplerHost }
	run.await(t, "a sample", host)
	stop()
	said := run.await(t, "an error", func(s result.Sample) bool { return s.Error != "" })
	if !strings.Contains(said.Error, address) || said.Sampler != result.SamplerWatch {
		t.Errorf("told %+v", said)
	}
	ageless := newServedWatcher()
	ageless.watcher.start = time.Now().Add(-time.Hour)
	// A child process of another test has the old listener until it runs its own program.
	apptest.Await(t, "the address is free", func() bool {
		listener, err = Listen(t.Context(), address, "")
		return !errors.Is(err, syscall.EADDRINUSE)
	})
	if err != nil {
		t.Fatal(err)
	}
	serveWatch(t, listener, ServeConfig{Watcher: ageless.watcher})
	s := run.await(t, "a sample again", func(s result.Sample) bool {
		if s.Error != "" {
			t.Errorf("told again: %s", s.Error)
		}
		return host(s)
	})
	now, uncertain := time.Since(start).Seconds(), r.Watch().ClockError
	if s.At < said.At-2*uncertain || s.At > now+2*uncertain {
		t.Errorf("at %g s came %+v, want it after %g s", now, s, said.At)
	}
}

func TestRemoteRefused(t *testing.T) {
	t.Parallel()
	listener := listenWatch(t, "127.0.0.1:0", serveToken)
	serveWatch(t, listener, ServeConfig{Watcher: New(time.Now()), Token: serveToken})
	url := "http://" + listener.Addr().String()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }))
	defer other.Close()
	redirect := httptest.NewServer(http.RedirectHandler(url, http.StatusFound))
	defer redirect.Close()
	const wrong = "fedcba9876543210"
	for _, c := range []struct{ url, token, want string }{
		{url, "", "requires the token"},
		{url, wrong, "rejects the token"},
		{other.URL, wrong, "this is no watch --listen"},
		{redirect.URL, wrong, "302"},
		{"http://127.0.0.1:1", wrong, "connection refused"},
		{"127.0.0.1:9191", wrong, "write http://HOST:PORT"},
		{"http://u:" + wrong + "@127.0.0.1:9191", "", "write http://HOST:PORT"},
		{url + "/samples", wrong, "write http://HOST:PORT"},
	} {
		_, err := Remote(t.Context(), c.url, c.token, time.Now())
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), wrong) {
			t.Errorf("Remote(%q, %q): %v, want %q", c.url, c.token, err, c.want)
		}
	}
}
