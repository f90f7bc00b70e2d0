package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/serve/popup"
)

// campaignView is a campaign in the API. In requests id, problem and the counts are
// ignored, so that an answer can be sent back.
type campaignView struct {
	popup.Campaign
	Version int64  `json:"version"`
	Problem string `json:"problem,omitempty"` // why it is never shown
	popup.Counts
	ClickRate float64 `json:"click_rate"` // clicks / shows, 0 without shows
}

func newView(c popup.StoredCampaign, problem string, n popup.Counts) campaignView {
	v := campaignView{Campaign: c.Campaign, Version: c.Version, Problem: problem, Counts: n}
	if n.Shows > 0 {
		v.ClickRate = float64(n.Clicks) / float64(n.Shows)
	}
	return v
}

// newCampaign returns what a campaign has that a request does not say.
func newCampaign() popup.Campaign {
	return popup.Campaign{Target: popup.Everybody, Rollout: 100}
}

// fields are the members of a body, by the names of a campaign's fields.
type fields map[string]json.RawMessage

// campaignBytesMax bounds a request's body: the payloads, the expression, and some room.
const campaignBytesMax = 2*popup.PayloadBytesMax + popup.TargetBytesMax + 16<<10

// readFields reads a JSON object of a media type.
func readFields(w http.ResponseWriter, r *http.Request, media string) (body fields, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != media {
		if r.Method == http.MethodPatch {
			w.Header().Set("Accept-Patch", media)
		}
		return nil, newProblem(http.StatusUnsupportedMediaType, "send "+media)
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, campaignBytesMax))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", campaignBytesMax))
	}
	if err != nil {
		return nil, newProblem(http.StatusBadRequest, "the body cannot be read")
	}
	if err := json.Unmarshal(text, &body); err != nil || body == nil {
		detail := "the body must be one JSON object"
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			detail = fmt.Sprintf("the body is not JSON at byte %d: %v", syntax.Offset, err)
		}
		return nil, newProblem(http.StatusBadRequest, detail)
	}
	return body, nil
}

// fill sets the fields of a campaign. If one of required is missing, or a field is unknown or
// of another type, the error is a *Problem with all that is wrong.
func (p *Popups) fill(c *popup.StoredCampaign, body fields, required ...string) error {
	view := campaignView{Campaign: newCampaign()}
	flaws := view.set(body)
	for _, name := range required {
		if body[name] == nil && name != "target" {
			flaws = append(flaws, Flaw{Field: name, Message: name + " is required"})
		}
	}
	if blank := strings.TrimSpace(view.Target) == ""; blank || body["target"] == nil && slices.Contains(required, "target") {
		if !has(flaws, "target") {
			flaws = append(flaws, Flaw{Field: "target", Message: `target is required: an expression over the attributes, or "true" for everybody`})
		}
	}
	changed := view.Campaign
	changed.ID, changed.Status = c.ID, cmp.Or(changed.Status, c.Status)
	c.Campaign = changed
	if len(flaws) == 0 {
		return nil
	}
	for _, f := range p.flaws(c.Campaign) {
		if !has(flaws, f.Field) {
			flaws = append(flaws, f)
		}
	}
	return flawed(http.StatusBadRequest, flaws...)
}

// has reports whether one of the flaws is in a field.
func has(flaws []Flaw, field string) bool {
	return slices.ContainsFunc(flaws, func(f Flaw) bool { return f.Field == field })
}

// set sets the fields that a body has, and returns what is wrong with the others.
func (v *campaignView) set(body fields) []Flaw {
	var flaws []Flaw
	view := reflect.ValueOf(v).Elem()
	for _, name := range slices.Sorted(maps.Keys(body)) {
		known := reflect.VisibleFields(view.Type())
		i := slices.IndexFunc(known, func(f reflect.StructField) bool { return fieldName(f) == name && !f.Anonymous })
		if i < 0 {
			flaws = append(flaws, Flaw{Field: name, Message: name + " is not a field of a campaign"})
			continue
		}
		field, value := view.FieldByIndex(known[i].Index), body[name]
		isNull := string(value) == "null"
		switch field.Interface().(type) {
		case popup.Moment, popup.Period, []popup.Variant, []string:
			if isNull {
				continue // as if it were absent
			}
		case json.RawMessage:
			isNull = false
		}
		if err := unmarshal(withoutFraction(value, field.Type()), field.Addr().Interface()); err != nil || isNull {
			flaws = append(flaws, Flaw{Field: name, Message: name + " must be " + expected(field, err)})
		}
	}
	return flaws
}

// unmarshal is json.Unmarshal, but refuses members that are not known.
func unmarshal(text []byte, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(to)
}

// withoutFraction returns the value of an integer field as encoding/json reads it: in JSON, 1.0
// and 1e2 are integers too.
func withoutFraction(value []byte, field reflect.Type) []byte {
	if !reflect.Zero(field).CanInt() || !bytes.ContainsAny(value, ".eE") {
		return value
	}
	const exact = 1 << 53 // a float has every integer up to it
	if x, err := strconv.ParseFloat(string(value), 64); err == nil && x == math.Trunc(x) && math.Abs(x) <= exact {
		return strconv.AppendInt(nil, int64(x), 10)
	}
	return value
}

// fieldName returns the name of a field in JSON.
func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// expected returns what a field's value must be.
func expected(field reflect.Value, err error) string {
	if errors.Is(err, popup.ErrPeriod) {
		return popup.ErrPeriod.Error()
	}
	kind := field.Type()
	switch {
	case kind == reflect.TypeFor[[]popup.Variant]():
		return `a list of {"name": TEXT, "weight": WHOLE NUMBER, "payload": JSON}`
	case kind == reflect.TypeFor[[]string]():
		return "a list of texts"
	case kind == reflect.TypeFor[popup.Moment]():
		return "a time of RFC 3339, as 2026-01-02T03:04:05Z, or null"
	case kind == reflect.TypeFor[popup.Period]():
		return popup.ErrPeriod.Error()
	case kind.Kind() == reflect.Int32:
		return "a whole number of 32 bits"
	case kind.Kind() == reflect.String:
		return "text"
	case kind.Kind() == reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// flaws returns all that is wrong with a campaign, apart from the others.
func (p *Popups) flaws(c popup.Campaign) []Flaw {
	if c.ID == 0 {
		c.ID = 1 // a new one gets its id later
	}
	found := flawsOf(p.Campaigns.Check(c))
	if popup.IsPlacement(c.Placement) && !slices.Contains(p.Placements, c.Placement) {
		found = append(found, Flaw{Field: "placement", Message: "placement must be " + strings.Join(p.Placements, " or ") +
			": popups.placements of the configuration"})
	}
	return found
}

// flawsOf returns the flaws that an error joins.
func flawsOf(err error) []Flaw {
	switch e := err.(type) {
	case *popup.FieldError:
		return []Flaw{{Field: e.Field, Message: e.Message}}
	case *popup.TargetError:
		return []Flaw{{"target", e.Line, e.Column, e.Message}}
	case interface{ Unwrap() error }:
		return flawsOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		var all []Flaw
		for _, one := range e.Unwrap() {
			all = append(all, flawsOf(one)...)
		}
		return all
	}
	return nil
}

// writableFields returns the fields of a campaign that a request may set, but its version.
func writableFields(c popup.StoredCampaign) fields {
	text, err := json.Marshal(newView(c, "", popup.Counts{}))
	if err != nil {
		panic("bug: encode a campaign: " + err.Error())
	}
	var all fields
	if err := json.Unmarshal(text, &all); err != nil {
		panic("bug: decode a campaign: " + err.Error())
	}
	for _, name := range []string{"id", "version", "problem", "shows", "clicks", "dismissals", "withheld", "conversions", "click_rate"} {
		delete(all, name)
	}
	return all
}

// mergeFields applies a merge patch. The payload is the only field that is merged deeply.
func mergeFields(target, patch fields) fields {
	for name, value := range patch {
		switch {
		case string(value) == "null":
			delete(target, name)
		case name == "payload":
			target[name] = encode(mergePatch(decode(target[name]), decode(value)))
		default:
			target[name] = value
		}
	}
	return target
}

// mergePatch is MergePatch of RFC 7396. It may change target.
func mergePatch(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	merged, ok := target.(map[string]any)
	if !ok {
		merged = make(map[string]any)
	}
	for name, value := range members {
		if value == nil {
			delete(merged, name)
		} else {
			merged[name] = mergePatch(merged[name], value)
		}
	}
	return merged
}

// decode decodes valid JSON and keeps all digits of numbers.
func decode(text []byte) any {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		panic("bug: decode a payload: " + err.Error())
	}
	return value
}

// encode is the reverse of decode.
func encode(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic("bug: encode a payload: " + err.Error())
	}
	return bytes.TrimSpace(text.Bytes())
}
