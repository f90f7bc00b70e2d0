package server

import (
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// TestPathParameters: a parameter comes from the path where the path has it. Literal paths win.
func TestPathParameters(t *testing.T) {
	t.Parallel()
	list := listConfig()
	list.Params = []param.Param{{Name: "n", Type: param.Integer}, param.Filter("city", param.Text)}
	f := feed.Open(list, &rows{n: 30})
	t.Cleanup(f.Close)
	for _, loops := range []int{1, -1} {
		url, s := start(t, &rows{n: 1}, func(c *Config) {
			c.Loops = loops
			c.Feeds = append(c.Feeds, FeedRoute{Paths: []string{"/by/{n}", "/by/{n}/in/{city}", "/by"}, Feed: f})
			c.Queries = []QueryRoute{
				{Paths: []string{"/q/{a}"}, Query: openQuery(t, &answers{rows: 1}, nil), Envelope: feed.EnvelopeOne},
				{Paths: []string{"/q/new"}, Query: openQuery(t, &answers{rows: 2}, nil)},
			}
			c.Down = []DownRoute{{Reads: []string{"/down/{x}"}, Retry: func() (d time.Duration) { return d }}}
		})
		for target, want := range map[string]struct {
			status int
			body   string
		}{
			"/q/7":             {200, `"of":"7"`},
			"/q/a%2Fb%20c+d":   {200, `"of":"a/b c+d"`},
			"/q/%C3%BC":        {200, `"of":"ü"`},
			"/q/7?a=8":         {200, `"of":"7"`},
			"/q/%6eew":         {200, `"of":"new"`},
			"/q/%FF":           {400, "a must be UTF-8 text"},
			"/q/new?a=1":       {200, `"of":"1"`},
			"/q/new":           {400, "parameter a is missing"},
			"/q/":              {404, "nothing at this path"},
			"/by/7":            {200, `"next":`},
			"/by/007":          {200, `"next":`},
			"/by/7/in/Graz":    {200, `"next":`},
			"/by/x":            {400, "n must be a whole number"},
			"/by/7/in/":        {404, "nothing at this path"},
			"/by?n=7&limit=30": {200, `{"id":1}`},
			"/by":              {400, "parameter n is missing"},
			"/down/1":          {503, "not-started"},
		} {
			for range 3 { // also from memory
				if a := request(t, "GET", url+target); a.status != want.status || !strings.Contains(a.body, want.body) {
					t.Errorf("loops %d, %s: %d %s, want %d %s", loops, target, a.status, a.body, want.status, want.body)
				}
			}
		}
		if a := request(t, "POST", url+"/q/7"); a.status != 405 || a.header.Get("Allow") != "GET, HEAD, OPTIONS" {
			t.Errorf("POST: %d %v", a.status, a.header)
		}
		if r := s.current.Load().patterns[0].read; r.meter != s.current.Load().meter(r.name) {
			t.Errorf("%s is not counted", r.name)
		}
	}
}

// TestUnknownParameters: a strict path names the parameter that a client may mean.
func TestUnknownParameters(t *testing.T) {
	t.Parallel()
	for _, loops := range []int{1, -1} {
		url, _ := start(t, &rows{n: 30}, func(c *Config) {
			c.Loops = loops
			c.Feeds[0].Strict = true
			c.Queries = []QueryRoute{{Paths: []string{"/q", "/q/{a}"}, Query: openQuery(t, &answers{rows: 1}, nil), Strict: true}}
			stream := openStream(t, &streamSink{})
			stream.Strict = true
			c.Streams = []StreamRoute{stream}
		})
		for target, want := range map[string]string{
			"/list?limit=1&offset=2&fields=id": "",
			"/list?":                           "",
			"/list?limt=1":                     `this path has no parameter \"limt\"; did you mean limit?`,
			"/list?LIMIT=1":                    `this path has no parameter \"LIMIT\"; did you mean limit?`,
			"/list?limit=1&utm_campaign=x":     `this path has no parameter \"utm_campaign\"; it has limit, offset, before, fields`,
			"/list?=1":                         `this path has no parameter \"\"`,
			"/q?a=1":                           "",
			"/q/1?fields=":                     "",
			"/q/1?a=1":                         `this path has no parameter \"a\"; it has fields`,
			"/q?a=1&b=2":                       `this path has no parameter \"b\"; did you mean a?`,
			"/hello?anything":                  "",
		} {
			status := 200
			if want != "" {
				status = 400
			}
			for range 3 {
				if a := request(t, "GET", url+target); a.status != status || !strings.Contains(a.body, want) {
					t.Errorf("loops %d, %s: %d %s, want %s", loops, target, a.status, a.body, want)
				}
			}
		}
		for target, status := range map[string]int{"/things": 200, "/things?dry_run=1": 400} {
			if a := send(t, url+target, `{"id":4}`); a.status != status {
				t.Errorf("loops %d, %s: %d %s", loops, target, a.status, a.body)
			}
		}
	}
}
