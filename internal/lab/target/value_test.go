package target

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func newSource() *Source { return NewSource(1, 0, new(atomic.Int64)) }

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTemplate(t *testing.T) {
	users := writeFile(t, "users.csv", "id,name\n1,ann\n2,\"b, c\"\n")
	f := func(text string, want ...string) {
		t.Helper()
		template, err := ParseTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		s := newSource()
		for _, w := range want {
			s.Next()
			if got := string(template.Append(nil, s)); got != w {
				t.Fatalf("%s: got %q, want %q", text, got, w)
			}
		}
	}
	f("", "", "")
	f("/plain", "/plain")
	f("/a?n={sequence}&m={sequence}", "/a?n=1&m=1", "/a?n=2&m=2")
	f("{random(7,7)}", "7")
	f("{random(-3,-3)}.", "-3.")
	f("{file:"+users+":id}={file:"+users+":name}", "1=ann", "2=b, c", "1=ann")
	f("{file:"+users+":2}", "name", "ann", "b, c")
	marked := writeFile(t, "marked.csv", "\ufeffid,name\r\n1,ann\r\n")
	f("{file:"+marked+":id}{file:"+marked+":1}", "1id")
	f(`{"id": {sequence}, "list": [{"x": {}}]}`, `{"id": 1, "list": [{"x": {}}]}`)
	f("{{sequence}", "{sequence}")
	f("{user{", "{user{")
	f("{", "{")
	f("{Name}", "{Name}")
}

func TestTemplateErrors(t *testing.T) {
	empty := writeFile(t, "empty.csv", "")
	short := writeFile(t, "short.csv", "a,b\n1\n")
	for text, want := range map[string]string{
		"{randm(1,2)}":            "unknown value {randm(1,2)}",
		"/p?x={random(1,5)":       `"{random(1,5)" does not close its brace`,
		"a {file:x.csv:id\n}":     "does not close its brace",
		"{random(2,1)}":           "the smaller first",
		"{random(1)}":             "write random(LOW,HIGH)",
		"{file:x}":                "write file:PATH:COLUMN",
		"{file:/no/such:1}":       "no such file",
		"{file:" + empty + ":1}":  "no rows",
		"{file:" + short + ":b}":  "line 2 has 1 columns",
		"{file:" + short + ":zz}": "no column \"zz\"; the header line has a, b",
		"{file:" + short + ":0}":  "numbered from 1",
	} {
		if _, err := ParseTemplate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestRandomStaysInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Int64Range(-1e12, 1e12).Draw(t, "low")
		high := low + rapid.Int64Range(0, 5).Draw(t, "width")
		v, err := ParseValue("random(" + strconv.FormatInt(low, 10) + ", " + strconv.FormatInt(high, 10) + ")")
		if err != nil {
			t.Fatal(err)
		}
		s := NewSource(rapid.Uint64().Draw(t, "seed"), 0, new(atomic.Int64))
		seen := map[int64]bool{}
		for range 200 {
			n, ok := v.integer(s)
			if !ok || n < low || n > high {
				t.Fatalf("%d is outside %d to %d", n, low, high)
			}
			seen[n] = true
		}
		if len(seen) != int(high-low+1) {
			t.Fatalf("of %d to %d only %d values in 200", low, high, len(seen))
		}
	})
}

func TestConstantValue(t *testing.T) {
	v, err := ParseValue("blue")
	if _, isNumber := v.integer(newSource()); err != nil || isNumber || v.string(newSource()) != "blue" {
		t.Errorf("%+v, %v", v, err)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"/a?{sequence}", "{random(1,5)}{", "{{x}", `{"a":{sequence}}`, "{}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "{file:") {
			return
		}
		template, err := ParseTemplate(text)
		if err != nil {
			return
		}
		constant, fixed := template.constant()
		got := string(template.Append(nil, newSource()))
		if fixed && got != constant {
			t.Fatalf("constant %q, written %q", constant, got)
		}
		if !strings.Contains(text, "{") && got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

func TestRequestsFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "body.json"), []byte(`{"n":{sequence}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "requests")
	text := "# comment\n\n3 GET /a?x={random(5,5)}\nPOST  /b   hello  world\nname=put 2\tPUT http://h:80/c @body.json\nname=get/q GET http://h:80?q=1\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	requests, err := ReadRequests(path, "h:80")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range requests {
		s := newSource()
		s.Next()
		got = append(got, r.Name+":"+strconv.Itoa(r.Weight)+" "+r.Method+" "+string(r.Path.Append(nil, s))+" "+string(r.Body.Append(nil, s)))
	}
	want := []string{":3 GET /a?x=5 ", ":1 POST /b hello  world", `put:2 PUT /c {"n":1}`, "get/q:1 GET /?q=1 "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRequestsFileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "no requests",
		"\n#\n":                  "no requests",
		"GET":                    "line 1: write [name=NAME] [WEIGHT] METHOD PATH",
		"0 GET /":                "line 1: weight 0",
		"name= GET /":            "line 1: name \"\": use up to 64",
		"name=a{b 3 GET /":       "name \"a{b\"",
		"\nG@T /":                "line 2: write",
		"GET a":                  "does not begin with /",
		"GET http://other/":      "other is not the target host h",
		"POST / @/no/such":       "no such file",
		"GET /{randm(1,2)}":      "unknown value",
		"GET / {file:/no/such:1": "does not close its brace",
		"GET / {user":            "",
	} {
		_, err := ReadRequests(writeFile(t, "r", text), "h")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzRequests(f *testing.F) {
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("body"), 0o600); err != nil {
		f.Fatal(err)
	}
	f.Add("3 GET /a {x}\n# c\nPOST http://h/ @f")
	f.Add("GET")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "{file:") || strings.Contains(text, "@/") {
			return
		}
		requests, err := parseRequests(strings.NewReader(text), "h", dir)
		if err != nil {
			return
		}
		for i := range requests {
			if requests[i].Weight < 1 || !isToken(requests[i].Method) {
				t.Fatalf("%+v", requests[i])
			}
		}
		mix, err := newHTTPMix(requests, "h", nil)
		if err != nil {
			return
		}
		s := newSource()
		for range 3 {
			s.Next()
			if strings.Contains(text, "%") {
				return // a wrong escape is sent as it is
			}
			b := mix.requests[mix.draw(s)].append(nil, true, s)
			readBack(t, b)
		}
	})
}
