package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
)

// Popups configures the campaign API. All fields are required but ClockOffset.
type Popups struct {
	Popup       *popup.Popup
	Campaigns   *popup.Campaigns
	Placements  []string
	User        param.Type // of a user's id
	ClockOffset bool       // explain accepts clock_offset, for the demo

	// Counts returns how often campaigns were shown and answered.
	Counts func(context.Context) (map[popup.CampaignID]popup.Counts, error)
}

// campaignBytesMax bounds a request's body: the payload, the expression, and some room.
const campaignBytesMax = popup.PayloadBytesMax + popup.TargetBytesMax + 16<<10

// campaignRoutes adds the campaign API to the routes that need the token.
func (s *Server) campaignRoutes(mux *http.ServeMux) {
	p := s.cfg.Popups
	// Without a token, a page in the operator's browser can send requests here.
	own := http.NewCrossOriginProtection()
	own.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, http.StatusForbidden, "pages of other origins may not change campaigns")
	}))
	change := func(route string, handle http.HandlerFunc) { mux.Handle(route, own.Handler(handle)) }
	mux.HandleFunc("GET /popups/campaigns", p.list)
	mux.HandleFunc("GET /popups/campaigns/{id}", p.get)
	mux.HandleFunc("GET /popups/explain", p.explain)
	mux.HandleFunc("GET /openapi.json", showOpenAPI)
	change("POST /popups/campaigns", p.create)
	change("PUT /popups/campaigns/{id}", p.update)
	for action, status := range map[string]popup.Status{"pause": popup.Paused, "resume": popup.Active, "archive": popup.Archived} {
		change("POST /popups/campaigns/{id}/"+action, p.setStatus(status))
	}
	for path, methods := range map[string]string{
		"/popups/campaigns": "GET, HEAD, POST", "/popups/campaigns/{id}": "GET, HEAD, PUT", "/popups/campaigns/{id}/{action}": "POST",
		"/popups/explain": "GET, HEAD", "/openapi.json": "GET, HEAD",
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", methods)
			writeProblem(w, http.StatusMethodNotAllowed, "this path answers "+methods)
		})
	}
}

func (p *Popups) list(w http.ResponseWriter, r *http.Request) {
	placement, status := r.URL.Query().Get("placement"), popup.Status(r.URL.Query().Get("status"))
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
		p.answer(w, r, http.StatusOK, c, problem, false)
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

// answer answers with a campaign. Its version is the entity tag. capped means that the
// campaign had no cap before.
func (p *Popups) answer(w http.ResponseWriter, r *http.Request, status int, c popup.StoredCampaign, problem string, capped bool) {
	counts, err := p.Counts(r.Context())
	if err != nil {
		writeDown(w, err)
		return
	}
	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(c.Version, 10)))
	view := newView(c, problem, counts[c.ID])
	if capped && view.Shows > 0 {
		view.Note = fmt.Sprintf("the cap counts shows from now on: the %d shows before it do not count", view.Shows)
	}
	writeJSON(w, "application/json", status, view)
}

func (p *Popups) create(w http.ResponseWriter, r *http.Request) {
	body, ok := readCampaign(w, r)
	if !ok {
		return
	}
	c := popup.StoredCampaign{}
	c.Status = popup.Paused
	body.fill(&c)
	p.save(w, r, c, http.StatusCreated, false)
}

func (p *Popups) update(w http.ResponseWriter, r *http.Request) {
	body, ok := readCampaign(w, r)
	if !ok {
		return
	}
	c, _, ok := p.find(w, r)
	if !ok || !mayChange(w, r, &c, body.Version) {
		return
	}
	if c.Status == popup.Archived {
		writeProblem(w, http.StatusConflict, "the campaign is archived, for good: create another")
		return
	}
	uncapped := c.Cap == 0
	body.fill(&c)
	p.save(w, r, c, http.StatusOK, uncapped && c.Cap > 0)
}

// setStatus returns the handler that pauses, resumes or archives.
func (p *Popups) setStatus(status popup.Status) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, problem, ok := p.find(w, r)
		switch {
		case !ok || r.Header.Get("If-Match") != "" && !mayChange(w, r, &c, 0):
		case c.Status == status:
			p.answer(w, r, http.StatusOK, c, problem, false)
		case c.Status == popup.Archived:
			writeProblem(w, http.StatusConflict, "the campaign is archived, for good: create another")
		case status == popup.Active:
			c.Status = status
			p.save(w, r, c, http.StatusOK, false)
		default:
			c.Status = status
			p.store(w, r, c, http.StatusOK, false)
		}
	}
}

// mayChange reports whether a request names the campaign's current version, in If-Match or
// its body. If not, it has answered the request.
func mayChange(w http.ResponseWriter, r *http.Request, c *popup.StoredCampaign, known int64) bool {
	if tag := r.Header.Get("If-Match"); tag != "" {
		var err error
		if known, err = strconv.ParseInt(strings.Trim(tag, `"`), 10, 64); err != nil {
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

// save stores a campaign and answers. capped is as for answer.
func (p *Popups) save(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign, status int, capped bool) {
	if !slices.Contains(p.Placements, c.Placement) {
		err := fmt.Errorf("%w: placement must be %s: popups.placements of the configuration", popup.ErrCampaign, strings.Join(p.Placements, " or "))
		writeRefused(w, err)
		return
	}
	p.store(w, r, c, status, capped)
}

// store is save for a campaign whose placement may no longer be configured.
func (p *Popups) store(w http.ResponseWriter, r *http.Request, c popup.StoredCampaign, status int, capped bool) {
	saved, err := p.Campaigns.Save(r.Context(), c)
	switch {
	case errors.Is(err, popup.ErrChanged):
		writeProblem(w, http.StatusPreconditionFailed, popup.ErrChanged.Error())
	case errors.Is(err, popup.ErrOutdated):
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusServiceUnavailable, popup.ErrOutdated.Error())
	case errors.Is(err, popup.ErrNoCampaign):
		writeProblem(w, http.StatusNotFound, "there is no such campaign")
	case errors.Is(err, popup.ErrCampaign):
		writeRefused(w, err)
	case err != nil:
		writeDown(w, err)
	default:
		if status == http.StatusCreated {
			w.Header().Set("Location", fmt.Sprintf("/popups/campaigns/%d", saved.ID))
		}
		p.answer(w, r, status, saved, "", capped)
	}
}

// readCampaign parses the body. If that fails, it has answered the request.
func readCampaign(w http.ResponseWriter, r *http.Request) (campaignView, bool) {
	var body campaignView
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		writeProblem(w, http.StatusUnsupportedMediaType, "send application/json")
		return body, false
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, campaignBytesMax))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		writeProblem(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", campaignBytesMax))
	case err != nil:
		writeProblem(w, http.StatusBadRequest, "the body is not a campaign: "+strings.TrimPrefix(err.Error(), "json: "))
	case decoder.More():
		writeProblem(w, http.StatusBadRequest, "the body is more than one campaign")
	default:
		return body, true
	}
	return body, false
}

// flaw is one error in a campaign.
type flaw struct {
	Field   string `json:"field"`
	Line    int    `json:"line,omitempty"` // in an expression
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
}

// writeRefused answers with all errors of a campaign.
func writeRefused(w http.ResponseWriter, err error) {
	detail := strings.TrimPrefix(err.Error(), popup.ErrCampaign.Error()+": ")
	var flaws []flaw
	var target *popup.TargetError
	if errors.As(err, &target) {
		flaws = append(flaws, flaw{"target", target.Line, target.Column, target.Message})
	} else {
		for line := range strings.SplitSeq(detail, "\n") {
			field, _, _ := strings.Cut(line, " ")
			flaws = append(flaws, flaw{Field: field, Message: line})
		}
	}
	writeJSON(w, "application/problem+json", http.StatusUnprocessableEntity, struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
		Errors []flaw `json:"errors"`
	}{"about:blank", "The campaign is refused", http.StatusUnprocessableEntity, strings.ReplaceAll(detail, "\n", "; "), flaws})
}

// writeDown answers that the database is not available.
func writeDown(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", "1")
	writeProblem(w, http.StatusServiceUnavailable, "the database does not answer: "+err.Error())
}
