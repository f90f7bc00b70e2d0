package popup

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// Each period comes back, and a campaign with "0s" is refused.
func TestPeriod(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Period{"null": 0, `"1ms"`: Period(time.Millisecond), `"87600h0m0s"`: Period(DurationMax), `"forever"`: Forever} {
		var back Period
		text, err := json.Marshal(p)
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if string(text) != want || back != p || err != nil {
			t.Errorf("%v: %s comes back as %v, %v", p, text, back, err)
		}
	}
	for _, bad := range []string{"1", `"1"`, `"Forever"`, `""`, "{}"} {
		if err := json.Unmarshal([]byte(bad), new(Period)); !errors.Is(err, ErrPeriod) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	c := threeCampaigns()[0]
	if err := json.Unmarshal([]byte(`"0s"`), &c.Again); err != nil || c.Validate() == nil {
		t.Errorf("0s is taken: %v", err)
	}
}

// A campaign that cannot be read keeps its columns, and is not valid.
func TestDecodeCampaign(t *testing.T) {
	t.Parallel()
	stored := StoredCampaign{Campaign: threeCampaigns()[0], Version: 7}
	text, err := stored.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{text, "", text[:len(text)-1], strings.Replace(text, "{", `{"newer":1,`, 1), strings.Replace(text, `"cap":0`, `"cap":"0"`, 1)} {
		c := StoredCampaign{Campaign: Campaign{ID: 9, Name: "by hand", Placement: "cart", Status: Paused}, Version: 8}
		c.Decode(text)
		err := c.Validate()
		if readable := c.unread == nil; readable != (err == nil) || err != nil && !strings.Contains(err.Error(), "campaign cannot be read") {
			t.Errorf("%s: %v", text, err)
		}
		if c.ID != 9 || c.Name != "by hand" || c.Placement != "cart" || c.Status != Paused || c.Version != 8 {
			t.Errorf("%s: %+v", text, c)
		}
	}
}
