package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/popup"
)

// formBytesMax bounds a form: as the body of the API, with room for its encoding.
const formBytesMax = 1 << 20

// campaignForm is a campaign as texts of a form.
type campaignForm struct {
	ID      string // "": a new one
	Version string
	Status  string
	State   string
	Problem string
	Name    string // as it was saved last

	Values   map[string]string // by the names of the API's fields
	Variants []variantForm
	Errors   map[string]admin.Flaw // by field
	Theirs   map[string]string     // what others have saved meanwhile, by field
	Notice   string                // what to know before saving
	Done     string
	Options  options
	Checked  *checked
	Asked    asked // for whom it is explained before it is active
}

type variantForm struct{ Name, Weight, Payload string }

// fieldNames are the fields of a form, apart from variants, in its order.
func fieldNames() []string {
	return []string{
		"name", "placement", "target", "zone", "payload", "rollout", "holdout", "start", "end", "priority", "order", "cap", "again",
		"repeat_after", "quiet_click", "quiet_dismiss", "testers",
	}
}

// formOf returns the texts of a campaign.
func formOf(c campaign, zone *time.Location) campaignForm {
	f := campaignForm{
		ID: fmt.Sprint(c.ID), Version: fmt.Sprint(c.Version), Status: string(c.Status), State: c.State(), Problem: c.Problem, Name: c.Name,
	}
	moment := func(m popup.Moment) string {
		if m.IsZero() {
			return ""
		}
		return m.In(zone).Format(fieldLayout)
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	f.Values = map[string]string{
		"name": c.Name, "placement": c.Placement, "target": c.Target, "zone": c.Zone, "payload": indented(c.Payload),
		"rollout": number(c.Rollout), "holdout": number(c.Holdout), "start": moment(c.Start), "end": moment(c.End),
		"priority": fmt.Sprint(c.Priority), "order": fmt.Sprint(c.Order), "cap": fmt.Sprint(c.Cap), "again": periodText(c.Again),
		"repeat_after": periodText(c.RepeatAfter), "quiet_click": periodText(c.QuietClick), "quiet_dismiss": periodText(c.QuietDismiss),
		"testers": strings.Join(c.Testers, "\n"),
	}
	for _, v := range c.Variants {
		f.Variants = append(f.Variants, variantForm{v.Name, fmt.Sprint(v.Weight), indented(v.Payload)})
	}
	return f
}

// periodText returns a period as the API has it; "" for none.
func periodText(p popup.Period) string {
	var text string
	if encoded, err := p.MarshalJSON(); err == nil {
		_ = json.Unmarshal(encoded, &text) // null leaves it empty
	}
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

func indented(payload json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, payload, "", "  ") != nil {
		return string(payload)
	}
	return plainJSON(out.String())
}

// plainJSON returns JSON with the characters that the API escapes for HTML.
func plainJSON(text string) string {
	return strings.NewReplacer(`\\`, `\\`, `\u0026`, "&", `\u003c`, "<", `\u003e`, ">").Replace(text)
}

// readForm returns what was sent.
func (q *request) readForm() (f campaignForm, err error) {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, formBytesMax)
	if err := q.r.ParseForm(); err != nil {
		return f, &failure{Status: http.StatusRequestEntityTooLarge, Detail: "The form cannot be read, or is too large. Nothing has changed."}
	}
	form := q.r.PostForm
	q.zone = loadZone(form.Get("tz"), q.zone) // the one in which the form was shown
	f = campaignForm{ID: q.r.PathValue("id"), Version: form.Get("version"), Status: form.Get("status"), Values: map[string]string{}}
	for _, name := range fieldNames() {
		f.Values[name] = strings.ReplaceAll(form.Get(name), "\r\n", "\n")
	}
	names, weights, payloads := form["variant_name"], form["variant_weight"], form["variant_payload"]
	for i := range min(len(names), len(weights), len(payloads)) {
		v := variantForm{strings.TrimSpace(names[i]), strings.TrimSpace(weights[i]), strings.ReplaceAll(payloads[i], "\r\n", "\n")}
		if v.Name != "" || strings.TrimSpace(v.Payload) != "" {
			f.Variants = append(f.Variants, v)
		}
	}
	return f, nil
}

// body returns the fields for the API. What is not valid is sent as text, so that the API says what is wrong.
func (f *campaignForm) body(zone *time.Location) map[string]any {
	body := map[string]any{"name": f.Values["name"], "placement": f.Values["placement"], "zone": strings.TrimSpace(f.Values["zone"])}
	body["target"] = f.Values["target"]
	for _, name := range []string{"rollout", "holdout", "priority", "order", "cap"} {
		body[name] = number(f.Values[name])
	}
	for _, name := range []string{"again", "repeat_after", "quiet_click", "quiet_dismiss"} {
		body[name] = nil
		if text := strings.TrimSpace(f.Values[name]); text != "" {
			body[name] = text
		}
	}
	for _, name := range []string{"start", "end"} {
		body[name] = nil
		if t, err := parseTime(f.Values[name], zone); err == nil {
			body[name] = t.UTC().Format(time.RFC3339)
		} else if f.Values[name] != "" {
			body[name] = f.Values[name]
		}
	}
	testers := []string{}
	for line := range strings.Lines(f.Values["testers"]) {
		if user := strings.TrimSpace(line); user != "" {
			testers = append(testers, user)
		}
	}
	body["testers"] = testers
	if payload, err := payloadOf(f.Values["payload"]); err == nil {
		body["payload"] = payload
	}
	variants := []any{}
	for _, v := range f.Variants {
		payload, _ := payloadOf(v.Payload) // f.payloadFlaws says what is wrong
		variants = append(variants, map[string]any{"name": v.Name, "weight": number(v.Weight), "payload": payload})
	}
	body["variants"] = variants
	if f.Status != "" {
		body["status"] = f.Status
	}
	if f.ID != "" {
		version, _ := strconv.ParseInt(f.Version, 10, 64) // 0: none, which the API refuses
		body["version"] = version
	}
	return body
}

// number returns a JSON number, or the text if it is none.
func number(text string) any {
	text = strings.TrimSpace(text)
	if x, err := strconv.ParseFloat(text, 64); err == nil && json.Valid([]byte(text)) && x == x {
		return json.RawMessage(text)
	}
	return text
}

func payloadOf(text string) (json.RawMessage, error) {
	var value json.RawMessage
	err := json.Unmarshal([]byte(text), &value)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		before := text[:min(len(text), int(syntax.Offset))]
		return nil, fmt.Errorf("the payload is not JSON: line %d: %w", 1+strings.Count(before, "\n"), err)
	}
	return value, err
}

// payloadFlaws returns what is wrong with the JSON of the payloads.
func (f *campaignForm) payloadFlaws() []admin.Flaw {
	var flaws []admin.Flaw
	if _, err := payloadOf(f.Values["payload"]); err != nil {
		flaws = append(flaws, admin.Flaw{Field: "payload", Message: err.Error()})
	}
	for _, v := range f.Variants {
		if _, err := payloadOf(v.Payload); err != nil {
			flaws = append(flaws, admin.Flaw{Field: "variants", Message: fmt.Sprintf("variant %q: %v", v.Name, err)})
		}
	}
	return flaws
}

// newCampaign shows an empty form.
func (q *request) newCampaign() error {
	if err := q.mayEdit(); err != nil {
		return err
	}
	f := formOf(campaign{Campaign: popup.Campaign{Target: popup.Everybody, Rollout: 100, Payload: []byte("{}")}}, q.zone)
	f.ID, f.Status, f.Values["payload"] = "", "draft", "{\n  \"title\": \"\"\n}"
	return q.showForm(http.StatusOK, f)
}

// mayEdit returns an error unless the caller may change campaigns.
func (q *request) mayEdit() error {
	if q.caller.Role < roleToEdit {
		return &failure{Status: http.StatusForbidden, Detail: "To change campaigns requires a token with the role edit."}
	}
	return nil
}

// editCampaign shows the form of a campaign.
func (q *request) editCampaign() error {
	c, err := q.readCampaign()
	if err != nil {
		return err
	}
	f := formOf(c, q.zone)
	f.Done = savedText(q.r.URL.Query())
	return q.showForm(http.StatusOK, f)
}

func (q *request) readCampaign() (c campaign, err error) {
	return c, q.get("/popups/campaigns/"+url.PathEscape(q.r.PathValue("id")), &c)
}

func (q *request) showForm(status int, f campaignForm) (err error) {
	if f.Options, err = q.options(); err != nil {
		return err
	}
	f.Asked = askedOf(q.r.URL.Query(), f.Options)
	if f.Values["placement"] == "" {
		f.Values["placement"] = f.Options.Placements[0]
	}
	if f.Checked == nil {
		if f.Checked, err = q.checked(&f); err != nil {
			return err
		}
	}
	title := "New campaign"
	if f.ID != "" {
		title = f.Name
	}
	return q.render(status, "campaign", title, f)
}

// saveCampaign saves a campaign, which is new without an id, or shows what is wrong, or what others have changed.
func (q *request) saveCampaign() error {
	method, path, saved := http.MethodPost, "/popups/campaigns", "created"
	if id := q.r.PathValue("id"); id != "" {
		method, path, saved = http.MethodPut, path+"/"+url.PathEscape(id), "saved"
	}
	if err := q.mayEdit(); err != nil {
		return err
	}
	f, err := q.readForm()
	if err != nil {
		return err
	}
	if q.r.PostForm.Get("add") != "" { // a row for another variant, without JavaScript
		f.Variants = append(f.Variants, variantForm{Weight: "1", Payload: f.Values["payload"]})
		return q.showForm(http.StatusOK, f)
	}
	var c campaign
	flaws := f.payloadFlaws()
	if len(flaws) == 0 {
		err = q.call(method, path, f.body(q.zone), &c)
	}
	var refused *failure
	switch {
	case err == nil && len(flaws) == 0:
		return q.redirect(fmt.Sprintf("/console/campaigns/%d?saved=%s", c.ID, saved))
	case err != nil && !errors.As(err, &refused):
		return err
	case refused != nil && refused.Status == http.StatusPreconditionFailed:
		return q.conflict(f)
	case refused != nil:
		flaws = refused.Errors
	}
	status := http.StatusUnprocessableEntity
	f.Errors, f.Notice = map[string]admin.Flaw{}, "Nothing is saved yet: see what is wrong below."
	if len(flaws) == 0 { // what was typed is not lost
		status, f.Notice = refused.Status, "Nothing is saved yet: "+refused.Detail
	}
	f.Checked = &checked{Errors: flaws, Target: f.Values["target"]}
	for _, one := range slices.Backward(flaws) {
		f.Errors[one.Field] = one
	}
	if f.ID != "" {
		if current, err := q.readCampaign(); err == nil {
			f.Name, f.State = current.Name, current.State()
		}
	}
	return q.showForm(status, f)
}

// conflict shows the form after somebody else has saved the campaign. What only they have changed is taken over, and what
// both have changed is shown beside the field.
func (q *request) conflict(f campaignForm) error {
	current, err := q.readCampaign()
	if err != nil {
		return err
	}
	changes, err := q.readHistory()
	if err != nil {
		return err
	}
	theirs, base := formOf(current, q.zone), campaignForm{Values: map[string]string{}}
	by := ""
	for _, change := range changes {
		switch {
		case fmt.Sprint(change.Version) == f.Version:
			base = formOf(asCampaign(change), q.zone)
		case change.Version == current.Version:
			by = cmp.Or(change.By, nobody)
		}
	}
	f.Theirs = map[string]string{}
	for _, name := range fieldNames() {
		mine, now, before := f.Values[name], theirs.Values[name], base.Values[name]
		if name == "payload" {
			mine = indented(json.RawMessage(mine))
		}
		switch {
		case now == before || now == mine:
		case mine == before:
			f.Values[name] = now
		default:
			f.Theirs[name] = now
		}
	}
	if mine, now := variantsText(f.Variants), variantsText(theirs.Variants); now != mine && now != variantsText(base.Variants) {
		if mine == variantsText(base.Variants) {
			f.Variants = theirs.Variants
		} else {
			f.Theirs["variants"] = now
		}
	}
	f.Version, f.Name, f.State, f.Status = theirs.Version, theirs.Name, theirs.State, ""
	f.Notice = fmt.Sprintf("%s has saved this campaign meanwhile, and nothing of yours is saved yet. Their changes are in the form. "+
		"Where both of you changed a field, it has your value, and theirs is below it. Save again if that is right.", by)
	return q.showForm(http.StatusConflict, f)
}

func variantsText(variants []variantForm) string {
	var out strings.Builder
	for _, v := range variants {
		fmt.Fprintf(&out, "%s, weight %s: %s\n", v.Name, v.Weight, indented(json.RawMessage(v.Payload)))
	}
	return out.String()
}

// checked is what the API says of a form that is not saved.
type checked struct {
	Errors      []admin.Flaw `json:"errors"`
	Target      string
	Explanation *popup.Explanation `json:"explanation"`
}

// Excerpt returns the line of the target with an error, and a second one that marks the place.
func (c *checked) Excerpt(f admin.Flaw) string {
	lines := strings.Split(c.Target, "\n")
	if f.Field != "target" || f.Line < 1 || f.Line > len(lines) || f.Column < 1 {
		return ""
	}
	line := []rune(lines[f.Line-1])
	column := min(f.Column-1, len(line))
	from, to := max(0, column-60), min(len(line), column+60)
	return string(line[from:to]) + "\n" + strings.Repeat(" ", column-from) + "^"
}

// checked asks what is wrong with a form.
func (q *request) checked(f *campaignForm) (*checked, error) {
	c := &checked{Target: f.Values["target"]}
	body := f.body(q.zone)
	delete(body, "version")
	if f.Values["name"] == "" {
		delete(body, "name") // nobody has typed it yet
	}
	body["id"] = json.Number(cmp.Or(f.ID, "0"))
	path := "/popups/campaigns/check"
	if f.Asked.User != "" {
		path += "?" + f.Asked.query(q.zone).Encode()
	}
	if err := q.call(http.MethodPost, path, body, c); err != nil {
		return nil, err
	}
	c.Errors = append(c.Errors, f.payloadFlaws()...)
	return c, nil
}

// checkCampaign answers htmx with what is wrong with a form as it is being typed.
func (q *request) checkCampaign() error {
	f, err := q.readForm()
	if err != nil {
		return err
	}
	if f.Options, err = q.options(); err != nil {
		return err
	}
	f.Asked = askedOf(q.r.PostForm, f.Options)
	if f.Checked, err = q.checked(&f); err != nil {
		return err
	}
	return q.fragment("campaign", "checked", f)
}
