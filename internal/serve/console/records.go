package console

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/audit"
)

// configuration shows the configuration in force, and what a reload would change.
func (q *request) configuration() error {
	d := struct {
		admin.Configuration
		Fixed    int // settings that keep the file from being applied
		Reloaded string
	}{Reloaded: q.r.URL.Query().Get("reloaded")}
	if err := q.get("/configuration", &d.Configuration); err != nil {
		return err
	}
	for _, c := range d.Changes {
		if c.Fixed {
			d.Fixed++
		}
	}
	return q.render(http.StatusOK, "configuration", "Configuration", d)
}

// reload applies the configuration file.
func (q *request) reload() error {
	var before admin.Configuration
	if err := q.get("/configuration", &before); err != nil {
		return err
	}
	if err := q.call(http.MethodPost, "/reload", nil, nil); err != nil {
		return err
	}
	return q.redirect("/console/configuration?reloaded=" + strconv.Itoa(len(before.Changes)))
}

// changes shows who changed what.
func (q *request) changes() error {
	query := q.r.URL.Query()
	d := struct {
		By, Text, Older string // Older: the address of the next page; "": there is none
		Changes         []audit.Change
		Next            *time.Time
	}{By: query.Get("by"), Text: query.Get("text")}
	api := url.Values{"by": {d.By}, "text": {d.Text}, "until": {query.Get("until")}}
	if err := q.get("/changes?"+api.Encode(), &d); err != nil {
		return err
	}
	if d.Next != nil {
		api.Set("until", d.Next.Format(time.RFC3339Nano))
		d.Older = "?" + api.Encode()
	}
	return q.render(http.StatusOK, "changes", "Changes", d)
}

// Did says what a request did.
func (v *view) Did(c audit.Change) string {
	method, path, _ := strings.Cut(c.Request, " ")
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	switch last := parts[len(parts)-1]; {
	case path == "/reload":
		return "reloaded the configuration"
	case c.Campaign > 0 && method == http.MethodPost && len(parts) == 2:
		return "created a campaign"
	case c.Campaign > 0 && method == http.MethodPost:
		return map[string]string{"pause": "paused", "resume": "started", "archive": "archived"}[last] + " a campaign"
	case c.Campaign > 0:
		return "changed a campaign"
	case strings.HasPrefix(path, "/popups/lists/") && method == http.MethodDelete:
		return "deleted the list " + last
	case strings.HasPrefix(path, "/popups/lists/"):
		return "replaced the list " + last
	case strings.HasPrefix(path, "/popups/users/"):
		return "deleted what was known about a user"
	case parts[0] == "spools" && len(parts) == 3:
		return map[string]string{"retry": "retried", "discard": "discarded", "move": "moved"}[last] + " dead letters"
	case parts[0] == "reads":
		return map[string]string{"pause": "paused", "resume": "resumed", "drop": "dropped"}[last] + " rows of a feed or query"
	}
	return c.Request
}
