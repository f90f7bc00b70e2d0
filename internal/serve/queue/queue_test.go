package queue

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A request that exceeds a limit by itself is refused permanently. If the limit is exceeded
// only together with waiting requests, the refusal says when to retry. Both name the limit.
func TestLimits(t *testing.T) {
	t.Parallel()
	limits := Limits{Rows: 10, Bytes: 100, Spool: 1000, Wait: time.Second}
	tests := []struct {
		request, waiting Load
		limit            string // "": admitted
		retryAfter       time.Duration
	}{
		{Load{Rows: 10, Bytes: 100, Spool: 1000, Wait: time.Second}, Load{}, "", 0},
		{Load{Rows: 1}, Load{Rows: 9, Bytes: 100, Spool: 1000}, "", 0},
		{Load{Rows: 1, Wait: time.Millisecond}, Load{Rows: 10}, LimitRows, 10 * time.Millisecond},
		{Load{Rows: 1, Bytes: 2, Wait: time.Second}, Load{Bytes: 99}, LimitBytes, time.Second / 2},
		{Load{Spool: 1, Rows: 10}, Load{Spool: 1000, Rows: 9}, LimitSpool, 10 * time.Millisecond},
		{Load{Rows: 1, Wait: 5 * time.Second}, Load{}, LimitWait, 4 * time.Second},
		{Load{Rows: 1, Wait: time.Hour}, Load{}, LimitWait, time.Minute},
	}
	for _, test := range tests {
		err := limits.Admit(test.request, test.waiting)
		var overload *Overload
		switch {
		case test.limit == "" && err == nil:
		case !errors.As(err, &overload) || !errors.Is(err, ErrOverloaded) || overload.Limit != test.limit || overload.RetryAfter != test.retryAfter:
			t.Errorf("%+v with %+v: %v, want %s after %v", test.request, test.waiting, err, test.limit, test.retryAfter)
		}
	}
	for _, request := range []Load{{Rows: 11}, {Bytes: 101}, {Spool: 1001}} {
		if err := limits.Admit(request, Load{}); !errors.Is(err, ErrTooLarge) || errors.Is(err, ErrOverloaded) {
			t.Errorf("%+v alone: %v", request, err)
		}
	}
	var overload *Overload
	if err := (Limits{Bytes: 1}).Admit(Load{Bytes: 1}, Load{Bytes: 1}); !errors.As(err, &overload) || overload.RetryAfter != RetryAfter {
		t.Errorf("without a prediction: %v", err)
	}
	if err := (Limits{}).Admit(Load{Rows: 1 << 40, Wait: time.Hour}, Load{}); err != nil {
		t.Errorf("without limits: %v", err)
	}
}

func TestCheckKey(t *testing.T) {
	t.Parallel()
	for key, valid := range map[string]bool{
		"": true, "é": true, strings.Repeat("k", KeyMax): true, strings.Repeat("k", KeyMax+1): false, "\xff": false, "a\x00": false,
	} {
		if err := CheckKey(key); (err == nil) != valid || err != nil && !errors.Is(err, ErrBadKey) {
			t.Errorf("%.10q: %v", key, err)
		}
	}
}

func TestScopeKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", KeyMax)
	for _, key := range []string{"k", "a:b", "subject/b:k", long} {
		if scoped := ScopeKey("a", key); CheckKey(scoped) != nil || scoped == ScopeKey("b", key) {
			t.Errorf("%.20q is %.20q", key, scoped)
		}
	}
}

func TestOverloads(t *testing.T) {
	t.Parallel()
	var counts Overloads
	counts.Add(errors.New("another"), 1)
	counts.Add(&Overload{Limit: LimitDisk}, 3)
	if got := counts.Read(); len(got) != 1 || got[LimitDisk] != 3 {
		t.Errorf("counted %v", got)
	}
}
