package console

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"spillway/internal/progress"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/popup"
)

// States returns the states by which campaigns can be filtered; "": all but archived.
func (v *view) States() []string {
	return []string{"", "running", "scheduled", "ended", "not shown", "draft", "paused", "archived"}
}

// Mood returns the color of a state.
func (v *view) Mood(state string) string {
	return map[string]string{"running": "good", "not shown": "bad", "scheduled": "doubt", "draft": "doubt", "paused": "doubt"}[state]
}

// Mover is a button that moves a campaign.
type Mover struct {
	Placement             string
	Page                  int
	ID                    popup.CampaignID
	Name, Direction, Sign string
	Disabled              bool
}

// Mover returns a button of a campaign.
func (v *view) Mover(placement string, page int, id popup.CampaignID, name, direction, sign string, disabled bool) Mover {
	return Mover{placement, page, id, short(name, 60), direction, sign, disabled}
}

// Head returns the view for the head of a campaign's pages.
func (v *view) Head(id any, name, state, placement, page string) *view {
	return v.With(struct{ ID, Name, State, Placement, Page string }{fmt.Sprint(id), name, state, placement, page})
}

// Field is an input of a form.
type Field struct {
	Name, Label, Help, Value string
	Flaw                     admin.Flaw
	Theirs                   string // what others have saved
	HasTheirs                bool
	Rows                     int
}

// Field returns an input of a campaign's form.
func (v *view) Field(f campaignForm, name, label, help string) Field {
	field := Field{Name: name, Label: label, Help: help, Value: f.Values[name], Flaw: f.Errors[name], Rows: 3}
	field.Theirs, field.HasTheirs = f.Theirs[name]
	if name == "payload" {
		field.Rows = 7
	}
	return field
}

// NoVariant is an empty row for a variant.
func (v *view) NoVariant() variantForm { return variantForm{Weight: "1"} }

// Payloads returns the payloads of a form as they are sent: compact JSON.
func (v *view) Payloads(f campaignForm) []variantForm {
	all := f.Variants
	if len(all) == 0 {
		all = []variantForm{{Payload: f.Values["payload"]}}
	}
	var sent []variantForm
	for _, one := range all {
		if payload, err := payloadOf(one.Payload); err == nil {
			one.Payload = indented(payload)
		} else {
			one.Payload = "not JSON yet"
		}
		sent = append(sent, one)
	}
	return sent
}

// Example returns a condition over an attribute.
func (v *view) Example(name, kind string) string {
	switch popup.AttributeType(kind) {
	case popup.Integer, popup.Real:
		return name + " >= 18"
	case popup.Boolean:
		return name
	case popup.Timestamp:
		return "days_since(" + name + ") < 7"
	case popup.TextList:
		return `"a" in ` + name
	case popup.Text:
		example, _ := json.Marshal("text") // never fails
		return name + " == " + string(example)
	}
	return ""
}

// timeLayout names the zone.
const timeLayout = "2006-01-02 15:04:05 MST"

// Time returns a time in the viewer's zone.
func (v *view) Time(t time.Time) string { return t.In(v.zone).Format(timeLayout) }

// Zone names the viewer's zone.
func (v *view) Zone() string { return v.zone.String() }

// Now returns the time of the page in the viewer's zone.
func (v *view) Now() string { return v.Time(time.Now()) }

// Count returns a whole number with commas.
func (v *view) Count(n any) string { return progress.Group(n) }

// Number returns a number with three digits.
func (v *view) Number(x float64) string {
	if x >= 1000 || x == math.Trunc(x) {
		return v.Count(int64(math.Round(x)))
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// Seconds returns a duration with three digits. It takes a float64 or a *float64.
func (v *view) Seconds(x any) string {
	var s float64
	switch x := x.(type) {
	case *float64:
		if x == nil {
			return "–"
		}
		s = *x
	case float64:
		s = x
	}
	units := []struct {
		name string
		size float64
	}{{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}, {"ms", 1e-3}, {"µs", 1e-6}}
	for _, u := range units {
		if s >= u.size {
			return strconv.FormatFloat(math.Round(s/u.size*100)/100, 'g', 3, 64) + " " + u.name
		}
	}
	return "0 s"
}

// Since returns how long ago a time was.
func (v *view) Since(t time.Time) string { return v.Seconds(time.Since(t).Seconds()) }

// Bytes returns a size.
func (v *view) Bytes(n any) string {
	x, _ := strconv.ParseFloat(fmt.Sprint(n), 64)
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if x < 1024 {
			return v.Number(math.Round(x*10)/10) + " " + unit
		}
		x /= 1024
	}
	return v.Number(math.Round(x*10)/10) + " TiB"
}

// Percent returns a share of 1 as a percentage.
func (v *view) Percent(x float64) string {
	digits := 1
	if math.Abs(x) < 0.01 {
		digits = 2
	}
	return strconv.FormatFloat(100*x, 'f', digits, 64) + " %"
}

// Short returns the first characters of a text.
func (v *view) Short(text string, most int) string { return short(text, most) }

func short(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// indexCommand returns the CREATE INDEX in the text of an error; "" if there is none.
func indexCommand(text string) string {
	begin := strings.Index(text, "CREATE INDEX ")
	if begin < 0 {
		return ""
	}
	depth := 0
	for i, c := range text[begin:] {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return text[begin:begin+i+1] + ";"
			}
		}
	}
	return ""
}

// Tab is a link of the navigation.
type Tab struct {
	Path, Name string
	Current    bool // the page is there, or below
}

// Tab returns the link to a page.
func (v *view) Tab(path, name string) Tab {
	at := v.Path == path || path != "/" && strings.HasPrefix(v.Path, path+"/")
	at = at || path == "/" && v.Path == "/console/" || path == "/console/streams" && strings.HasPrefix(v.Path, "/console/spools/")
	return Tab{path, name, at}
}

// With returns the view for a template that shows other data.
func (v *view) With(data any) *view {
	other := *v
	other.Data = data
	return &other
}

// Skew returns by how much a clock is ahead.
func (v *view) Skew(seconds float64) string {
	switch {
	case math.Abs(seconds) < 0.0005:
		return "in time"
	case seconds < 0:
		return v.Seconds(-seconds) + " behind"
	}
	return v.Seconds(seconds) + " ahead"
}

// Sub returns a difference.
func (v *view) Sub(a, b int64) int64 { return a - b }
