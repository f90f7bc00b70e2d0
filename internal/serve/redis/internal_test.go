package redis

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An attempt to store events ends shutdownGrace after the stop begins. A COMMIT may wait for
// a standby until then.
func TestPopupStopGrace(t *testing.T) {
	for stopAt, want := range map[time.Duration]time.Duration{
		0: shutdownGrace, 10 * time.Second: 10*time.Second + shutdownGrace, time.Hour: time.Hour + shutdownGrace,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			time.AfterFunc(stopAt, stop)
			start := time.Now()
			limited, cancel := withGrace(ctx)
			defer cancel()
			<-limited.Done()
			if took := time.Since(start); took != want {
				t.Errorf("stopped after %s: it had %s, want %s", stopAt, took, want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, url := range []string{
		"redis://localhost:6379/0", "redis://:p%40ss@[::1]:6379/15", "rediss://user:word@host?skip_verify=true", "unix:///run/redis.sock?db=2", "redis://h/?x#y",
	} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		option, _, err := parse(url)
		if err != nil {
			if !errors.Is(err, errURL) {
				t.Errorf("%q: an error that may quote the address: %v", url, err)
			}
			return
		}
		if len(option.InitAddress) != 1 || option.InitAddress[0] == "" || option.SelectDB < 0 {
			t.Errorf("%q: %+v", url, option)
		}
	})
}
