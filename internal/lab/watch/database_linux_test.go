package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// openDatabase returns a sampler that is closed when the test ends.
func openDatabase(t testing.TB, url string) *Sampler {
	t.Helper()
	s, err := Database("db", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// databaseValues reads once.
func databaseValues(t testing.TB, s *Sampler) map[string]float64 {
	t.Helper()
	samples, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return samples[0].Values
}

// awaitDatabase reads until the figures are as wanted and returns them. On failure it shows the last figures.
func awaitDatabase(t testing.TB, s *Sampler, what string, wanted func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	var values map[string]float64
	apptest.AwaitState(t, what, func() (string, bool) {
		values = databaseValues(t, s)
		return fmt.Sprint(values), wanted(values)
	})
	return values
}

// awaitValues reads until every one of the figures is as wanted.
func awaitValues(t testing.TB, s *Sampler, want map[string]float64) {
	t.Helper()
	awaitDatabase(t, s, fmt.Sprintf("the figures are %v", want), func(values map[string]float64) bool {
		for name, value := range want {
			if values[name] != value {
				return false
			}
		}
		return true
	})
}

// databaseNames compares the names of the values with the documented ones.
func databaseNames(t *testing.T, values map[string]float64, want string) {
	t.Helper()
	missing := map[string]bool{}
	for _, name := range strings.Fields(want) {
		missing[name] = true
	}
	extra := maps.Clone(values)
	maps.DeleteFunc(extra, func(name string, _ float64) bool { return missing[name] })
	maps.DeleteFunc(missing, func(name string, _ bool) bool { _, ok := values[name]; return ok })
	if len(missing)+len(extra) > 0 {
		t.Errorf("missing %v, more than promised %v", missing, extra)
	}
}

// databaseOutage stops and restarts the server. The sampler reports one error, then figures again.
func databaseOutage(t *testing.T, s *Sampler, server *apptest.Server) {
	t.Helper()
	databaseValues(t, s)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	errors := map[string]bool{}
	reads, started := 0, false
	apptest.AwaitState(t, "the server that runs again is read", func() (string, bool) {
		_, err := s.Read(t.Context())
		switch reads++; {
		case err == nil && !started:
			t.Fatal("a server that is stopped was read")
		case err == nil:
			return "", true
		case strings.Contains(err.Error(), "s3cret"):
			t.Fatalf("the password is in %q", err)
		}
		errors[err.Error()] = true
		if reads == 100 {
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			started = true
		}
		return err.Error(), false
	})
	if len(errors) != 1 {
		t.Errorf("want one error for the whole outage, got %q", slices.Collect(maps.Keys(errors)))
	}
}

func TestDatabaseURL(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://u:s3cret@h:1/d":         "postgres PostgreSQL at postgres://u:***@h:1/d",
		"postgresql://h/d?password=s3cret":  "postgres PostgreSQL at postgresql://h/d?password=***",
		"mysql://u:s3cret@h/d":              "mysql MySQL or MariaDB at mysql://u:***@h/d",
		"mariadb://u:s3cret@h/d":            "mysql MySQL or MariaDB at mysql://u:***@h/d",
		"redis://u:s3cret@h:1/2":            "redis Redis at redis://h:1/2",
		"rediss://:s3cret@h":                "redis Redis at rediss://h",
		"unix://:s3cret@/run/redis.sock":    "redis Redis at unix:///run/redis.sock",
		"sqlite:file.db":                    "watch the process that opens it",
		"oracle://u:s3cret@h":               "unknown kind of database",
		"mysql://u:s3cret@h/d?nonsense":     "",
		"mysql://u:s3cret@h/d?timeout=x":    "",
		"redis://u:s3cret@h:x":              "parse Redis URL",
		"redis://s3cret@h":                  "parse Redis URL",
		"redis://:s3cret@/1":                "parse Redis URL",
		"redis://:s3cret@h/name":            "parse Redis URL",
		"redis:s3cret":                      "parse Redis URL",
		"postgres://u:s3cret@h@i/d":         "parse database URL",
		"postgres://u:s3cret@h/d?sslmode=x": "sslmode",
		"postgres://u:s3c%ret@h/d":          "parse database URL",
	} {
		s, err := Database("db", url)
		text := ""
		if err != nil {
			text = err.Error()
		} else {
			text = s.Kind + " " + s.Detail
		}
		if strings.Contains(text, "s3cret") || !strings.Contains(text, want) {
			t.Errorf("Database(%q) says %q, want %q", url, text, want)
		}
	}
}

func TestNetCounter(t *testing.T) {
	var c netCounter
	c.own = 3
	for i, step := range []struct {
		figure float64
		own    float64
		want   float64
	}{
		{figure: 103, want: 100},
		{figure: 103, own: 1, want: 100}, // counted late
		{figure: 106, own: 0, want: 102},
		{figure: 2, own: 0, want: 0}, // counts from zero again
		{figure: 14, own: 0, want: 10},
	} {
		if step.figure == 2 {
			c.reopened()
			c.own += 4
		}
		c.own += step.own
		if got := c.next(step.figure); got != step.want {
			t.Errorf("step %d: %g, want %g", i, got, step.want)
		}
	}
}

// countingReader counts how often it is opened and closed.
type countingReader struct {
	opens, closes int
	err           error
	notice        string
}

func (r *countingReader) open(context.Context) error                    { r.opens++; return r.err }
func (*countingReader) statements(context.Context) ([]statement, error) { return nil, nil }

func (r *countingReader) close() { r.closes++ }
func (r *countingReader) read(context.Context) (map[string]float64, string, error) {
	return map[string]float64{"x": 1}, r.notice, r.err
}

func TestDatabaseSessionBacksOff(t *testing.T) {
	r := &countingReader{err: errors.New("refused by port 1")}
	s := databaseSampler(result.SamplerRedis, "db", "", r)
	for i := range 100 {
		r.err = fmt.Errorf("refused by port %d", i)
		if _, err := s.Read(t.Context()); err == nil || err.Error() != "connect: refused by port 0" {
			t.Fatalf("reading %d: %v, want the first error of the outage", i, err)
		}
	}
	if r.opens != 1 || r.closes != 1 {
		t.Errorf("%d attempts to connect and %d closed at once, want 1", r.opens, r.closes)
	}
}

// BenchmarkDatabase reports the CPU time of a reading in this process and in the server.
func BenchmarkDatabase(b *testing.B) {
	for _, bench := range []struct {
		name  string
		start func(testing.TB) (url string, pid int, sessions func())
	}{
		{"postgres", benchPostgres},
		{"mariadb", benchMariaDB},
		{"redis", benchRedis},
	} {
		b.Run(bench.name, func(b *testing.B) {
			url, pid, sessions := bench.start(b)
			sessions()
			s := openDatabase(b, url)
			databaseValues(b, s)
			runtime.LockOSThread() // as the watcher does, to count what reading costs
			defer runtime.UnlockOSThread()
			server, own := treeTicks(b, pid), threadCPU()
			for b.Loop() {
				databaseValues(b, s)
			}
			b.ReportMetric(float64((threadCPU()-own).Microseconds())/float64(b.N), "thread-µs/op")
			b.ReportMetric(float64(treeTicks(b, pid)-server)*1e4/float64(b.N), "server-µs/op")
		})
	}
}
