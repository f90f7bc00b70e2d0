package stream

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// unswept is a sink whose sweeps fail.
type unswept struct{ Sink }

func (unswept) Sweep(context.Context, Keep, int) (int, error) { return 0, errors.New("too slow") }

// TestSweepFails: a sweep that fails is logged, unless the process stops.
func TestSweepFails(t *testing.T) {
	var log bytes.Buffer
	m := new(core)
	m.open(Config{CommitTimeout: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil))}, nil, "/t", unswept{})
	defer m.stop()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	m.sweep(stopped)
	if log.Len() > 0 {
		t.Errorf("logged while it stops: %s", &log)
	}
	m.sweep(t.Context())
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "too slow") {
		t.Errorf("logged: %s", got)
	}
}
