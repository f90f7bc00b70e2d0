package target

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// readBack reads a request as a server would.
func readBack(t testing.TB, b []byte) (*http.Request, string) {
	t.Helper()
	reader := bufio.NewReader(bytes.NewReader(b))
	r, err := http.ReadRequest(reader)
	if err != nil {
		t.Fatalf("%v: %q", err, b)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("%v: %q", err, b)
	}
	if reader.Buffered() > 0 {
		t.Fatalf("%d bytes after the request: %q", reader.Buffered(), b)
	}
	return r, string(body)
}

func template(t testing.TB, text string) Template {
	t.Helper()
	parsed, err := ParseTemplate(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestBuiltRequest(t *testing.T) {
	headers := []Header{{"X-Key", "a: b"}, {"Idempotency-Key", "k-{sequence}."}, {"User-Agent", "me"}}
	for _, body := range []string{"", "plain", "number {sequence}"} {
		for _, path := range []string{"/", "/p?x={random(4,4)}"} {
			mix, err := newHTTPMix([]HTTPRequest{{Method: "POST", Path: template(t, path), Body: template(t, body)}}, "h:1", headers)
			if err != nil {
				t.Fatal(err)
			}
			for _, last := range []bool{false, true} {
				s := newSource()
				s.Next()
				r, got := readBack(t, mix.requests[mix.draw(s)].append(nil, last, s))
				wantPath := strings.ReplaceAll(path, "{random(4,4)}", "4")
				wantBody := strings.ReplaceAll(body, "{sequence}", "1")
				if r.Host != "h:1" || r.RequestURI != wantPath || got != wantBody || r.Close != last || r.Header.Get("X-Key") != "a: b" || r.Header.Get("Idempotency-Key") != "k-1." || r.UserAgent() != "me" {
					t.Errorf("%q %q: got %+v with body %q", path, body, r, got)
				}
			}
		}
	}
}

func TestBuiltRequestWithoutBody(t *testing.T) {
	mix, err := newHTTPMix([]HTTPRequest{{Path: template(t, "/x")}}, "h", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := string(mix.requests[0].keep)
	if want := "GET /x HTTP/1.1\r\nHost: h\r\nUser-Agent: spillway\r\n\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHeaderValuesWithLineEnds(t *testing.T) {
	path := writeFile(t, "v.csv", "\"x\ny\"\n")
	for value, want := range map[string]string{"{file:" + path + ":1}": "contains a line end", "{nothing}": "unknown value {nothing}"} {
		_, err := newHTTPMix([]HTTPRequest{{Path: template(t, "/")}}, "h", []Header{{"X-Name", value}})
		if err == nil || !strings.Contains(err.Error(), "header X-Name: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// TestPathValuesAreEscaped inserts data in a path and a query. The server must
// read the same data, and what the user typed must arrive as typed.
func TestPathValuesAreEscaped(t *testing.T) {
	for _, test := range []struct{ value, escaped, reserved string }{
		{"a b", "a%20b", "a%20b"},
		{"c/d?e=ä", "c%2Fd%3Fe%3D%C3%A4", "c/d?e=%C3%A4"},
		{"x\ny", "x%0Ay", "x%0Ay"},
		{"100%", "100%25", "100%25"},
		{"%41&b=c+d#e", "%2541%26b%3Dc%2Bd%23e", "%41&b=c+d%23e"},
		{"a.b-c_d~e", "a.b-c_d~e", "a.b-c_d~e"},
	} {
		file := "file:" + writeFile(t, "v.csv", "\""+test.value+"\"\n") + ":1}"
		paths := "/%41/{" + file + "?q={" + file + "&r={+" + file
		mix, err := newHTTPMix([]HTTPRequest{{Path: template(t, paths), Body: template(t, "{"+file)}}, "h", nil)
		if err != nil {
			t.Fatal(err)
		}
		s := newSource()
		s.Next()
		r, body := readBack(t, mix.requests[mix.draw(s)].append(nil, false, s))
		want := "/%41/" + test.escaped + "?q=" + test.escaped + "&r=" + test.reserved
		if r.RequestURI != want || body != test.value {
			t.Errorf("%q: got %q and body %q, want %q", test.value, r.RequestURI, body, want)
		}
		if r.URL.Path != "/A/"+test.value || r.URL.Query().Get("q") != test.value {
			t.Errorf("%q: the server reads path %q and query %q", test.value, r.URL.Path, r.URL.Query())
		}
	}
}

func TestWeights(t *testing.T) {
	mix, err := newHTTPMix([]HTTPRequest{{Path: template(t, "/a"), Weight: 9}, {Path: template(t, "/b"), Weight: 1}}, "h", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newSource()
	counts := map[int]int{}
	for range 10000 {
		counts[mix.draw(s)]++
	}
	if n := counts[0]; n < 8900 || n > 9100 {
		t.Errorf("%d of 10000, want about 9000", n)
	}
}

func TestRequestErrors(t *testing.T) {
	for _, r := range []HTTPRequest{
		{Path: template(t, "x")}, {Path: template(t, "/a b")}, {Path: template(t, "/ä")}, {Method: "G T", Path: template(t, "/")}, {},
	} {
		if _, err := newHTTPMix([]HTTPRequest{r}, "h", nil); err == nil {
			t.Errorf("%+v was taken", r)
		}
	}
	for _, text := range []string{"novalue", ": x", "A B: c", "X: a\r\nY: b", "Content-Length: 3", "connection: close"} {
		if _, err := ParseHeader(text); err == nil {
			t.Errorf("header %q was taken", text)
		}
	}
	if h, err := ParseHeader("X-A:  b c "); err != nil || h != (Header{"X-A", "b c"}) {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestChecks(t *testing.T) {
	f := func(checks []string, status int, body string, want error) {
		t.Helper()
		c, err := ParseChecks(checks)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.judge(&answer{status: status, body: []byte(body)}, new(scratch)); (got == nil) != (want == nil) || want != nil && !errors.Is(got, want) {
			t.Errorf("%q on %d %q: %v, want %v", checks, status, body, got, want)
		}
	}
	f(nil, 200, "", nil)
	f(nil, 299, "", nil)
	f(nil, 304, "", nil)
	f(nil, 302, "", errRedirect)
	f([]string{"status=3xx"}, 302, "", nil)
	f(nil, 400, "", errStatus)
	f(nil, 199, "", errStatus)
	f([]string{"status=404"}, 404, "", nil)
	f([]string{"status=404"}, 200, "", errStatus)
	f([]string{"status=2xx,404", "status=500"}, 500, "", nil)
	f([]string{"status=2xx"}, 299, "", nil)
	f([]string{"body~=SUCCESS"}, 200, "a SUCCESS", nil)
	f([]string{"body~=SUCCESS"}, 200, "a FAIL", errCheck)
	f([]string{"body!~FAIL", "body~=a"}, 200, "a FAIL", errCheck)
	for _, text := range []string{"", "status", "status=", "status=20", "status=0xx", "status=abc", "body=x", "body~="} {
		if _, err := ParseChecks([]string{text}); err == nil {
			t.Errorf("check %q was taken", text)
		}
	}
}

// FuzzPercentEncode checks that data survives a path and a query.
func FuzzPercentEncode(f *testing.F) {
	f.Add("100%/a?b=c&d+e#f")
	f.Fuzz(func(t *testing.T, data string) {
		encoded := percentEncode(data, false)
		path, err := url.PathUnescape(encoded)
		if err != nil || path != data {
			t.Fatalf("%q became %q in a path: %v", data, path, err)
		}
		if query, err := url.QueryUnescape(encoded); err != nil || query != data {
			t.Fatalf("%q became %q in a query: %v", data, query, err)
		}
		if partial := percentEncode(data, true); percentEncode(partial, true) != partial {
			t.Fatalf("%q is encoded twice", partial)
		}
	})
}
