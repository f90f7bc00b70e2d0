package popup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/audit"
)

// listTables are campaigns and lists in memory.
type listTables struct {
	mu        sync.Mutex
	version   int64
	campaigns []StoredCampaign
	lists     map[string][]uint64
	versions  map[string]int64
	size      map[string]int64 // if it is not that of lists
	err       error            // of reading lists
	reads     []string         // lists that were read
	read      func()           // while a list is read
}

func (l *listTables) Version(context.Context) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version, nil
}

func (l *listTables) Campaigns(context.Context) (int64, []StoredCampaign, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version, slices.Clone(l.campaigns), nil
}

func (l *listTables) SaveCampaign(_ context.Context, c StoredCampaign, _ int64, _ audit.Author) (StoredCampaign, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	c.ID = CampaignID(l.version)
	l.campaigns = append(l.campaigns, c)
	return c, nil
}

func (l *listTables) Lists(context.Context) (all []ListVersion, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, users := range l.lists {
		size := int64(len(users))
		if l.size[name] > 0 {
			size = l.size[name]
		}
		all = append(all, ListVersion{Name: name, Version: l.versions[name], Size: size})
	}
	return all, l.err
}

func (l *listTables) ListUsers(_ context.Context, name string) (ListVersion, []uint64, error) {
	l.mu.Lock()
	l.reads = append(l.reads, name)
	hashes, version, err, read := l.lists[name], l.versions[name], l.err, l.read
	l.mu.Unlock()
	if read != nil {
		read()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.versions[name] != version {
		err = ErrListChanged
	}
	return ListVersion{Name: name, Version: version}, hashes, err
}

func (l *listTables) ReplaceList(_ context.Context, name string, hashes []uint64, _ audit.Author) (ListVersion, error) {
	l.replace(name, hashes)
	return ListVersion{Name: name, Size: int64(len(hashes))}, nil
}

func (l *listTables) DeleteList(_ context.Context, name string, _ audit.Author) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	delete(l.lists, name)
	delete(l.versions, name)
	return nil
}

func (l *listTables) set(name string, users ...string) { l.replace(name, hashesOf(users...)) }

func (l *listTables) replace(name string, hashes []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	l.lists[name], l.versions[name] = hashes, l.version
}

func (l *listTables) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version++
	l.err = err
}

// takeReads returns which lists were read since the last call.
func (l *listTables) takeReads() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.reads = nil }()
	return strings.Join(l.reads, " ")
}

func newListTables() *listTables {
	return &listTables{lists: map[string][]uint64{}, versions: map[string]int64{}, size: map[string]int64{}}
}

// listPopup is a Popup whose campaigns are those of listTables.
type listPopup struct {
	*listTables
	popup     *Popup
	campaigns *Campaigns
	log       bytes.Buffer
}

func openListed(t *testing.T, targets ...string) *listPopup {
	t.Helper()
	l := &listPopup{listTables: newListTables()}
	l.popup = openTest(t, NewMemory(9, nil), nil)
	for i, target := range targets {
		l.listTables.campaigns = append(l.listTables.campaigns, StoredCampaign{Campaign: Campaign{
			ID: CampaignID(i + 1), Name: "a", Placement: "home", Payload: []byte("1"), Status: Active, Rollout: 100, Target: target, Cap: 1,
		}})
	}
	l.version = 1
	l.campaigns = NewCampaigns(l, l, l.popup, Defaults{}, slog.New(slog.NewTextHandler(&l.log, nil)))
	if err := l.campaigns.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// decides returns which campaign a user would get, or why none, and the problems of campaigns.
func (l *listPopup) decides(t *testing.T, user string) string {
	t.Helper()
	a := l.popup.Attributes()
	defer l.popup.Release(a)
	key := Key{User: user, Placement: "home"}
	l.popup.begin(a, user)
	d, _, err := l.popup.decide(t.Context(), l.popup.Set().Placement("home"), key, State{}, a, day0, true)
	if err != nil {
		t.Fatal(err)
	}
	text := d.Reason.String()
	if d.Campaign != nil {
		text = fmt.Sprint("campaign ", d.Campaign.ID)
	}
	if d.Detail != "" {
		text += ": " + d.Detail
	}
	all, _, err := l.popup.Explain(t.Context(), key, a, day0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Problem != "" {
			text += fmt.Sprintf(" (%d: %s)", e.Campaign, e.Problem)
		}
		if (e.Verdict == IsGiven) != (d.Campaign != nil && d.Campaign.ID == e.Campaign) {
			t.Errorf("user %s: explained as %s, but decided %s", user, e.Verdict, text)
		}
	}
	return text
}

func (l *listPopup) expect(t *testing.T, want map[string]string) {
	t.Helper()
	for user, text := range want {
		if got := l.decides(t, user); got != text {
			t.Errorf("user %s: %s, want %s", user, got, text)
		}
	}
}

// A campaign whose list does not exist is for nobody, also if its target says not in_list.
func TestListsDecide(t *testing.T) {
	t.Parallel()
	l := openListed(t, `in_list("vip")`, `not in_list("gone")`)
	const absent = " (1: list vip does not exist) (2: list gone does not exist)"
	l.expect(t, map[string]string{"7": "none-suits" + absent})
	for _, name := range []string{"vip", "gone"} {
		if _, err := l.campaigns.ReplaceList(t.Context(), name, users("7", "8"), audit.Author{}); err != nil {
			t.Fatal(err)
		}
	}
	l.expect(t, map[string]string{"7": "campaign 1", "9": "campaign 2"})
	if err := l.campaigns.DeleteList(t.Context(), "vip", audit.Author{}); !errors.Is(err, ErrListUsed) || !strings.Contains(err.Error(), "campaign 1") {
		t.Errorf("delete a list that is used: %v", err)
	}
	l.listTables.campaigns[0].Status = Archived
	if err := l.campaigns.DeleteList(t.Context(), "vip", audit.Author{}); err != nil {
		t.Error(err)
	}
	l.expect(t, map[string]string{"7": "none-suits", "9": "campaign 2"})
	l.listTables.campaigns[0].Status = Paused
	if err := l.campaigns.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, _, err := l.popup.Explain(t.Context(), Key{"7", "home"}, l.popup.Attributes(), day0)
	if err != nil || all[0].Verdict != IsPaused || all[0].Problem != "list vip does not exist" {
		t.Errorf("paused: %+v, %v", all, err)
	}
}

// While lists cannot be read, campaigns that need one that never was are not decided, and the
// others stay as they are. Only what has changed is read.
func TestListsFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := openListed(t, `in_list("vip")`, `in_list("big")`, `in_list("new")`)
		l.popup.ChangeLists(func(*Lists) *Lists { return nil })
		l.fail(errors.New("no database"))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); l.campaigns.Run(ctx) }()
		wait := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		wait(time.Minute)
		const unread = " (1: list vip has not been read yet) (2: list big has not been read yet) (3: list new has not been read yet)"
		l.expect(t, map[string]string{"7": "unavailable: list vip has not been read yet; list big has not been read yet; list new has not been read yet; not decided: campaigns 1, 2 and 3" + unread})
		if n := strings.Count(l.log.String(), "lists of users cannot be read"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, l.log.String())
		}
		l.fail(nil)
		l.set("vip", "7")
		l.set("big", "8")
		l.mu.Lock()
		l.size["big"] = smallList + 1
		l.mu.Unlock()
		wait(2 * listRetry)
		if got := l.takeReads(); got != "vip big" && got != "big vip" {
			t.Errorf("read %q", got)
		}
		const absent = " (3: list new does not exist)"
		l.expect(t, map[string]string{"7": "campaign 1" + absent, "8": "campaign 2" + absent, "9": "none-suits" + absent})

		l.set("vip", "9") // small: with the next look at the version
		wait(pollEvery)
		l.expect(t, map[string]string{"7": "none-suits" + absent, "8": "campaign 2" + absent, "9": "campaign 1" + absent})
		if got := l.takeReads(); got != "vip" {
			t.Errorf("read %q", got)
		}
		// It is replaced while it is read, twice.
		again := 0
		l.mu.Lock()
		l.read = func() {
			if again++; again < 3 {
				l.set("vip", fmt.Sprint("1", again))
			}
		}
		l.mu.Unlock()
		l.set("vip", "10")
		wait(5 * listRetry)
		l.expect(t, map[string]string{"9": "none-suits" + absent, "10": "none-suits" + absent, "12": "campaign 1" + absent})
		l.fail(errors.New("no database"))
		l.set("new", "9")
		wait(5 * listRetry)
		l.expect(t, map[string]string{"12": "campaign 1" + absent})
		stop()
		<-done
	})
}
