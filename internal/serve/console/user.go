package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/popup"
)

// asked is for whom and when campaigns are explained, as texts of a form.
type asked struct {
	User, At   string
	Attributes []attributeField
}

// attributeField is an attribute that the app would send; "": it does not.
type attributeField struct{ Name, Type, Value string }

// askedOf reads a form.
func askedOf(form url.Values, o options) asked {
	a := asked{User: strings.TrimSpace(form.Get("user")), At: form.Get("at")}
	for _, one := range o.Attributes {
		a.Attributes = append(a.Attributes, attributeField{one.Name, one.Type, form.Get("attribute." + one.Name)})
	}
	return a
}

// query returns the parameters for the API. What is not valid is sent as it is, so that the API says what is wrong.
func (a asked) query(zone *time.Location) url.Values {
	query := url.Values{"user": {a.User}}
	if t, err := parseTime(a.At, zone); err == nil {
		query.Set("at", t.UTC().Format(time.RFC3339))
	} else if a.At != "" {
		query.Set("at", a.At)
	}
	for _, one := range a.Attributes {
		switch {
		case one.Value == "":
		case popup.AttributeType(one.Type) == popup.TextList:
			query[one.Name] = strings.Split(one.Value, ",")
		default:
			query.Set(one.Name, one.Value)
		}
	}
	return query
}

// Why returns the view for the template that says why a user does or does not get a campaign.
func (v *view) Why(e popup.Explanation, status popup.Status) *view {
	return v.With(struct {
		popup.Explanation
		Status popup.Status
	}{e, status})
}

// userData is what the page of one user shows.
type userData struct {
	Asked  asked
	User   string // as the API writes it; "": nobody is asked about
	Flaws  []admin.Flaw
	Places []admin.Explained
	Stored map[popup.CampaignID]campaign
	Done   string
}

// Tests reports whether a draft is tested on the user.
func (d userData) Tests(c campaign) bool { return slices.Contains(c.Testers, d.User) }

// user shows why one user does or does not get each campaign.
func (q *request) user() error {
	query := q.r.URL.Query()
	o, err := q.options()
	if err != nil {
		return err
	}
	d := userData{Asked: askedOf(query, o), Stored: map[popup.CampaignID]campaign{}, Done: savedText(query)}
	if d.Asked.User == "" {
		return q.render(http.StatusOK, "user", "One user", d)
	}
	all, err := q.readCampaigns("")
	if err != nil {
		return err
	}
	for _, c := range all {
		d.Stored[c.ID] = c
	}
	api := d.Asked.query(q.zone)
	for _, name := range o.Placements {
		place := admin.Explained{}
		api.Set("placement", name)
		err := q.get("/popups/explain?"+api.Encode(), &place)
		if f, ok := err.(*failure); ok && f.Status == http.StatusBadRequest {
			d.Flaws = f.Errors
			return q.render(f.Status, "user", "One user", d)
		}
		if err != nil {
			return err
		}
		d.User, d.Places = place.User, append(d.Places, place)
	}
	return q.render(http.StatusOK, "user", "One user", d)
}

// testDraft makes a user a tester of a draft, or no longer.
func (q *request) testDraft() error {
	user := q.r.PostFormValue("user")
	path := "/popups/campaigns/" + url.PathEscape(q.r.PostFormValue("campaign"))
	var c campaign
	if err := q.get(path, &c); err != nil {
		return err
	}
	testers, saved := slices.DeleteFunc(slices.Clone(c.Testers), func(one string) bool { return one == user }), "untested"
	if len(testers) == len(c.Testers) {
		testers, saved = append(testers, user), "tested"
	}
	if err := q.call(http.MethodPatch, path, map[string]any{"testers": testers}, nil, "Content-Type", "application/merge-patch+json",
		"If-Match", `"`+q.r.PostFormValue("version")+`"`); err != nil {
		return err
	}
	return q.redirect("/console/users?" + url.Values{"user": {user}, "saved": {saved}}.Encode())
}

// forget deletes all that is known about a user whose id was typed.
func (q *request) forget() error {
	user := q.r.PostFormValue("user")
	if q.caller.Role < admin.RoleAdmin {
		return &failure{Status: http.StatusForbidden, Detail: "To forget a user requires a token with the role admin."}
	}
	if strings.TrimSpace(q.r.PostFormValue("confirm")) != user || user == "" {
		return &failure{Status: http.StatusBadRequest, Detail: "Nothing has changed: go back and type the id of the user to confirm."}
	}
	path := strings.ReplaceAll(url.PathEscape(user), ".", "%2E") // "." and ".." would be taken as directories
	if err := q.call(http.MethodDelete, "/popups/users/"+path, nil, nil); err != nil {
		return err
	}
	return q.redirect("/console/users?saved=forgotten") // without the id, which a history would keep
}
