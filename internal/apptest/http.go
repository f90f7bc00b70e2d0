package apptest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Get requests a path with headers.
func Get(ctx context.Context, url string, headers ...string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return Answer{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, body}, err
}

// Dial opens a connection to the server.
func Dial(t *testing.T, address string) *bufio.ReadWriter {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReadWriter(bufio.NewReaderSize(c, 512), bufio.NewWriterSize(c, 512))
}

// Metric returns the value of a series in /metrics; 0 if it is missing.
func Metric(t *testing.T, s *Spillway, series string) float64 {
	t.Helper()
	for line := range strings.Lines(string(Fetch(t, s.Admin+"/metrics").Body)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// ReadyState is the readiness of a group.
type ReadyState struct {
	Ready   bool
	Reasons []struct {
		Name, Reason string
		Serves       bool
		Since        time.Time
	}
}

// Readyz returns the status of a path of the admin listener, and what it says of a part; "" if
// nothing.
func Readyz(t *testing.T, s *Spillway, path, part string) (status int, reason string) {
	t.Helper()
	a := Fetch(t, s.Admin+path)
	var state ReadyState
	if err := json.Unmarshal(a.Body, &state); err != nil || state.Ready != (a.Status == 200) {
		t.Fatalf("%s: %d %s %v", path, a.Status, a.Body, err)
	}
	for _, r := range state.Reasons {
		if age := time.Since(r.Since); age < 0 || age > 10*time.Minute || r.Reason == "" {
			t.Errorf("%s: %+v", path, r)
		}
		if r.Name == part {
			reason = fmt.Sprint(r.Serves, " ", r.Reason)
		}
	}
	return a.Status, reason
}

// NewClient returns an HTTP client of a test.
func NewClient(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// Answer is the answer to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Fetch requests a URL and returns the answer.
func Fetch(t *testing.T, url string) Answer {
	t.Helper()
	a, err := TryFetch(t.Context(), http.DefaultClient, url)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TryFetch is Fetch with a client of the caller and an error that the caller judges.
func TryFetch(ctx context.Context, client *http.Client, url string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return Answer{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, body}, err
}

// Ask sends a request over a connection and returns the body.
func Ask(t *testing.T, c net.Conn, path string) string {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %s: %v", path, resp.StatusCode, body, err)
	}
	return string(body)
}

// IsReady reports whether /readyz of an admin listener answers 200.
func IsReady(t *testing.T, admin string) bool {
	t.Helper()
	return Fetch(t, admin+"/readyz").Status == http.StatusOK
}

// Pause waits for 100 ms.
func Pause(t *testing.T) {
	t.Helper()
	select {
	case <-time.After(100 * time.Millisecond):
	case <-t.Context().Done():
	}
}

// Post sends a body, as JSON unless the headers say otherwise, and returns the answer.
func Post(t *testing.T, url, body string, headers ...string) Answer {
	t.Helper()
	a, err := TryPost(t.Context(), http.DefaultClient, url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TryPost is Post with a client of the caller and an error that the caller judges.
func TryPost(ctx context.Context, client *http.Client, url, body string, headers ...string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, text}, err
}

// WantAnswer compares status and body. For a problem, want is its type and a part of its detail.
func WantAnswer(t *testing.T, a Answer, status int, want string) {
	t.Helper()
	body := string(a.Body)
	if status < 400 {
		if a.Status != status || body != want {
			t.Errorf("%d %s, want %d %s", a.Status, body, status, want)
		}
		return
	}
	kind, part, _ := strings.Cut(want, " ")
	if a.Status != status || a.Header.Get("Content-Type") != "application/problem+json" ||
		!strings.Contains(body, `"urn:spillway:problem:`+kind+`"`) || !strings.Contains(body, part) {
		t.Errorf("%d %s, want %d %s with %q", a.Status, body, status, kind, part)
	}
}

// WantSpooled checks that the answer acknowledges records in the spool. It ignores the part
// about the database.
func WantSpooled(t *testing.T, a Answer, records int) {
	t.Helper()
	if a.Status != 202 || !strings.HasPrefix(string(a.Body), fmt.Sprintf(`{"stored":%d,"ack":"spool`, records)) {
		t.Errorf("%d %s, want %d in the spool", a.Status, a.Body, records)
	}
}
