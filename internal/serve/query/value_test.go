package query

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/feed"
)

// A paused value is answered from the cache as long as its age permits, and its statement is not run.
func TestPauseAndDrop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counting{takes: 10 * time.Millisecond}
		cfg := testConfig()
		cfg.TTL, cfg.Stale = time.Second, time.Second
		q := Open(cfg, source)
		defer q.Close()
		ask := func(arg string) error {
			_, _, err := q.Ask(t.Context(), time.Now(), []string{arg})
			synctest.Wait()
			return err
		}
		if err := errors.Join(ask("7"), ask("8")); err != nil {
			t.Fatal(err)
		}
		q.Pause([]string{"7"}, true)
		q.Pause([]string{"9"}, true)
		<-time.After(1500 * time.Millisecond)
		if err := ask("7"); err != nil || source.executions.Load() != 2 {
			t.Errorf("stale: %v, %d executions", err, source.executions.Load())
		}
		<-time.After(time.Second)
		if err := ask("7"); !errors.Is(err, feed.ErrPaused) {
			t.Errorf("too old: %v", err)
		}
		values, all := q.Values("7", 9)
		if v := values[0]; len(values) != 1 || all != 3 || !v.Paused || v.Arguments["a"][0] != "7" || v.Rows != 1 || v.ReadSeconds != 0.01 || *v.AgeSeconds != 2.52 {
			t.Errorf("%d: %+v, %g s old", all, values, *values[0].AgeSeconds)
		}
		if values, _ = q.Values("", 9); len(values) != 3 || values[2].Arguments["a"][0] != "8" {
			t.Errorf("%+v", values)
		}
		if q.Pause([]string{"7"}, false); ask("7") != nil || source.executions.Load() != 3 {
			t.Errorf("resumed: %d executions", source.executions.Load())
		}
		if !q.Drop([]string{"7"}) || q.Drop([]string{"7"}) || ask("7") != nil || source.executions.Load() != 4 {
			t.Errorf("dropped: %d executions", source.executions.Load())
		}
	})
}
