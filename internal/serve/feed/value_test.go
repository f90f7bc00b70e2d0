package feed

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/param"
)

// Nothing of a paused value is read, its rows are served up to StaleMax, and other values are not concerned.
func TestPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(500)
		f := Open(byCity(3), tab)
		defer f.Close()
		a, b := Request{Args: []string{"a"}}, Request{Args: []string{"b"}}
		get(t, f, a)
		get(t, f, b)
		f.Pause(a.Args, true)
		<-time.After(5 * time.Second) // both are idle
		reads := tab.reads
		old, page := get(t, f, a)
		if tab.reads != reads || time.Since(page.ReadAt) < 4*time.Second {
			t.Errorf("%d reads, rows %v old", tab.reads-reads, time.Since(page.ReadAt))
		}
		if _, err := f.Page(t.Context(), time.Now(), Request{Args: a.Args, Offset: 300}); !errors.Is(err, ErrPaused) || tab.pages != 0 {
			t.Errorf("beyond the window: %v, %d pages", err, tab.pages)
		}
		tab.insert(9999)
		<-time.After(8 * time.Second)
		if _, err := f.Page(t.Context(), time.Now(), a); !errors.Is(err, ErrPaused) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("too old: %v", err)
		}
		if got, _ := get(t, f, b); got[0] != 9999 {
			t.Errorf("another value: %v", got)
		}
		f.Pause(a.Args, false)
		<-time.After(2 * time.Second)
		if got, _ := get(t, f, a); got[0] != 9999 || slices.Equal(got, old) {
			t.Errorf("resumed: %v", got)
		}
	})
}

func TestDropAndValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := byCity(3)
		cfg.LiveMax = 3
		cfg.Params = append(cfg.Params, param.Filter("on", param.Boolean))
		tab := newTable(500)
		f := Open(cfg, tab)
		defer f.Close()
		args := []string{"a", param.Absent}
		for range 3 {
			get(t, f, Request{Args: args})
		}
		get(t, f, Request{Args: []string{"b", "true"}})
		values, all := f.Values("", 1)
		if v := values[0]; all != 2 || v.Hits != 3 || v.Rows != 200 || v.Bytes == 0 || v.AgeSeconds == nil || len(v.Arguments) != 1 || v.Arguments["city"][0] != "a" {
			t.Errorf("%d: %+v", all, values)
		}
		f.Pause([]string{"c", "true"}, true)
		if values, _ = f.Values("c", 9); len(values) != 1 || !values[0].Paused || values[0].AgeSeconds != nil || values[0].Arguments["on"][0] != "true" {
			t.Errorf("%+v", values)
		}
		listener, err := f.Listen(t.Context(), time.Now(), args, "")
		if err != nil {
			t.Fatal(err)
		}
		event := listener.Event()
		held := f.Stats().WindowBytes
		if !f.Drop(args) || f.Drop(args) {
			t.Error("there was a window, once")
		}
		<-event.Next()
		listener.Close()
		if left := f.Stats(); left.Windows != 1 || left.WindowBytes >= held || left.Listeners != 0 {
			t.Errorf("%+v", left)
		}
		reads := tab.reads
		get(t, f, Request{Args: args})
		if tab.reads == reads {
			t.Error("not read anew")
		}
	})
}
