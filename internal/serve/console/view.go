package console

import (
	"encoding/json"
	"fmt"

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
	Flaw                     flaw
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
