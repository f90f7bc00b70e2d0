package stream

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// probes is long enough for two probes and ends between two.
const probes = 2*probeEvery + probeEvery/2

// testDatabase answers probes with its error.
type testDatabase struct{ err atomic.Pointer[error] }

func (d *testDatabase) fail(err error) { d.err.Store(&err) }

func (d *testDatabase) Ping(context.Context) error {
	if err := d.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (d *testDatabase) Check(ctx context.Context) error { return d.Ping(ctx) }

// startTest starts a stream, and returns a function that sends a record.
func startTest(t *testing.T, database *testDatabase) (s *Stream, sink *memory, send func() error) {
	t.Helper()
	sink = newMemory(time.Millisecond)
	s = openTest(t, sink, func(c *Config, _ *Definition) { c.RetryFor = 0 })
	if err := s.Start(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	return s, sink, func() error {
		_, err := s.Store(t.Context(), testRequest(t, s, "", number(1)))
		return err
	}
}

// expectReady waits for probes and compares the readiness; "" is ready.
func expectReady(t *testing.T, s *Stream, after time.Duration, want string) {
	t.Helper()
	<-time.After(after)
	err := s.Ready()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("ready: %v, want %q", err, want)
	}
}

// Without requests, a probe detects that the database is down, and that it is back.
func TestReadyWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		database := &testDatabase{}
		s, _, send := startTest(t, database)
		expectReady(t, s, probes, "")
		database.fail(errors.New("it is down"))
		expectReady(t, s, probes, "it is down")
		if err := send(); err != nil { // newer than the probe
			t.Error(err)
		}
		expectReady(t, s, 0, "")
		expectReady(t, s, probes, "it is down")
		database.fail(nil)
		expectReady(t, s, probes, "")
		closeTest(t, s)
		expectReady(t, s, 0, "closing")
	})
}

// After an outage, a probe makes the stream ready again. After a batch that the database
// refused for good only time does, because a request must try.
func TestReadyAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink, send := startTest(t, &testDatabase{})
		sink.fail(false, ErrTransient)
		if err := send(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("away: %v", err)
		}
		expectReady(t, s, 0, "the last batch was not stored")
		expectReady(t, s, probes, "")
		refused := errors.New("permission denied")
		sink.fail(false, refused)
		if err := send(); !errors.Is(err, refused) {
			t.Errorf("refused: %v", err)
		}
		expectReady(t, s, refusedFor-2*probeEvery, "permission denied")
		expectReady(t, s, 3*probeEvery, "")
		sink.fail(false, refused)
		if err := send(); !errors.Is(err, refused) {
			t.Errorf("refused again: %v", err)
		}
		expectReady(t, s, 0, "permission denied")
		if err := send(); err != nil {
			t.Error(err)
		}
		expectReady(t, s, 0, "")
		closeTest(t, s)
	})
}

// Start returns why the database does not accept the stream. What commits are worth is logged
// once, after a start that succeeds.
func TestStartRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		refused := errors.New("no such table")
		database := &testDatabase{}
		start := func(want error) {
			t.Helper()
			s := openTest(t, newMemory(0), func(c *Config, _ *Definition) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
			if err := s.Start(t.Context(), database); !errors.Is(err, want) {
				t.Errorf("start: %v", err)
			}
			<-time.After(2 * maintainEvery)
			closeTest(t, s)
		}
		database.fail(refused)
		start(refused)
		if log.Len() > 0 {
			t.Errorf("logged although the start failed: %s", &log)
		}
		database.err.Store(nil)
		start(nil)
		if got := log.String(); strings.Count(got, "committed records are on disk") != 1 {
			t.Errorf("logged: %s", got)
		}
	})
}
