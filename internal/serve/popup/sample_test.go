package popup

import (
	"fmt"
	"testing"
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
