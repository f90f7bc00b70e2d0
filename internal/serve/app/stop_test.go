package app

import (
	"context"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
)

// TestUnitWaitsForTheStop: the service manager waits for as long as a stop with the defaults may take.
func TestUnitWaitsForTheStop(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("../../../deploy/systemd/spillway.service")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^TimeoutStopSec=(.*)$`).FindSubmatch(unit)
	if found == nil {
		t.Fatalf("no TimeoutStopSec in\n%s", unit)
	}
	patience, err := time.ParseDuration(string(found[1]) + "s")
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Listen = ":8080"
	const queued, log = time.Second, time.Second           // until the accept queue is empty, and until the access log is written
	need := c.StopDelay() + queued + c.HTTP.DrainTimeout + // requests
		c.HTTP.DrainTimeout + // records of streams
		admin.DrainTimeout + c.Pool.StatementTimeout + log // the rest
	if patience < need {
		t.Errorf("TimeoutStopSec is %v, and a stop may take %v", patience, need)
	}
}

// TestStopDelay: only SIGTERM has a delay.
func TestStopDelay(t *testing.T) {
	a := &app{cfg: config.Default()}
	a.cfg.Listen = ":8080"
	if d := a.stopDelay(nil) + a.stopDelay(context.Canceled); d != 0 {
		t.Errorf("without a signal: %v", d)
	}
	for sent, want := range map[syscall.Signal]time.Duration{syscall.SIGTERM: 5 * time.Second, syscall.SIGINT: 0} {
		ctx, stop := signal.NotifyContext(t.Context(), sent)
		if err := syscall.Kill(os.Getpid(), sent); err != nil {
			t.Fatal(err)
		}
		apptest.Receive(t, "the signal", ctx.Done())
		if got := a.stopDelay(context.Cause(ctx)); got != want {
			t.Errorf("%v: %v, want %v", sent, got, want)
		}
		stop()
	}
}
