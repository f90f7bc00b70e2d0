package admin

import (
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
	change := func(method, path string, handle http.HandlerFunc) route {
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

func (p *Popups) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	placement, status := query.Get("placement"), popup.Status(query.Get("status"))
	switch status {
	case popup.Draft, popup.Active, popup.Paused, popup.Archived:
	default:
		if !query.Has("status") {
			break
		}
		writeFlaws(w, http.StatusBadRequest, flaw{Field: "status", Message: "status must be draft, active, paused or archived"})
		return
	}
	all, problems, err := p.Campaigns.Read(r.Context())
	if err != nil {
		writeDown(w, err)
		return
	}
	counts, err := p.Counts(r.Context())
	if err != nil {
		writeDown(w, err)
		return
	}
	shown := []campaignView{}
	for _, c := range all {
		if (placement == "" || c.Placement == placement) && (status == "" || c.Status == status) {
			shown = append(shown, newView(c, problems[c.ID], counts[c.ID]))
		}
	}
	slices.SortFunc(shown, compareViews)
	writeJSON(w, "application/json", http.StatusOK, struct {
		Campaigns []campaignView `json:"campaigns"`
	}{shown})
}

func (p *Popups) get(w http.ResponseWriter, r *http.Request) {
	if c, problem, ok := p.find(w, r); ok {
		p.answer(w, r, http.StatusOK, c, problem)
	}
}

// find returns the campaign that the path names. If there is none, it has answered the
// request.
func (p *Popups) find(w http.ResponseWriter, r *http.Request) (c popup.StoredCampaign, problem string, ok bool) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 32)
	if err != nil {
		writeProblem(w, http.StatusNotFound, "a campaign's id is a number")
		return c, "", false
	}
	all, problems, err := p.Campaigns.Read(r.Context())
	if err != nil {
		writeDown(w, err)
		return c, "", false
	}
	i := slices.IndexFunc(all, func(c popup.StoredCampaign) bool { return uint64(c.ID) == id })
	if i < 0 {
		writeProblem(w, http.StatusNotFound, fmt.Sprintf("there is no campaign %d", id))
		return c, "", false
	}
	return all[i], problems[all[i].ID], true
}

// answer answers with a campaign. Its version is the entity tag.
func (p *Popups) answer(w http.ResponseWriter, r *http.Request, status int, c popup.StoredCampaign, problem string) {
	counts, err := p.Counts(r.Context())
	if err != nil {
		writeDown(w, err)
		return
	}
	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(c.Version, 10)))
	writeJSON(w, "application/json", status, newView(c, problem, counts[c.ID]))
}

func (p *Popups) create(w http.ResponseWriter, r *http.Request) {
	fields, ok := readFields(w, r, "application/json")
	if !ok {
		return
	}
	c := popup.StoredCampaign{}
	c.Status = popup.Paused
	if p.fill(w, &c, fields, "name", "placement", "payload") {
		p.save(w, r, c, http.StatusCreated)
	}
}

// attributes answers what a target may name.
func (p *Popups) attributes(w http.ResponseWriter, _ *http.Request) {
	type attribute struct {
		Name string              `json:"name"`
		Type popup.AttributeType `json:"type"`
	}
	all, lists := []attribute{}, []string{}
	for _, a := range p.Attributes {
		all = append(all, attribute{a.Name, a.Type})
	}
	writeJSON(w, "application/json", http.StatusOK, struct {
		Attributes []attribute `json:"attributes"`
		Lists      []string    `json:"lists"`
		Placements []string    `json:"placements"`
	}{all, append(lists, p.Popup.Lists().Names()...), p.Placements})
}

// check answers what is wrong with the fields of the body, and with user whether that user would get it. It changes nothing.
func (p *Popups) check(w http.ResponseWriter, r *http.Request) {
	body, ok := readFields(w, r, "application/json")
	if !ok {
		return
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
		Errors      []flaw             `json:"errors"`
		Explanation *popup.Explanation `json:"explanation,omitempty"`
	}{Errors: append([]flaw{}, flaws...)}
	if r.URL.Query().Has("user") {
		one, found, err := p.explainActive(r, view.Campaign)
		if err != nil {
			writeLater(w, err.Error())
			return
		}
		answer.Errors, answer.Explanation = append(answer.Errors, found...), one
	}
	writeJSON(w, "application/json", http.StatusOK, answer)
}

// replace answers PUT.
func (p *Popups) replace(w http.ResponseWriter, r *http.Request) {
	if fields, ok := readFields(w, r, "application/json"); ok {
		if c, _, ok := p.find(w, r); ok {
			p.update(w, r, c, fields, fields["version"])
		}
	}
}

// patch answers PATCH: the body is a merge patch of RFC 7396.
func (p *Popups) patch(w http.ResponseWriter, r *http.Request) {
	patch, ok := readFields(w, r, "application/merge-patch+json")
	if !ok {
		return
	}
	if c, _, ok := p.find(w, r); ok {
		version := patch["version"]
		delete(patch, "version")
		p.update(w, r, c, mergeFields(writableFields(c), patch), version)
	}
}

// update changes all fields of a campaign. version is that of the body; nil if it has none.
func (p *Popups) update(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign, fields fields, version json.RawMessage) {
	var known int64
	if version != nil && json.Unmarshal(version, &known) != nil {
		fields["version"] = version // fill says what is wrong
	}
	current := c
	if !p.fill(w, &c, fields, "name", "placement", "payload", "target") || !mayChange(w, r, &current, known) {
		return
	}
	if current.Status == popup.Archived {
		writeProblem(w, http.StatusConflict, "the campaign is archived, for good: create another")
		return
	}
	p.save(w, r, c, http.StatusOK)
}

// setStatus returns the handler that pauses, resumes or archives.
func (p *Popups) setStatus(status popup.Status) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, problem, ok := p.find(w, r)
		switch {
		case !ok || len(r.Header.Values("If-Match")) > 0 && !mayChange(w, r, &c, 0):
		case c.Status == status:
			p.answer(w, r, http.StatusOK, c, problem)
		case c.Status == popup.Archived:
			writeProblem(w, http.StatusConflict, "the campaign is archived, for good: create another")
		case status == popup.Active:
			c.Status = status
			p.save(w, r, c, http.StatusOK)
		default:
			c.Status = status
			p.store(w, r, c, http.StatusOK)
		}
	}
}

// mayChange reports whether a request names the campaign's current version, in If-Match or
// its body. If not, it has answered the request.
func mayChange(w http.ResponseWriter, r *http.Request, c *popup.StoredCampaign, known int64) bool {
	if tags := r.Header.Values("If-Match"); len(tags) > 0 {
		var err error
		if known, err = strconv.ParseInt(strings.Trim(tags[0], `"`), 10, 64); err != nil || known < 1 {
			known = -1
		}
	}
	switch known {
	case c.Version:
		return true
	case 0:
		writeProblem(w, http.StatusPreconditionRequired, "send the version that you have read: the ETag in If-Match, or version in the body")
	default:
		writeProblem(w, http.StatusPreconditionFailed, popup.ErrChanged.Error())
	}
	return false
}

// save stores a campaign and answers.
func (p *Popups) save(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign, status int) {
	if flaws := p.flaws(c.Campaign); len(flaws) > 0 {
		writeFlaws(w, http.StatusUnprocessableEntity, flaws...)
		return
	}
	p.store(w, r, c, status)
}

// store is save for a campaign whose placement may no longer be configured.
func (p *Popups) store(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign, status int) {
	saved, err := p.Campaigns.Save(r.Context(), c, authorOf(r))
	switch {
	case errors.Is(err, popup.ErrChanged):
		writeProblem(w, http.StatusPreconditionFailed, popup.ErrChanged.Error())
	case errors.Is(err, popup.ErrOutdated):
		writeLater(w, popup.ErrOutdated.Error())
	case errors.Is(err, popup.ErrNoCampaign):
		writeProblem(w, http.StatusNotFound, "there is no such campaign")
	case errors.Is(err, popup.ErrCampaign):
		writeFlaws(w, http.StatusUnprocessableEntity, flawsOf(err)...)
	case err != nil:
		writeDown(w, err)
	default:
		if status == http.StatusCreated {
			w.Header().Set("Location", fmt.Sprintf("/popups/campaigns/%d", saved.ID))
		}
		p.answer(w, r, status, saved, "")
	}
}

// writeDown answers that the database is not available.
func writeDown(w http.ResponseWriter, err error) {
	writeLater(w, "the database does not answer: "+err.Error())
}

// Forgotten is what was deleted about a user.
type Forgotten struct {
	User   string `json:"user"`
	States int    `json:"states"` // in memory or in Redis
	Rows   int64  `json:"rows"`   // of the database
}

// forget answers DELETE. The answer comes when all is deleted.
func (p *Popups) forget(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
	done, err := p.Forget(r.Context(), r.PathValue("user"))
	switch {
	case errors.Is(err, popup.ErrRequest):
		writeFlaws(w, http.StatusBadRequest, flaw{Field: "user", Message: withoutClass(err)})
	case err != nil:
		writeLater(w, err.Error()+"; try again")
	default:
		writeJSON(w, "application/json", http.StatusOK, done)
	}
}
