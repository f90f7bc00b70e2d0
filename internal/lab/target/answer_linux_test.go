package target

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"spillway/internal/lab/result"
)

// failing answers each path with another failure.
func failing(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/moved":
		w.Header().Set("Location", "/login?next=a&token=secret")
		w.WriteHeader(http.StatusFound)
	case "/nowhere":
		w.WriteHeader(http.StatusMultipleChoices)
	case "/same":
		w.WriteHeader(http.StatusNotModified)
	case "/problem":
		w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
		w.WriteHeader(http.StatusUnsupportedMediaType)
		fmt.Fprint(w, `{"status":415,"title":"unsupported media type","detail":"send Content-Type:\n application/json"}`)
	case "/text":
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, "<html>\r\n  bad\x00 gateway\n"+strings.Repeat("ä", 4000))
	case "/binary":
		w.WriteHeader(http.StatusInternalServerError)
		w.Write([]byte{0x1f, 0x8b, 0xff, 0xfe})
	case "/none":
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// outcomeOf sends one request with the target's engine.
func outcomeOf(t *testing.T, tg *Target) Outcome {
	t.Helper()
	var outcomes []Outcome
	if tg.EventLoop() {
		outcomes, _ = drive(t, tg, 1, 1)
	} else {
		outcomes, _ = exchangeAll(t, tg, 1)
	}
	return outcomes[0]
}

// TestFailedAnswers has every HTTP engine say why a target rejects requests.
func TestFailedAnswers(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(failing))
	defer plain.Close()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(failing))
	secure.EnableHTTP2 = true
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	for _, test := range []struct {
		path, check, want string
		class             result.ErrorClass
	}{
		{"/moved", "", "status 302: redirects to /login?next=a&token=xxxxx; load that URL, or accept the answer with --check status=3xx", result.Redirect},
		{"/moved", "status=200", "status 302: redirects to /login", result.Redirect},
		{"/moved", "body~=x", "status 302: redirects to /login", result.Redirect},
		{"/moved", "status=3xx", "", 0},
		{"/nowhere", "", "status 300: redirects without a Location; accept the answer with --check status=3xx", result.Redirect},
		{"/same", "", "", 0},
		{"/same", "status=200", "status 304", result.StatusError},
		{"/problem", "", "status 415: unsupported media type: send Content-Type: application/json", result.StatusError},
		{"/problem", "body~=x", "status 415: unsupported media type", result.StatusError},
		{"/problem", "status=415", "", 0},
		{"/text", "", "status 502: <html> bad gateway ää", result.StatusError},
		{"/binary", "", "status 500", result.StatusError},
		{"/none", "", "status 503", result.StatusError},
		{"/none", "status=5xx", "", 0},
		{"/", "status=404", "status 200", result.StatusError},
	} {
		for name, c := range map[string]Config{
			"event loop": {URL: plain.URL}, "session": {URL: secure.URL, Insecure: true}, "HTTP/2": {URL: secure.URL, Insecure: true, HTTP2: true},
		} {
			c.URL += test.path
			if test.check != "" {
				checks, err := ParseChecks([]string{test.check})
				if err != nil {
					t.Fatal(err)
				}
				c.Checks = checks
			}
			o := outcomeOf(t, open(t, c))
			if test.want == "" {
				if o.Err != nil {
					t.Errorf("%s %s %s: %v, want success", name, test.path, test.check, o.Err)
				}
				continue
			}
			if o.Err == nil || Classify(o.Err) != test.class || !strings.HasPrefix(o.Err.Error(), test.want) {
				t.Errorf("%s %s %s: error %v, want %s: %s", name, test.path, test.check, o.Err, test.class, test.want)
				continue
			}
			if text := o.Err.Error(); len(text) > len("status 502: ")+200 && test.class == result.StatusError || !utf8.ValidString(text) || strings.Contains(text, "secret") {
				t.Errorf("%s %s: %d bytes: %q", name, test.path, len(text), text)
			}
		}
	}
}

// TestFailedAnswersAllocateNothing repeats the same failure: its text is stored once.
func TestFailedAnswersAllocateNothing(t *testing.T) {
	tg := open(t, Config{URL: "http://127.0.0.1/"})
	p := tg.newProtocol(tg.source(0), new(scratch))
	answer := []byte("HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\nwrong")
	var o Outcome
	exchange := func() {
		p.request(0, false, false)
		if done, err := p.feed(answer); !done || err != nil {
			t.Fatal(done, err)
		}
		p.answer(&o)
	}
	exchange()
	if n := testing.AllocsPerRun(100, exchange); n != 0 || o.Err == nil {
		t.Errorf("%v allocations per failed request; %v", n, o.Err)
	}
}

// FuzzOneLine checks that any body becomes a short line of text.
func FuzzOneLine(f *testing.F) {
	f.Add("a\r\nb\x00" + strings.Repeat("ä", 600))
	f.Fuzz(func(t *testing.T, text string) {
		if line := oneLine(text); len(line) > detailMax || !utf8.ValidString(line) || strings.ContainsAny(line, "\r\n\x00\u2028") {
			t.Fatalf("%q became %q", text, line)
		}
	})
}
