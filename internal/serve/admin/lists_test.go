package admin

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"spillway/internal/serve/param"
)

// slowClient is a client that sends 1,000 ids just before each read deadline.
type slowClient struct {
	http.ResponseWriter
	deadline time.Time
}

func (c *slowClient) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (c *slowClient) Read(b []byte) (int, error) {
	<-time.After(min(time.Until(c.deadline), listReadWithin-time.Second))
	if !time.Now().Before(c.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return copy(b, strings.Repeat("7\n", 1000)), nil
}

// Other uploads do not wait for a slow one for longer than listUploadMax.
func TestSlowUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &slowClient{ResponseWriter: httptest.NewRecorder()}
		upload := listUpload{user: param.Integer, control: http.NewResponseController(client), lines: bufio.NewScanner(client)}
		began, users := time.Now(), 0
		var failure error
		for _, failure = range upload.users() {
			users++
		}
		if took := time.Since(began); failure == nil || took != listUploadMax || users < 50_000 {
			t.Errorf("%d users in %s, %v", users, took, failure)
		}
	})
}
