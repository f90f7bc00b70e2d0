package popup

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// asks asks for a user with an age, and some of the attributes point into memory that changes.
func asks(t *testing.T, p *Popup, user, country string, age int) {
	t.Helper()
	a := p.Attributes()
	defer p.Release(a)
	for name, text := range map[string]string{"age": fmt.Sprint(age), "country": country} {
		if err := a.Add(name, text); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Ask(t.Context(), Key{user, "home"}, a, day0); err != nil {
		t.Fatal(err)
	}
}

// The sample has the last request of each of the last users who were due, within its bound.
func TestDryRun(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()[:1]
	c[0].Target = "age > 1000"
	p := openTest(t, NewMemory(10_000, nil), nil, c...)
	run := func(target string, rollout float64) DryRun {
		t.Helper()
		d, err := p.DryRun(t.Context(), Campaign{Placement: "home", Target: target, Rollout: rollout})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := run("age > 1", 0); d != (DryRun{}) {
		t.Errorf("nobody has asked: %+v", d)
	}
	for user := range 500 {
		asks(t, p, fmt.Sprint("user", user), "CN", 17)
		asks(t, p, fmt.Sprint("user", user), "NO", user)
	}
	if d := run(`age >= 100 and country == "NO"`, 0); d.Users != 500 || d.Matched != 400 || !d.Since.Equal(day0) {
		t.Errorf("%+v", d)
	}
	if d := run("", 30); d.Matched < 90 || d.Matched > 210 {
		t.Errorf("a rollout of 30 percent: %+v", d)
	}
	for user := range 40 * SampleMax {
		asks(t, p, fmt.Sprint("later", user), "SE", 5)
	}
	d := run(`country == "SE"`, 0)
	if d.Users != SampleMax || d.Matched != SampleMax || len(p.sample.index) != SampleMax {
		t.Errorf("%+v, %d in the index", d, len(p.sample.index))
	}
	if d, err := p.DryRun(t.Context(), Campaign{Placement: "home", Target: "gone"}); err == nil {
		t.Errorf("an unknown attribute: %+v", d)
	}
	if d, err := p.DryRun(t.Context(), Campaign{Placement: "checkout"}); err != nil || d.Users != 0 {
		t.Errorf("another placement: %+v %v", d, err)
	}
	p.sample.forget("user1")
	p.sample.forget(p.sample.of("home")[7].key.User)
	if d := run("", 0); d.Users != SampleMax-1 {
		t.Errorf("one is forgotten: %+v", d)
	}
}

// Users who wait are not sampled.
func TestDryRunWaiting(t *testing.T) {
	t.Parallel()
	p := openTest(t, NewMemory(10_000, nil), nil)
	asks(t, p, "7", "CN", 17)
	before := p.sample.of("home")[0]
	a := p.Attributes()
	defer p.Release(a)
	if _, err := p.Ask(t.Context(), Key{"7", "home"}, a, day0.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if after := p.sample.of("home"); len(after) != 1 || after[0].at != before.at {
		t.Errorf("%+v", after)
	}
}

// A dry run reads the rows of users whom it cannot decide otherwise.
func TestDryRunRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDryRunRows)
}

func testDryRunRows(t *testing.T) {
	reads := 0
	p := openTest(t, NewMemory(100, nil), func(cfg *Config) {
		cfg.UserRow = func(_ context.Context, user string) ([]byte, error) {
			if reads++; user == "3" {
				return nil, errors.New("away")
			}
			return []byte(`{"country":"NO"}`), nil
		}
	})
	p.RowColumns([]string{"country"})
	for user := range 8 {
		asks(t, p, fmt.Sprint(user), "SE", user)
	}
	if d, err := p.DryRun(t.Context(), Campaign{Placement: "home", Target: "age > 1"}); err != nil || d.Matched != 6 || d.Undecided != 0 || reads != 0 {
		t.Errorf("without the row: %+v %v, %d reads", d, err, reads)
	}
	d, err := p.DryRun(t.Context(), Campaign{Placement: "home", Target: `country == "NO"`})
	if err != nil || d.Users != 8 || d.Matched != 7 || d.Undecided != 1 || reads != 8 {
		t.Errorf("with the row: %+v %v, %d reads", d, err, reads)
	}
}

// A dry run over slow rows ends.
func TestDryRunSlowRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := openTest(t, NewMemory(100, nil), func(cfg *Config) {
			cfg.UserRow = func(ctx context.Context, _ string) ([]byte, error) {
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(999 * time.Millisecond):
					return []byte(`{"country":"NO"}`), nil
				}
			}
		})
		p.RowColumns([]string{"country"})
		for user := range 100 {
			asks(t, p, fmt.Sprint(user), "SE", user)
		}
		began := time.Now()
		d, err := p.DryRun(t.Context(), Campaign{Placement: "home", Target: `country == "NO"`})
		if passed := time.Since(began); err != nil || d.Users != 100 || d.Matched != 10 || d.Undecided != 90 || passed != dryRunRows {
			t.Errorf("%+v %v after %s", d, err, passed)
		}
	})
}

// A dry run does not wait for the row of each user while the database is away.
func TestDryRunAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDryRunAway)
}

func testDryRunAway(t *testing.T) {
	reads := 0
	p := openTest(t, NewMemory(100, nil), func(cfg *Config) {
		cfg.UserRow = func(context.Context, string) ([]byte, error) {
			reads++
			return nil, errors.New("away")
		}
	})
	p.RowColumns([]string{"country"})
	for user := range 50 {
		asks(t, p, fmt.Sprint(user), "SE", user)
	}
	d, err := p.DryRun(t.Context(), Campaign{Placement: "home", Target: `country == "NO"`})
	if err != nil || d.Users != 50 || d.Matched != 0 || d.Undecided != 50 || reads > 10 {
		t.Errorf("%+v %v, %d reads", d, err, reads)
	}
}

// A preview is of a campaign alone, whatever its status.
func TestPreview(t *testing.T) {
	t.Parallel()
	p := openTest(t, NewMemory(100, nil), nil)
	c := threeCampaigns()[0]
	c.Status, c.Target, c.Rollout, c.Holdout = Draft, "age > 17", 1e-9, 99.9999999
	c.Variants = []Variant{{Name: "a", Payload: []byte("1")}, {Name: "b", Weight: 1, Payload: []byte("2")}}
	for age, condition := range map[string]string{"18": "", "17": "age > 17"} {
		a := p.Attributes()
		if err := a.Add("age", age); err != nil {
			t.Fatal(err)
		}
		seen, err := p.Preview(t.Context(), c, "7", a)
		if err != nil || seen.Condition != condition || seen.Variant != 2 || string(seen.Payload()) != "2" || seen.Rollout || !seen.Holdout {
			t.Errorf("%s: %+v %v", age, seen, err)
		}
		p.Release(a)
	}
	a := p.Attributes()
	defer p.Release(a)
	if _, err := p.Preview(t.Context(), c, "", a); !errors.Is(err, ErrRequest) {
		t.Errorf("nobody: %v", err)
	}
	c.Target = "gone"
	if _, err := p.Preview(t.Context(), c, "7", a); err == nil {
		t.Error("an attribute that is gone")
	}
}
