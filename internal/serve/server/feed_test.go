package server

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// followLink returns the URL that a response names as the next page, "" if it names none.
func followLink(t *testing.T, base string, a answer) string {
	t.Helper()
	link := a.header.Get("Link")
	if link == "" {
		return ""
	}
	reference, ok := strings.CutSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
	from, err := url.Parse(base)
	if err != nil || !ok {
		t.Fatalf("Link: %s, %v", link, err)
	}
	next, err := from.Parse(reference)
	if err != nil {
		t.Fatalf("Link: %s, %v", link, err)
	}
	return next.String()
}

// TestLink walks a list of bare arrays by its links.
func TestLink(t *testing.T) {
	t.Parallel()
	base, _ := startShaped(t, &rows{n: 450}, feed.EnvelopeNone, func(c *Config) { c.CORSOrigins = []string{"*"} })
	for _, path := range []string{"/list", "/list?limit=7", "/alias/list?limit=100&x=%3E%22%20&x=&offset=2&%62efore=&fields=id", "/list?limit=100&fields=id"} {
		first := request(t, "GET", base+path)
		want := 450
		if strings.Contains(path, "offset=2") {
			want -= 2
		}
		for at, a := base+path, first; ; {
			if a.status != 200 || a.header.Get("Content-Type") != "application/json" {
				t.Fatalf("%s: %d %s", at, a.status, a.body)
			}
			for _, row := range strings.Split(strings.Trim(a.body, "[]"), ",") {
				if row != fmt.Sprintf(`{"id":%d}`, want) {
					t.Fatalf("%s: %s instead of row %d", at, row, want)
				}
				want--
			}
			next := followLink(t, at, a)
			if next == "" {
				break
			}
			u, err := url.Parse(next)
			if err != nil || u.Query().Has("offset") || len(u.Query()["before"]) != 1 || !strings.HasPrefix(next, base+strings.Split(path, "?")[0]+"?") {
				t.Fatalf("next of %s: %s, %v", at, next, err)
			}
			if u.Query().Has("x") {
				t.Fatalf("next of %s: %s", at, next)
			}
			at, a = next, request(t, "GET", next)
		}
		if want != 0 {
			t.Errorf("%s: the walk ended before row %d", path, want)
		}
		if a := request(t, "HEAD", base+path); a.header.Get("Link") != first.header.Get("Link") || a.body != "" {
			t.Errorf("HEAD %s: %v", path, a.header)
		}
		if exposed := first.header.Get("Access-Control-Expose-Headers"); !strings.Contains(exposed, " Link,") {
			t.Errorf("CORS exposes %s", exposed)
		}
	}
	if a := request(t, "GET", base+"/list?offset=450"); a.body != "[]" || a.header.Get("Link") != "" || a.status != 200 {
		t.Errorf("no rows: %d %s %v", a.status, a.body, a.header)
	}
}

// TestLinkIsSafe: what a request has in its parameters cannot leave the reference. Parameters
// that the feed does not read are not repeated: they may be secret, or many.
func TestLinkIsSafe(t *testing.T) {
	t.Parallel()
	params := []param.Param{{Name: "a", Type: param.Text}, {Name: "b&", Type: param.Text, ListMax: 2}, {Name: "claim.sub", Type: param.Text}}
	columns := feed.Columns{"id", "a>b", "n"}
	for query, want := range map[string]string{
		"":                                  `<?before=QQ>; rel="next"`,
		"before=x&offset=7":                 `<?before=QQ>; rel="next"`,
		"limit=2&before=x&fields=id":        `<?limit=2&fields=id&before=QQ>; rel="next"`,
		`a=>;rel="x",<b>`:                   `<?a=%3E%3Brel%3D%22x%22%2C%3Cb%3E&before=QQ>; rel="next"`,
		"a=%0d%0aSet-Cookie:x":              `<?a=%0D%0ASet-Cookie%3Ax&before=QQ>; rel="next"`,
		"a=2016+1&ü=%zz":                    `<?a=2016+1&before=QQ>; rel="next"`,
		"a":                                 `<?a=&before=QQ>; rel="next"`,
		"a=1&a=2&limit=1&limit=2":           `<?a=1&limit=1&before=QQ>; rel="next"`,
		"b%26=2&a=&b%26=1":                  `<?b%26=2&a=&b%26=1&before=QQ>; rel="next"`,
		"limit=&limit=5&fields=&A=1":        `<?limit=&before=QQ>; rel="next"`,
		"access_token=secret&x=y&flag&=&a=": `<?a=&before=QQ>; rel="next"`,
		"fields=n,n,a>b&fields=n,id":        `<?fields=n%2Ca%3Eb%2Cid&before=QQ>; rel="next"`,
	} {
		var ctx fasthttp.RequestCtx
		ctx.QueryArgs().Parse(query)
		fields, err := fieldsOf(&ctx, columns)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(appendLink(nil, ctx.QueryArgs(), params, fields, "QQ")); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestEmptyArguments: an empty value is a value, wherever it is in the request.
func TestEmptyArguments(t *testing.T) {
	t.Parallel()
	filter := param.Filter("city", param.Text)
	optional := param.Param{Name: "city", Type: param.Text, Optional: true, Default: "Graz"}
	list := param.Param{Name: "city", Type: param.Text, Optional: true, Default: "Graz", ListMax: 3}
	for n := range 20 {
		others := strings.Repeat("a=1&", n)
		for _, c := range []struct {
			query string
			p     param.Param
			want  string
		}{
			{"city=", filter, ""},
			{"city", filter, ""},
			{"city&b=1", filter, ""},
			{"b=1", filter, param.Absent},
			{"city=", optional, ""},
			{"city", optional, ""},
			{"b=1", optional, "Graz"},
			{"city=", list, "\x00"},
			{"city", list, "\x00"},
			{"b=1", list, "Graz"},
		} {
			var ctx fasthttp.RequestCtx
			ctx.QueryArgs().Parse(others + c.query)
			if got, err := new(Server).arguments(&ctx, []param.Param{c.p}, nil); err != nil || got[0] != c.want {
				t.Errorf("%s, %+v: %q, %v, want %q", others+c.query, c.p, got, err, c.want)
			}
		}
	}
}

func TestFields(t *testing.T) {
	t.Parallel()
	source := &rows{n: 5000}
	base, _ := start(t, source, func(c *Config) { c.Feeds[0].Columns = feed.Columns{"id", "gone"} })
	whole := request(t, "GET", base+"/list")
	same := request(t, "GET", base+"/list?fields=id")
	none := request(t, "GET", base+"/list?fields=gone")
	if same.body != whole.body || none.body[:len(`{"data":[{},{}`)] != `{"data":[{},{}` {
		t.Errorf("fields: %s and %s", same.body, none.body)
	}
	if tag := same.header.Get("ETag"); tag != whole.header.Get("ETag") || tag == none.header.Get("ETag") {
		t.Errorf("tags %s of the same content, %s of less", tag, none.header.Get("ETag"))
	}
	if a := request(t, "GET", base+"/list?fields=gone", "If-None-Match", none.header.Get("ETag")); a.status != 304 {
		t.Errorf("unchanged: %d", a.status)
	}
	if a := request(t, "GET", base+"/list?fields=gone", "If-None-Match", whole.header.Get("ETag")); a.status != 200 {
		t.Errorf("with the tag of all fields: %d", a.status)
	}
	if a := request(t, "GET", base+"/list?fields=&fields="); a.body != whole.body {
		t.Errorf("empty: %s", a.body)
	}
	if next := decode(t, none).Next; next == "" || next != decode(t, whole).Next {
		t.Errorf("cursor %q", next)
	}
	for _, query := range []string{"?fields=id,nothing", "?fields=id,", "?offset=4000&fields=ID", "?fields=id&fields=nothing"} {
		if a := request(t, "GET", base+"/list"+query); a.status != 400 || !strings.Contains(a.body, "the known fields are id,gone") {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
}
