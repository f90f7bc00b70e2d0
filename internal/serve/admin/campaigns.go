package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
)

// Popups configures the campaign API. All fields are required but ClockOffset.
type Popups struct {
	Popup       *popup.Popup
	Campaigns   *popup.Campaigns
	Placements  []string
	User        param.Type // of a user's id
	Attributes  []popup.Attribute
	ClockOffset bool // explain accepts clock_offset, for the demo

	// Counts returns how often campaigns were shown and answered.
	Counts  func(context.Context) (map[popup.CampaignID]popup.Counts, error)
	Reports ReportTables

	// Forget deletes all that is known about a user. Errors that wrap popup.ErrRequest are the
	// caller's.
	Forget func(ctx context.Context, user string) (Forgotten, error)
}

// routes returns the routes of the campaign API.
func (p *Popups) routes() []route {
	const changes = "change campaigns"
	change := func(method, path string, handle handler) route {
		return route{method, path, RoleEdit, ownOrigin(changes, handle)}
	}
	return []route{
		{"GET", "/popups/campaigns", RoleRead, p.list},
		{"GET", "/popups/campaigns/{id}", RoleRead, p.get},
		{"GET", "/popups/explain", RoleRead, p.explain},
		{"GET", "/popups/lists", RoleRead, p.lists},
		change("PUT", "/popups/lists/{list}", p.replaceList),
		change("DELETE", "/popups/lists/{list}", p.deleteList),
		{"GET", "/popups/attributes", RoleRead, p.attributes},
		{"POST", "/popups/campaigns/check", RoleRead, p.check},
		change("POST", "/popups/campaigns", p.create),
		change("PUT", "/popups/campaigns/{id}", p.replace),
		change("PATCH", "/popups/campaigns/{id}", p.patch),
		change("POST", "/popups/campaigns/{id}/pause", p.setStatus(popup.Paused)),
		change("POST", "/popups/campaigns/{id}/resume", p.setStatus(popup.Active)),
		change("POST", "/popups/campaigns/{id}/archive", p.setStatus(popup.Archived)),
		{"GET", "/popups/campaigns/{id}/report", RoleRead, p.report},
		{"GET", "/popups/campaigns/{id}/history", RoleRead, p.history},
		{"DELETE", "/popups/users/{user}", RoleAdmin, ownOrigin(changes, p.forget)},
	}
}

func (p *Popups) list(_ http.ResponseWriter, r *http.Request) (any, error) {
	query := r.URL.Query()
	placement, status := query.Get("placement"), popup.Status(query.Get("status"))
	switch status {
	case popup.Draft, popup.Active, popup.Paused, popup.Archived:
	default:
		if query.Has("status") {
			return nil, flawed(http.StatusBadRequest, Flaw{Field: "status", Message: "status must be draft, active, paused or archived"})
		}
	}
	all, problems, err := p.Campaigns.Read(r.Context())
	if err != nil {
		return nil, err
	}
	counts, err := p.Counts(r.Context())
	if err != nil {
		return nil, err
	}
	shown := []campaignView{}
	for _, c := range all {
		if (placement == "" || c.Placement == placement) && (status == "" || c.Status == status) {
			shown = append(shown, newView(c, problems[c.ID], counts[c.ID]))
		}
	}
	slices.SortFunc(shown, func(a, b campaignView) int {
		return cmp.Or(cmp.Compare(a.Placement, b.Placement), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Order, b.Order),
			cmp.Compare(a.ID, b.ID))
	})
	return map[string][]campaignView{"campaigns": shown}, nil
}

func (p *Popups) get(w http.ResponseWriter, r *http.Request) (any, error) {
	c, problem, err := p.find(r)
	if err != nil {
		return nil, err
	}
	return p.answer(w, r, c, problem)
}

// find returns the campaign that the path names.
func (p *Popups) find(r *http.Request) (c popup.StoredCampaign, problem string, err error) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 32)
	if err != nil {
		return c, "", newProblem(http.StatusNotFound, "a campaign's id is a number")
	}
	all, problems, err := p.Campaigns.Read(r.Context())
	if err != nil {
		return c, "", err
	}
	i := slices.IndexFunc(all, func(c popup.StoredCampaign) bool { return uint64(c.ID) == id })
	if i < 0 {
		return c, "", newProblem(http.StatusNotFound, fmt.Sprintf("there is no campaign %d", id))
	}
	return all[i], problems[all[i].ID], nil
}

// answer answers with a campaign. Its version is the entity tag.
func (p *Popups) answer(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign, problem string) (any, error) {
	counts, err := p.Counts(r.Context())
	if err != nil {
		return nil, err
	}
	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(c.Version, 10)))
	return newView(c, problem, counts[c.ID]), nil
}

func (p *Popups) create(w http.ResponseWriter, r *http.Request) (any, error) {
	fields, err := readFields(w, r, "application/json")
	if err != nil {
		return nil, err
	}
	c := popup.StoredCampaign{}
	c.Status = popup.Paused
	if err := p.fill(&c, fields, "name", "placement", "payload"); err != nil {
		return nil, err
	}
	answer, err := p.save(w, r, c)
	return created{answer}, err
}

// attributes answers what a target may name.
func (p *Popups) attributes(http.ResponseWriter, *http.Request) (any, error) {
	type attribute struct {
		Name string              `json:"name"`
		Type popup.AttributeType `json:"type"`
	}
	all, lists := []attribute{}, []string{}
	for _, a := range p.Attributes {
		all = append(all, attribute{a.Name, a.Type})
	}
	return struct {
		Attributes []attribute `json:"attributes"`
		Lists      []string    `json:"lists"`
		Placements []string    `json:"placements"`
	}{all, append(lists, p.Popup.Lists().Names()...), p.Placements}, nil
}

// check answers what is wrong with the fields of the body, and with user whether that user would get it. It changes nothing.
func (p *Popups) check(w http.ResponseWriter, r *http.Request) (any, error) {
	body, err := readFields(w, r, "application/json")
	if err != nil {
		return nil, err
	}
	view := campaignView{Campaign: newCampaign()}
	view.Status = popup.Draft
	flaws := view.set(body)
	for _, f := range p.flaws(view.Campaign) {
		if body[f.Field] != nil && !has(flaws, f.Field) {
			flaws = append(flaws, f)
		}
	}
	answer := struct {
		Errors      []Flaw             `json:"errors"`
		Explanation *popup.Explanation `json:"explanation,omitempty"`
	}{Errors: append([]Flaw{}, flaws...)}
	if r.URL.Query().Has("user") {
		one, found, err := p.explainActive(r, view.Campaign)
		if err != nil {
			return nil, later(err.Error())
		}
		answer.Errors, answer.Explanation = append(answer.Errors, found...), one
	}
	return answer, nil
}

// replace answers PUT.
func (p *Popups) replace(w http.ResponseWriter, r *http.Request) (any, error) {
	fields, err := readFields(w, r, "application/json")
	if err != nil {
		return nil, err
	}
	c, _, err := p.find(r)
	if err != nil {
		return nil, err
	}
	return p.update(w, r, c, fields, fields["version"])
}

// patch answers PATCH: the body is a merge patch of RFC 7396.
func (p *Popups) patch(w http.ResponseWriter, r *http.Request) (any, error) {
	patch, err := readFields(w, r, "application/merge-patch+json")
	if err != nil {
		return nil, err
	}
	c, _, err := p.find(r)
	if err != nil {
		return nil, err
	}
	version := patch["version"]
	delete(patch, "version")
	return p.update(w, r, c, mergeFields(writableFields(c), patch), version)
}

// update changes all fields of a campaign. version is that of the body; nil if it has none.
func (p *Popups) update(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign, fields fields, version json.RawMessage) (any,
	error,
) {
	var known int64
	if version != nil && json.Unmarshal(version, &known) != nil {
		fields["version"] = version // fill says what is wrong
	}
	current := c
	err := p.fill(&c, fields, "name", "placement", "payload", "target")
	if err == nil {
		err = mayChange(r, &current, known)
	}
	switch {
	case err != nil:
		return nil, err
	case current.Status == popup.Archived:
		return nil, newProblem(http.StatusConflict, archivedText)
	}
	return p.save(w, r, c)
}

const archivedText = "the campaign is archived, for good: create another"

// setStatus returns the handler that pauses, resumes or archives.
func (p *Popups) setStatus(status popup.Status) handler {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		c, problem, err := p.find(r)
		if err == nil && len(r.Header.Values("If-Match")) > 0 {
			err = mayChange(r, &c, 0)
		}
		switch {
		case err != nil:
			return nil, err
		case c.Status == status:
			return p.answer(w, r, c, problem)
		case c.Status == popup.Archived:
			return nil, newProblem(http.StatusConflict, archivedText)
		}
		if c.Status = status; status == popup.Active {
			return p.save(w, r, c)
		}
		return p.store(w, r, c)
	}
}

// mayChange returns nil if a request names the campaign's current version, in If-Match or its body.
func mayChange(r *http.Request, c *popup.StoredCampaign, known int64) error {
	if tags := r.Header.Values("If-Match"); len(tags) > 0 {
		var err error
		if known, err = strconv.ParseInt(strings.Trim(tags[0], `"`), 10, 64); err != nil || known < 1 {
			known = -1
		}
	}
	switch known {
	case c.Version:
		return nil
	case 0:
		return newProblem(http.StatusPreconditionRequired, "send the version that you have read: the ETag in If-Match, or version in the body")
	}
	return newProblem(http.StatusPreconditionFailed, popup.ErrChanged.Error())
}

// save stores a campaign and answers.
func (p *Popups) save(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign) (any, error) {
	if flaws := p.flaws(c.Campaign); len(flaws) > 0 {
		return nil, flawed(http.StatusUnprocessableEntity, flaws...)
	}
	return p.store(w, r, c)
}

// store is save for a campaign whose placement may no longer be configured.
func (p *Popups) store(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign) (any, error) {
	saved, err := p.Campaigns.Save(r.Context(), c, authorOf(r))
	switch {
	case errors.Is(err, popup.ErrChanged):
		return nil, newProblem(http.StatusPreconditionFailed, popup.ErrChanged.Error())
	case errors.Is(err, popup.ErrOutdated):
		return nil, later(popup.ErrOutdated.Error())
	case errors.Is(err, popup.ErrNoCampaign):
		return nil, newProblem(http.StatusNotFound, "there is no such campaign")
	case errors.Is(err, popup.ErrCampaign):
		return nil, flawed(http.StatusUnprocessableEntity, flawsOf(err)...)
	case err != nil:
		return nil, err
	case c.ID == 0:
		w.Header().Set("Location", fmt.Sprintf("/popups/campaigns/%d", saved.ID))
	}
	return p.answer(w, r, saved, "")
}

// Forgotten is what was deleted about a user.
type Forgotten struct {
	User   string `json:"user"`
	States int    `json:"states"` // in memory or in Redis
	Rows   int64  `json:"rows"`   // of the database
}

// forget answers DELETE. The answer comes when all is deleted.
func (p *Popups) forget(w http.ResponseWriter, r *http.Request) (any, error) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
	done, err := p.Forget(r.Context(), r.PathValue("user"))
	switch {
	case errors.Is(err, popup.ErrRequest):
		return nil, flawed(http.StatusBadRequest, Flaw{Field: "user", Message: withoutClass(err)})
	case err != nil:
		return nil, later(err.Error() + "; try again")
	}
	return done, nil
}
