package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"spillway/internal/serve/popup"
)

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

// ForgetUser sends DELETE /popups/users/USER to the admin listener at an address, HOST:PORT or
// unix:PATH. Errors that wrap popup.ErrRequest say why no user can have the id.
func ForgetUser(ctx context.Context, address, token, user string) (Forgotten, error) {
	var done Forgotten
	name := strings.ReplaceAll(url.PathEscape(user), ".", "%2E") // "." and ".." would be taken as directories
	status, body, err := send(ctx, http.MethodDelete, address, "/popups/users/"+name, token)
	if err != nil {
		return done, fmt.Errorf("forget user: %w", err)
	}
	if status == http.StatusBadRequest {
		return done, fmt.Errorf("%w: %s", popup.ErrRequest, detailOf(body))
	}
	if status != http.StatusOK {
		return done, fmt.Errorf("forget user: %s answers %d %s: %s", address, status, http.StatusText(status), detailOf(body))
	}
	if err := json.Unmarshal(body, &done); err != nil {
		return done, fmt.Errorf("forget user: read the answer of %s: %w", address, err)
	}
	return done, nil
}
