package popup

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A campaign with a problem does not affect the others, and Explain says why.
func TestUsableSet(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	var campaigns []Campaign
	for i := range CampaignsMax + 3 {
		c := threeCampaigns()[0]
		c.ID, c.Order, c.Target = CampaignID(i+1), int32(i), ""
		campaigns = append(campaigns, c)
	}
	campaigns[0].Target = "gone > 1"          // counts: it may be corrected
	campaigns[1].Payload = []byte("{")        // only explained
	campaigns[2].Status = Archived            // does not count
	campaigns[CampaignsMax+1].Status = Paused // the last that counts
	if _, err := NewSet(schema, campaigns); err == nil || !strings.HasPrefix(err.Error(), "campaign 1: target: 1:1: unknown name gone") {
		t.Errorf("all that is usable is taken for all: %v", err)
	}
	set, problems := UsableSet(schema, campaigns)
	want := map[CampaignID]string{
		1: "target: 1:1: unknown name gone", 2: "payload must be JSON", CampaignsMax + 3: "the placement has campaigns that are not archived, more than 500",
	}
	var target *TargetError
	if len(problems) != len(want) || !errors.As(problems[1], &target) {
		t.Errorf("problems: %v", problems)
	}
	a := schema.New()
	state := State{Version: 1, Phase: Clicked, Campaign: 1, Shown: day0.UnixMilli(), Answered: day0.UnixMilli(), Shows: 2}
	place, later := set.Placement("home"), day0.Add(100*24*time.Hour)
	explained := Explain(place, state, a, later, time.Time{})
	if len(explained) != len(campaigns) {
		t.Fatalf("%d of %d campaigns are explained", len(explained), len(campaigns))
	}
	for _, e := range explained {
		problem, broken := want[e.Campaign]
		if broken != (e.Verdict == HasProblem) || !strings.HasPrefix(e.Problem, problem) || (e.Problem != "") != broken {
			t.Errorf("campaign %d: %s, %q", e.Campaign, e.Verdict, e.Problem)
		}
	}
	// The quiet period of a campaign with a problem continues, and so does the count of its shows.
	if d, waits := Wait(place, state, "7", day0.Add(time.Minute)); !waits || d.Reason != WaitClicked {
		t.Errorf("%+v", d)
	}
	d := Decide(place, state, a, later)
	if d.Campaign == nil || d.Campaign.ID != 4 {
		t.Fatalf("%+v", d)
	}
	next, _, err := Show(place, Key{"7", "home"}, state, d, later)
	if r, _ := next.record(1); err != nil || r.shows != 2 || r.last != KindClick || next.Shows != 1 {
		t.Errorf("%+v, %+v, %v", next, r, err)
	}
}

// If there are too many campaigns, the last ones in their order have the problem.
func TestLimits(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	var campaigns []Campaign
	for i := range CampaignsMax + 2 {
		c := threeCampaigns()[0]
		c.ID, c.Order, c.Target = CampaignID(i+1), int32(-i), ""
		campaigns = append(campaigns, c)
	}
	_, problems := UsableSet(schema, campaigns)
	if len(problems) != 2 || problems[1] == nil || problems[2] == nil {
		t.Errorf("%v", problems)
	}
	if err := checkLimit("home", campaigns); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("placement home has %d campaigns", CampaignsMax+2)) {
		t.Error(err)
	}
	campaigns[5].Status, campaigns[6].Placement = Archived, "cart"
	if err := checkLimit("home", campaigns); err != nil {
		t.Error(err)
	}
}
