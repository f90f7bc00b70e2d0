package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/query"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is an admin listener with pages.
type site struct {
	t       *testing.T
	base    string
	console *Console
	client  *http.Client
	parts   atomic.Pointer[[]admin.Part]
	spool   *spool.Spool
	popups  *admin.Popups
	changes *audit.File
	pending atomic.Pointer[admin.Configuration]
	rows    rows
}

// start starts a listener with campaigns and a spool.
func start(t *testing.T, tokens ...admin.Token) *site {
	t.Helper()
	s := &site{t: t}
	s.parts.Store(&[]admin.Part{})
	s.popups = openPopups(t)
	s.changes = audit.NewFile(filepath.Join(t.TempDir(), "changes"))
	s.pending.Store(&admin.Configuration{File: "/etc/<b>spillway.yaml", Effective: "listen: <b>"})
	s.spool = openSpool(t)
	log := slog.New(slog.DiscardHandler)
	traffic := admin.NewTraffic([]time.Duration{time.Millisecond}, func(yield func(string, [17]uint64, uint64)) {
		yield("/<b>orders</b>", [17]uint64{1, 1}, 0)
	})
	cfg := admin.Config{
		Listen: "127.0.0.1:0", Tokens: tokens, Log: log, Registry: prometheus.NewRegistry(), Ready: func() []admin.Part { return *s.parts.Load() },
		Acks: func() []admin.StreamAck { return nil }, Reload: func(context.Context) error { return nil }, Traffic: traffic, Popups: s.popups,
		Changes: audit.Log{s.popups.Reports.(audit.Store), s.changes}, Configuration: func() admin.Configuration { return *s.pending.Load() },
		About: admin.About{Process: admin.Process{Host: "host-<7>", ID: 7}, Links: []admin.Link{{Name: "Grafana", URL: "https://grafana.example/d"}}},
		Figures: func() admin.Figures {
			return admin.Figures{
				Feeds:   []feed.Stats{{Name: "/goodslist", AgeSeconds: 0.5, WindowPages: 3, DatabasePages: 1, Refreshes: 2, RefreshSeconds: 0.5}},
				Queries: []query.Stats{{Name: "/order", Hits: 1, Misses: 2}},
				Popups:  &admin.PopupFigures{Store: "memory"}, Disk: &admin.Disk{FreeBytes: 1 << 30, TotalBytes: 1 << 31},
			}
		},
		Streams: func() []stream.Stats {
			one := stream.Stats{Name: "/positions", RefusedSchema: 3}
			one.Derive("spool")
			return []stream.Stats{one}
		},
		Read: s.read,
		Spools: map[string]*admin.Spool{"streams": {
			Open:   func() *spool.Spool { return s.spool },
			Do:     func(ctx context.Context, on *spool.Spool, o spool.Order) (spool.Done, error) { return on.Do(ctx, o) },
			Decode: func(p []byte) ([]json.RawMessage, error) { return []json.RawMessage{p}, nil },
		}},
		Pages: func(access *admin.Access) http.Handler {
			s.console = New(Config{Access: access, Popups: true, Log: log})
			return s.console
		},
	}
	server := admin.New(cfg)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.base = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { traffic.Run(ctx, cfg.Streams) })
	serving.Go(func() {
		if err := server.Serve(ctx, ln); err != nil {
			t.Error(err)
		}
	})
	s.client = newClient(t)
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		stop()
		serving.Wait()
	})
	return s
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func openPopups(t *testing.T) *admin.Popups {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	at, err := database.Parse("sqlite:" + filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := sqlite.New(at, database.Pool{}, log)
	if err != nil {
		t.Fatal(err)
	}
	tables := db.Popups()
	t.Cleanup(func() {
		if err := errors.Join(tables.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(db.Ping(t.Context()), tables.EnsureTables(t.Context())); err != nil {
		t.Fatal(err)
	}
	attributes := []popup.Attribute{{Name: "age", Type: popup.Integer}, {Name: "city", Type: popup.Text}}
	schema, err := popup.NewSchema(attributes)
	if err != nil {
		t.Fatal(err)
	}
	set, err := popup.NewSet(schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := popup.Open(popup.Config{Store: popup.NewMemory(10, nil), Signer: popup.NewSigner([][]byte{make([]byte, 32)}, time.Hour), Log: log}, set)
	if err != nil {
		t.Fatal(err)
	}
	return &admin.Popups{
		Popup: p, Campaigns: popup.NewCampaigns(tables, tables, p, popup.Defaults{}, log), Counts: tables.Counts, Reports: tables,
		Placements: []string{"home", "checkout"}, User: param.Integer, Attributes: attributes,
		Forget: func(_ context.Context, user string) (admin.Forgotten, error) { return admin.Forgotten{User: user}, nil },
	}
}

// refusing is a destination that refuses every entry. One that begins with ["? is in doubt.
type refusing struct{}

func (refusing) StoreGroups(_ context.Context, groups []queue.Group) (queue.Stored, error) {
	stored := queue.Stored{Groups: len(groups)}
	for _, g := range groups {
		for _, e := range g.Entries {
			stored.Dead = append(stored.Dead, queue.DeadLetter{
				Name: g.Name, Sequence: g.Sequence, At: e.At, Rows: e.Rows, Reason: "no <b>luck</b>", Payload: e.Payload,
				InDoubt: bytes.HasPrefix(e.Payload, []byte(`["?`)),
			})
		}
	}
	return stored, nil
}

func openSpool(t *testing.T) *spool.Spool {
	t.Helper()
	cfg := spool.Config{Bytes: 1 << 30, QueueBytes: 1 << 26, GroupBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)}
	s, err := spool.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// bury makes dead letters of a stream.
func (s *site) bury(stream string, payloads ...string) {
	s.t.Helper()
	var group sync.WaitGroup
	for _, p := range payloads {
		group.Go(func() {
			entry, err := s.spool.Begin(s.t.Context(), stream, queue.Entry{Payload: []byte(p), Rows: 1}, nil)
			if err == nil {
				_, err = entry.Appended(s.t.Context())
			}
			if err != nil {
				s.t.Error(err)
			}
		})
	}
	group.Wait()
	s.drain(stream, int64(len(payloads)))
}

// drain drains a stream until it has that many dead letters.
func (s *site) drain(stream string, want int64) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan struct{})
	go func() {
		_ = s.spool.Drain(ctx, stream, 1<<20, refusing{})
		close(ended)
	}()
	apptest.Await(s.t, "dead letters", func() bool {
		return slices.ContainsFunc(s.spool.Status(), func(n spool.NameStats) bool { return n.Name == stream && n.Dead == want && n.Rows == 0 })
	})
	stop()
	<-ended
}

// answered is an answer of the site.
type answered struct {
	status   int
	header   http.Header
	body     string
	location string
}

// do sends a request with pairs of headers.
func (s *site) do(method, path, body string, headers ...string) answered {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answered{response.StatusCode, response.Header, string(text), response.Header.Get("Location")}
}

func (s *site) get(path string) answered {
	s.t.Helper()
	return s.do("GET", path, "", "Accept", "text/html")
}

// post sends a form as a page of the site does.
func (s *site) post(path string, form url.Values, headers ...string) answered {
	s.t.Helper()
	headers = append([]string{"Content-Type", "application/x-www-form-urlencoded", "Origin", s.base}, headers...)
	return s.do("POST", path, form.Encode(), headers...)
}

// upload sends a list.
func (s *site) upload(name, text string) answered {
	s.t.Helper()
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	err := w.WriteField("name", name)
	file, err2 := w.CreateFormFile("file", "list.csv")
	_, err3 := io.WriteString(file, text)
	if err := errors.Join(err, err2, err3, w.Close()); err != nil {
		s.t.Fatal(err)
	}
	return s.do("POST", "/console/lists", out.String(), "Content-Type", w.FormDataContentType(), "Origin", s.base)
}

// want checks an answer: its status, and texts that the page has.
func (s *site) want(a answered, status int, texts ...string) {
	s.t.Helper()
	if a.status != status {
		s.t.Errorf("status %d, want %d: %s", a.status, status, short(a.body, 2000))
		return
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) && !strings.Contains(a.body, html.EscapeString(text)) {
			s.t.Errorf("the page lacks %q:\n%s", text, short(a.body, 20_000))
		}
	}
}

// follow returns the page to which an answer leads.
func (s *site) follow(a answered) answered {
	s.t.Helper()
	if a.status != http.StatusSeeOther {
		s.t.Fatalf("status %d, not a redirection: %s", a.status, short(a.body, 3000))
	}
	return s.get(a.location)
}

// logIn begins a session in a new browser.
func (s *site) logIn(token string) {
	s.t.Helper()
	s.client = newClient(s.t)
	if a := s.post("/console/login", url.Values{"token": {token}}); a.status != http.StatusSeeOther {
		s.t.Fatalf("log-in: %d %s", a.status, a.body)
	}
}

func numbered(n int, format string) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return all
}
