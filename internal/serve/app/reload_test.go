package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/serve/config"
)

// A change that a reload cannot apply is named by its key.
func TestFixedChanges(t *testing.T) {
	t.Parallel()
	base := func() config.Config {
		c := BuiltIn()
		c.Queries = []config.Query{config.Defaults[config.Query]()}
		return c
	}
	for _, test := range []struct {
		change func(*config.Config)
		want   []string
	}{
		{func(*config.Config) {}, nil},
		{func(c *config.Config) { c.Feeds, c.Queries = nil, nil }, nil},
		{func(c *config.Config) { c.Keys = []config.Secret{"0123456789abcdef"} }, nil},
		{func(c *config.Config) { c.Auth.Reads, c.Auth.Keys = "key", []config.Secret{"0123456789abcdef"} }, nil},
		{func(c *config.Config) { c.Auth.JWT.Issuer, c.HTTP.RatePerMinute = "a", 7 }, []string{"auth.jwt.issuer", "http.rate_per_minute"}},
		{func(c *config.Config) { c.HTTP.CORSOrigins, c.HTTP.TrustedProxies = []string{"*"}, []string{"::1"} }, nil},
		{func(c *config.Config) { c.Log.Level, c.Log.Access = "debug", true }, nil},
		{func(c *config.Config) { c.Listen, c.Log.Format = ":80", "json" }, []string{"listen", "log.format"}},
		{func(c *config.Config) { c.Database, c.Admin.Token = "sqlite:x", "secret" }, []string{"admin.token", "database"}},
		{func(c *config.Config) { c.HTTP.Loops = 3 }, []string{"http.loops"}},
		{func(c *config.Config) { c.HTTP.Loops = -1 }, []string{"http.loops"}},
		{func(c *config.Config) { c.HTTP.BodyBytes++ }, []string{"http.body_bytes"}},
		{func(c *config.Config) { c.Streams[1].Columns[0].Required = !c.Streams[1].Columns[0].Required }, []string{"streams[1].columns[0]"}},
		{func(c *config.Config) { c.Streams[1].WaitMax++ }, []string{"streams[1].wait_max"}},
		{func(c *config.Config) { c.Streams = c.Streams[:1] }, []string{"streams"}},
		{func(c *config.Config) { c.Popups.Path = "/other" }, []string{"popups.path"}},
	} {
		now, next := base(), base()
		test.change(&next)
		if got := fixedChanges(now, next); !slices.Equal(got, test.want) {
			t.Errorf("%v, want %v", got, test.want)
		}
	}
}

// A reload renews the certificate while it is watched. A failure is logged once.
func TestCertificateIsRenewedConcurrently(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.pem")
	var log strings.Builder // the certificate writes one line at a time
	c := &certificate{certFile: missing, keyFile: missing, log: slog.New(slog.NewTextHandler(&log, nil))}
	now := time.Now()
	var renewals sync.WaitGroup
	for range 8 {
		renewals.Go(func() {
			for range 200 {
				c.renew(now)
			}
		})
	}
	renewals.Wait()
	if n := strings.Count(log.String(), "cannot be read"); n != 1 {
		t.Errorf("1,600 failures are logged %d times, want once:\n%s", n, &log)
	}
}

// A file that has not changed can be loaded again, although event loops and popups have added threads.
func TestLoadAgain(t *testing.T) {
	o := Options{File: filepath.Join(t.TempDir(), "spillway.yaml"), defaults: config.Default()}
	if err := os.WriteFile(o.File, []byte("popups: {path: /popup}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, _, err := o.load()
	if err != nil {
		t.Fatal(err)
	}
	_, undo := addThreads(&before)
	defer undo()
	after, _, err := o.load()
	if names := fixedChanges(before, after); err != nil || len(names) > 0 {
		t.Errorf("%v cannot change, %v", names, err)
	}
}
