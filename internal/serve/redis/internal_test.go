package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/popup"
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

// A campaign with a field of a newer version is not shown without it.
func TestCampaignCopyOfNewer(t *testing.T) {
	t.Parallel()
	line, err := popup.StoredCampaign{Campaign: popup.Campaign{Payload: []byte("1")}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if all, err := decodeCampaigns(line + "\n" + line); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	if all, err := decodeCampaigns(strings.Replace(line, "{", `{"only_on":"monday",`, 1)); err == nil {
		t.Errorf("%v", all)
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
