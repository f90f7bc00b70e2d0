package redis

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// An attempt to store events has drainTimeout, and stopGrace from when it is to stop.
func TestPopupStopGrace(t *testing.T) {
	for stopAt, want := range map[time.Duration]time.Duration{
		0: stopGrace, 10 * time.Second: 10*time.Second + stopGrace, drainTimeout - time.Second: drainTimeout, time.Hour: drainTimeout,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(stopAt, stop)
			start := time.Now()
			limited, cancel := boundedByStop(ctx)
			defer cancel()
			<-limited.Done()
			if took := time.Since(start); took != want {
				t.Errorf("stopped after %s: it had %s, want %s", stopAt, took, want)
			}
		})
	}
}
