package popup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var day0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// threeCampaigns are for placement home, in order.
func threeCampaigns() []Campaign {
	var out []Campaign
	for i := range 3 {
		out = append(out, Campaign{
			ID: CampaignID(i + 1), Name: "c", Placement: "home", Order: int32(i), Payload: []byte(`{}`), Status: Active, Rollout: 100,
			QuietClick: Period(7 * 24 * time.Hour), QuietDismiss: Period(24 * time.Hour),
		})
	}
	return out
}

func openTest(tb testing.TB, store Store, change func(*Config), campaigns ...Campaign) *Popup {
	tb.Helper()
	if campaigns == nil {
		campaigns = threeCampaigns()
	}
	set, err := NewSet(testSchema(tb), campaigns)
	if err != nil {
		tb.Fatal(err)
	}
	cfg := Config{Store: store, Signer: testSigner(tb), Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	p, err := Open(cfg, set)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func askTest(tb testing.TB, p *Popup, user string, now time.Time) Answer {
	tb.Helper()
	a := p.Attributes()
	defer p.Release(a)
	answer, err := p.Ask(tb.Context(), Key{user, "home"}, a, now)
	if err != nil {
		tb.Fatal(err)
	}
	return answer
}

// meeting is a Memory whose readers wait for each other: all have read before one swaps.
type meeting struct {
	*Memory
	mu      sync.Mutex
	readers int
	all     chan struct{}
}

func (m *meeting) expect(readers int) { m.readers, m.all = readers, make(chan struct{}) }

func (m *meeting) Get(ctx context.Context, key Key) (State, error) {
	state, err := m.Memory.Get(ctx, key)
	m.mu.Lock()
	if m.readers--; m.readers == 0 {
		close(m.all)
	}
	m.mu.Unlock()
	<-m.all
	return state, err
}

// A thousand requests of one user at once: one show. A thousand clicks: one click.
func TestTabs(t *testing.T) {
	t.Parallel()
	ledger := &ledger{}
	store := &meeting{Memory: NewMemory(1000, ledger)}
	p := openTest(t, store, nil)
	rounds := 20
	switch {
	case *long:
		rounds = 1000
	case testing.Short():
		rounds = 5
	}
	for round := range rounds {
		user := fmt.Sprint("user", round)
		var shows, clicks, repeated atomic.Int64
		var token atomic.Pointer[string]
		store.expect(1000)
		crowd(1000, func() {
			if answer := askTest(t, p, user, day0); answer.Campaign != nil {
				shows.Add(1)
				token.Store(&answer.Token)
			} else if answer.Reason != WaitShown {
				t.Errorf("reason %s", answer.Reason)
			}
		})
		if shows.Load() != 1 {
			t.Fatalf("%d shows", shows.Load())
		}
		store.expect(1000)
		crowd(1000, func() {
			switch err := p.Click(t.Context(), *token.Load(), user, day0.Add(time.Minute)); {
			case err == nil:
				clicks.Add(1)
			case errors.Is(err, ErrRepeated):
				repeated.Add(1)
			default:
				t.Error(err)
			}
		})
		if clicks.Load() != 1 || repeated.Load() != 999 {
			t.Fatalf("%d clicks, %d repeated", clicks.Load(), repeated.Load())
		}
	}
	if len(ledger.events) != 2*rounds {
		t.Errorf("%d events, want %d", len(ledger.events), 2*rounds)
	}
}

func crowd(n int, do func()) {
	var start, done sync.WaitGroup
	start.Add(1)
	for range n {
		done.Go(func() {
			start.Wait()
			do()
		})
	}
	start.Done()
	done.Wait()
}

var errDown = errors.New("down")

// broken is a Memory whose calls can be made to fail.
type broken struct {
	*Memory
	get, swap bool
}

func (b *broken) Get(ctx context.Context, key Key) (State, error) {
	if b.get {
		return State{}, errDown
	}
	return b.Memory.Get(ctx, key)
}

func (b *broken) Swap(ctx context.Context, key Key, version uint64, next State, e Event, guards ...Guard) (bool, error) {
	if b.swap {
		return false, errDown
	}
	return b.Memory.Swap(ctx, key, version, next, e, guards...)
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	for _, anyway := range []bool{false, true} {
		ledger := &ledger{}
		store := &broken{Memory: NewMemory(9, ledger)}
		p := openTest(t, store, func(c *Config) { c.ShowAnyway = anyway })
		token := askTest(t, p, "1", day0).Token
		fail := func(what string, get, swap bool, record error) {
			store.get, store.swap, ledger.fails = get, swap, record
			answer := askTest(t, p, "2", day0)
			if answer.Reason != Unavailable || answer.Token != "" || (answer.Campaign != nil) != anyway {
				t.Errorf("%s fails: %+v", what, answer)
			}
			if err := p.Click(t.Context(), token, "1", day0); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%s fails: click %v", what, err)
			}
		}
		fail("get", true, false, nil)
		fail("swap", false, true, nil)
		fail("record", false, false, errDown)
		if store.Len() != 1 {
			t.Errorf("%d states, want that of user 1 only", store.Len())
		}
		store.get, store.swap, ledger.fails = false, false, nil
		first := ledger.events[len(ledger.events)-1]
		if err := p.Click(t.Context(), token, "1", day0.Add(time.Second)); err != nil {
			t.Error(err)
		}
		again := ledger.events[len(ledger.events)-1]
		if first.Kind != KindClick || first.ID != again.ID {
			t.Errorf("the click that was sent again is another event: %+v, %+v", first, again)
		}
		if answer := askTest(t, p, "2", day0); answer.Campaign == nil || answer.Token == "" {
			t.Errorf("back again: %+v", answer)
		}
	}
}

// The user's row is read when a campaign needs it, and only such campaigns depend on it.
func TestAskUserRow(t *testing.T) {
	t.Parallel()
	campaigns := threeCampaigns()
	campaigns[1].Target, campaigns[2].Target = "level > 3", "vip"
	calls, fails := 0, error(nil)
	row := func(_ context.Context, user string) ([]byte, error) {
		calls++
		return []byte(`{"level": ` + user + `}`), fails
	}
	p := openTest(t, NewMemory(9, &ledger{}), func(c *Config) { c.UserRow, c.ShowAnyway = row, true }, campaigns...)
	p.RowColumns([]string{"level", "id"})
	click := func(user string, now time.Time) Answer {
		answer := askTest(t, p, user, now)
		if answer.Campaign != nil {
			if err := p.Click(t.Context(), answer.Token, user, now); err != nil {
				t.Fatal(err)
			}
		}
		return answer
	}
	for _, user := range []string{"9", "2", "8"} {
		if answer := click(user, day0); answer.Campaign == nil || answer.Campaign.ID != 1 || calls != 0 {
			t.Errorf("%+v after %d reads of rows, want none", answer, calls)
		}
	}
	day8 := day0.Add(8 * 24 * time.Hour)
	if answer := click("9", day8); answer.Campaign == nil || answer.Campaign.ID != 2 || calls != 1 {
		t.Errorf("%+v, %d calls", answer, calls)
	}
	if click("9", day8.Add(time.Hour)); calls != 1 {
		t.Errorf("%d calls of UserRow, want none for a user who waits", calls)
	}
	if answer := click("2", day8); answer.Reason != NoneMatches || calls != 2 {
		t.Errorf("%+v, %d calls", answer, calls)
	}
	fails = errDown
	want := "the user's row could not be read; not decided: campaign 2"
	if answer := click("8", day8); answer.Campaign != nil || answer.Reason != Unavailable || answer.Detail != want {
		t.Errorf("UserRow fails: %+v", answer)
	}
	a := p.Attributes()
	if err := a.Add("vip", "true"); err != nil {
		t.Fatal(err)
	}
	answer, err := p.Ask(t.Context(), Key{"8", "home"}, a, day8)
	if err != nil || answer.Campaign == nil || answer.Campaign.ID != 3 || answer.Token == "" || answer.Detail != want {
		t.Errorf("UserRow fails, another campaign matches: %+v, %v", answer, err)
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	p := openTest(t, NewMemory(1, &ledger{}), nil)
	a := p.Attributes()
	for _, key := range []Key{{"", "home"}, {strings.Repeat("u", 129), "home"}, {"\xff", "home"}, {"1", "Home"}, {"1", ""}} {
		if _, err := p.Ask(t.Context(), key, a, day0); !errors.Is(err, ErrRequest) {
			t.Errorf("%q: %v", key, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	full := openTest(t, NewMemory(0, &ledger{}), nil)
	if _, err := full.Ask(ctx, Key{"1", "home"}, a, day0); !errors.Is(err, context.Canceled) {
		t.Errorf("caller gone: %v", err)
	}
	if answer := askTest(t, full, "1", day0); answer.Reason != Unavailable {
		t.Errorf("full memory: %+v", answer)
	}
	if answer, err := p.Ask(t.Context(), Key{"1", "nowhere"}, a, day0); err != nil || answer.Reason != NoneLeft {
		t.Errorf("no campaigns: %+v, %v", answer, err)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	campaigns := threeCampaigns()
	for i, status := range []Status{Active, Active, Active, Paused, Archived, Active, Active, Active} {
		c := threeCampaigns()[0]
		c.ID, c.Order, c.Status = CampaignID(i+4), int32(i+3), status
		campaigns = append(campaigns, c)
	}
	campaigns[1].Target = `level > 3 and country == "CN"`
	campaigns[3].Start = Moment{day0.Add(time.Hour * 1000)}
	campaigns[4].End = Moment{day0.Add(-time.Hour)}
	p := openTest(t, NewMemory(9, &ledger{}), nil, campaigns...)
	click := askTest(t, p, "1", day0).Token
	if err := p.Click(t.Context(), click, "", day0); err != nil {
		t.Fatal(err)
	}
	a := p.Attributes()
	if err := a.Add("level", "9"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		now  time.Time
		want string
	}{
		{day0, "clicked does-not-suit user-waits not-started ended user-waits paused archived user-waits user-waits user-waits"},
		{day0.Add(7 * 24 * time.Hour), "clicked does-not-suit given not-started ended behind paused archived behind behind behind"},
	} {
		list, _, err := p.Explain(t.Context(), Key{"1", "home"}, a, test.now)
		var got []string
		for _, e := range list {
			got = append(got, string(e.Verdict))
		}
		if err != nil || strings.Join(got, " ") != test.want || list[1].Condition != `country == "CN"` {
			t.Errorf("%v: %v, %v", test.now, got, err)
		}
	}
}

// The first false condition of a paused campaign and of a draft is named, for testers too.
func TestExplainBeforeStart(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()
	c[0].Status, c[0].Target = Paused, `country == "CN" and level > 3`
	c[1].Status, c[1].Target, c[1].Testers = Draft, `level > 3`, []string{"tester"}
	p := openTest(t, NewMemory(9, &ledger{}), nil, c...)
	for _, test := range []struct{ user, level, want string }{
		{"1", "3", `paused "level > 3" not-for-user "level > 3" given ""`},
		{"tester", "3", `paused "level > 3" given "level > 3" behind ""`},
		{"1", "4", `paused "" not-for-user "" given ""`},
	} {
		a := p.Attributes()
		if err := errors.Join(a.Add("level", test.level), a.Add("country", "CN")); err != nil {
			t.Fatal(err)
		}
		list, _, err := p.Explain(t.Context(), Key{test.user, "home"}, a, day0)
		var got []string
		for _, e := range list {
			got = append(got, fmt.Sprintf("%s %q", e.Verdict, e.Condition))
		}
		if strings.Join(got, " ") != test.want || err != nil {
			t.Errorf("user %s, level %s: %v, %v", test.user, test.level, got, err)
		}
	}
}

func TestCampaignValidate(t *testing.T) {
	t.Parallel()
	c := Campaign{
		Placement: "Home", Payload: []byte("{"), Status: "on", Start: Moment{day0}, End: Moment{day0}, Cap: -1,
		RepeatAfter: Period(time.Millisecond), QuietClick: -1, QuietDismiss: Period(DurationMax + 1),
	}
	err := c.Validate()
	for _, want := range []string{"id ", "name ", "placement ", "payload ", "status ", "end must", "cap ", "repeat_after ", "quiet_click ", "quiet_dismiss "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no word of %q in: %v", want, err)
		}
	}
	schema := testSchema(t)
	twice := append(threeCampaigns(), threeCampaigns()[0])
	if _, err := NewSet(schema, twice); err == nil || err.Error() != "campaign 1: its id is there twice" {
		t.Error(err)
	}
	broken := threeCampaigns()
	broken[1].Target = "level >"
	if _, err := NewSet(schema, broken); err == nil || err.Error() != "campaign 2: target: 1:7: unexpected token EOF" {
		t.Error(err)
	}
}

// loser is a Memory at which each user's first swap loses a race.
type loser struct {
	*Memory
	lost map[string]bool
}

func (l *loser) Swap(ctx context.Context, key Key, version uint64, next State, event Event, guards ...Guard) (bool, error) {
	if !l.lost[key.User] {
		l.lost[key.User] = true
		return false, nil
	}
	return l.Memory.Swap(ctx, key, version, next, event, guards...)
}

// The answer names the campaigns that could not be decided also after a lost race.
func TestDetailAfterRace(t *testing.T) {
	t.Parallel()
	c := threeCampaigns()[:2]
	c[0].Target = "level > 3"
	p := openTest(t, &loser{NewMemory(10, nil), map[string]bool{}}, func(cfg *Config) {
		cfg.UserRow = func(context.Context, string) ([]byte, error) { return nil, errors.New("away") }
	}, c...)
	answer := askTest(t, p, "1", day0)
	if want := "the user's row could not be read; not decided: campaign 1"; answer.Detail != want || answer.Campaign == nil || answer.Campaign.ID != 2 {
		t.Errorf("%+v, want campaign 2 and %q", answer, want)
	}
}
