package popup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/audit"
)

// TestListQuery: a list by SQL waits until its first read, wins over a stored one, follows its
// rows, and stays while it cannot be read.
func TestListQuery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type rows struct {
			users   []string
			failure error
		}
		var table atomic.Pointer[rows]
		table.Store(&rows{failure: errors.New("no such table")})
		l := openListed(t, `in_list("vip")`)
		l.campaigns.Query([]ListQuery{{Name: "vip", Users: func(_ context.Context, yield func(string) error) (int, error) {
			now := table.Load()
			for _, user := range now.users {
				if err := yield(user); err != nil {
					return 0, err
				}
			}
			return 1, now.failure
		}}}, time.Minute)
		if err := l.campaigns.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.campaigns.Run(ctx); close(done) }()
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		pass(time.Second)
		if lists := l.popup.Lists(); lists.unread([]string{"vip"}) != "vip" {
			t.Errorf("a list that was never read: %v", lists)
		}
		table.Store(&rows{users: []string{"b", "a"}})
		pass(queryRetry)
		l.expect(t, map[string]string{"a": "campaign 1", "b": "campaign 1", "c": "none-suits"})
		table.Store(&rows{users: []string{"c"}})
		pass(time.Minute)
		l.expect(t, map[string]string{"a": "none-suits", "c": "campaign 1"})
		table.Store(&rows{failure: errors.New("no such table")})
		pass(2 * time.Minute)
		l.expect(t, map[string]string{"a": "none-suits", "c": "campaign 1"})
		if err := l.campaigns.Reload(t.Context()); err != nil || !slices.Equal(l.popup.Lists().Names(), []string{"vip"}) {
			t.Errorf("reloaded: %v, %v", l.popup.Lists().Names(), err)
		}
		l.expect(t, map[string]string{"c": "campaign 1"})
		if _, err := l.campaigns.ReplaceList(t.Context(), "vip", nil, audit.Author{}); !errors.Is(err, ErrList) {
			t.Errorf("an upload: %v", err)
		}
		stop()
		<-done
		if text := l.log.String(); strings.Count(text, "cannot be read by SQL") != 2 || strings.Count(text, "were skipped") != 1 {
			t.Errorf("%s", text)
		}
	})
}
