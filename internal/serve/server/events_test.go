package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
)

func TestPrefersEvents(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"text/event-stream":                              true,
		"TEXT/Event-Stream":                              true,
		" text/event-stream ; q=0.5":                     true,
		"text/event-stream;charset=utf-8;Q=0.001":        true,
		"text/event-stream, */*;q=0.1":                   true,
		"text/html, text/event-stream":                   true,
		"text/x-y, text/event-stream":                    true,
		"text/event-stream, application/json;q=0.9":      true,
		"*/*, application/json;q=0.1, text/event-stream": true,
		"application/*;q=0, */*, text/event-stream":      true,
		"text/event-stream, application/json":            false,
		"text/event-stream;q=0.5, application/json":      false,
		"text/event-stream;q=0":                          false,
		"text/event-stream;q=2":                          false,
		"text/event-stream;q=x":                          false,
		"text/event-stream;q=NaN":                        false,
		"text/event-stream;q=1e-1":                       false,
		"text/event-stream;q=0.5;q=0":                    true,
		"text/event-stream;q=0.2, */*;q=0.3":             false,
		"text/event-streams":                             false,
		"text/*":                                         false,
		"*/*":                                            false,
		"":                                               false,
	} {
		if got := prefersEvents([][]byte{[]byte(accept)}); got != want || want && !mayNameEvents([]byte(accept)) {
			t.Errorf("%q: %v", accept, got)
		}
	}
	if !prefersEvents([][]byte{[]byte("*/*;q=0.1"), []byte("text/event-stream")}) {
		t.Error("the second line is not read")
	}
}

// askEvents is a request for events. HTTP/1.0, as nginx speaks by default, makes no difference.
const askEvents = "GET /list HTTP/1.0\r\nHost: example.com\r\nAccept: text/event-stream\r\n\r\n"

// awaitEvent asks for events over a connection and returns at the first one.
func awaitEvent(t *testing.T, c net.Conn, id string) {
	t.Helper()
	if !hasEvent(t, c, id) {
		t.Error("the connection ended without an event")
	}
}

// hasEvent is awaitEvent that reports whether an event has come.
func hasEvent(t *testing.T, c net.Conn, id string) bool {
	t.Helper()
	if _, err := io.WriteString(c, askEvents); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(c); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), `data: `) && strings.Contains(lines.Text(), id) {
			return true
		}
	}
	return false
}

// TestEventsOverTLSAndUnixSockets also sends a request in front, whose answer comes first.
func TestEventsOverTLSAndUnixSockets(t *testing.T) {
	t.Parallel()
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	defer certificate.Close()
	url, plain := start(t, &rows{n: 50}, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, c, `{"id":50}`)

	secure, _ := start(t, &rows{n: 50}, func(c *Config) {
		c.TLS = &tls.Config{Certificates: certificate.TLS.Certificates, MinVersion: tls.VersionTLS12}
	})
	pool := certificate.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	encrypted, err := tls.Dial("tcp", strings.TrimPrefix(secure, "http://"), &tls.Config{RootCAs: pool, ServerName: "example.com"})
	if err != nil {
		t.Fatal(err)
	}
	defer encrypted.Close()
	awaitEvent(t, encrypted, `{"id":50}`)

	s := New(plain.cfg)
	path := filepath.Join(t.TempDir(), "s")
	ln, err := Listen(t.Context(), config.UnixPrefix+path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln, func() {}) }()
	local, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	awaitEvent(t, local, `{"id":50}`)
	stop()
	if _, err := io.Copy(io.Discard, local); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestEventsOfOtherPages: events have the first page and all columns.
func TestEventsOfOtherPages(t *testing.T) {
	t.Parallel()
	url, _ := start(t, &rows{n: 50}, func(c *Config) { c.Feeds[0].Columns = feed.Columns{"id"} })
	for _, query := range []string{"limit=5", "offset=1", "before=x", "fields=id", "fields=&fields=id"} {
		if a := request(t, "GET", url+"/list?"+query, "Accept", "text/event-stream"); a.status != 400 || !strings.Contains(a.body, "omit limit, offset, before and fields") {
			t.Errorf("%s: %d %.100s", query, a.status, a.body)
		}
	}
}

// TestStopWhileAClientDoesNotRead stops a server while an event cannot be written. The timeout of the write is beyond the
// time for the stop, after which Run fails.
func TestStopWhileAClientDoesNotRead(t *testing.T) {
	t.Parallel()
	var c net.Conn
	t.Cleanup(func() { // after the stop
		if c != nil {
			_ = c.Close()
		}
	})
	url, s := start(t, &rows{n: 10, pad: `,"pad":"` + strings.Repeat("x", 300_000) + `"`}, nil)
	var err error
	if c, err = net.Dial("tcp", strings.TrimPrefix(url, "http://")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, askEvents); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	s.listenings.mu.Lock()
	defer s.listenings.mu.Unlock()
	if err != nil || resp.StatusCode != http.StatusOK || len(s.listenings.all) != 1 {
		t.Errorf("%v, %v, %d listeners, want one", resp, err, len(s.listenings.all))
	}
}
