package target

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

func callTarget(t *testing.T, c Config) *Target {
	t.Helper()
	c.Calls = []string{"a"}
	tg := open(t, c)
	if tg.EventLoop() {
		t.Fatal("an event loop drives calls")
	}
	return tg
}

// callOnce sends a GET over a session of its own.
func callOnce(t *testing.T, tg *Target, path string) (*Call, Outcome) {
	t.Helper()
	s := tg.NewSession(0, 1)
	defer s.Close()
	call := &Call{Method: "GET", Path: path, Checks: &Checks{}, Keep: true}
	o := s.Call(t.Context(), tg.config.Clock.Now(), call)
	checkTimes(t, &o)
	return call, o
}

// TestCall compares what a server reads with what was sent, over HTTP/1.1, TLS and
// HTTP/2.
func TestCall(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", r.Method+" "+r.RequestURI+" "+r.Host+" "+r.Header.Get("X-A")+" "+strings.Join(r.Header.Values("X-B"), "+")+" "+r.UserAgent())
		w.WriteHeader(http.StatusCreated)
		w.Write(body)
	})
	for _, kind := range []string{"http", "https", "http2"} {
		server := httptest.NewUnstartedServer(handler)
		if server.EnableHTTP2 = kind == "http2"; kind == "http" {
			server.Start()
		} else {
			server.StartTLS()
		}
		tg := callTarget(t, Config{URL: server.URL, Insecure: true, HTTP2: kind == "http2", Headers: []Header{{"X-A", "{random(4,4)}"}, {"X-B", "default"}}})
		s := tg.NewSession(0, 1)
		for i := range 3 {
			call := &Call{Method: "POST", Path: "/a%2Fb?q=%20", Body: []byte("hello"), Headers: []Header{{"x-b", "own"}}, Checks: &Checks{}, Keep: true}
			o := s.Call(t.Context(), tg.config.Clock.Now(), call)
			checkTimes(t, &o)
			want := "POST /a%2Fb?q=%20 " + strings.TrimPrefix(server.URL[strings.Index(server.URL, ":")+1:], "//") + " 4 own spillway"
			if o.Err != nil || o.Status != 201 || string(call.Answer.Body) != "hello" || call.Answer.Header.Get("X-Seen") != want {
				t.Errorf("%s: %v, status %d, body %q, the server saw %q, want %q", kind, o.Err, o.Status, call.Answer.Body, call.Answer.Header.Get("X-Seen"), want)
			}
			if (o.Connected != 0) != (i == 0) || o.BytesSent < 5 || o.BytesReceived < 5 || o.Kind != Write {
				t.Errorf("%s: request %d: %+v", kind, i, o)
			}
		}
		if n := s.Counters(); n.Connects != 1 || n.Reconnects != 0 {
			t.Errorf("%s: %+v", kind, n)
		}
		s.Close()
		server.Close()
	}
}

// TestCallClasses gives the errors of net/http the classes that the event loop gives.
func TestCallClasses(t *testing.T) {
	text := func(s string) func(int, net.Conn) {
		return func(_ int, conn net.Conn) {
			http.ReadRequest(bufio.NewReader(conn))
			io.WriteString(conn, s)
		}
	}
	for name, test := range map[string]struct {
		serve func(int, net.Conn)
		want  result.ErrorClass
	}{
		"no answer":   {text(""), result.Reset},
		"cut short":   {text("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), result.Reset},
		"not HTTP":    {text("SSH-2.0-x\r\n\r\n"), result.Protocol},
		"status":      {text("HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"), result.StatusError},
		"redirect":    {text("HTTP/1.1 302 X\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n"), result.Redirect},
		"big headers": {text("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 128<<10) + "\r\n\r\n"), result.Protocol},
		"timeout":     {func(_ int, conn net.Conn) { io.Copy(io.Discard, conn) }, result.Timeout},
	} {
		c := Config{URL: "http://" + hostile(t, test.serve)}
		if test.want == result.Timeout {
			c.Timeout = 300 * time.Millisecond
		}
		tg := callTarget(t, c)
		call, o := callOnce(t, tg, "/")
		if o.Err == nil || Classify(o.Err) != test.want {
			t.Errorf("%s: %v, want the class %s", name, o.Err, test.want)
		}
		if answered := test.want.Answered(); (call.Answer.Status != 0) != answered {
			t.Errorf("%s: status %d of the answer", name, call.Answer.Status)
		}
	}
	if _, o := callOnce(t, callTarget(t, Config{URL: "http://" + refusing(t)}), "/"); o.Err == nil || Classify(o.Err) != result.Refused || o.Sent != 0 {
		t.Errorf("refused: %+v", o)
	}
	if Classify(CheckFailed(errors.New("x"))) != result.CheckError {
		t.Error("CheckFailed is of another class")
	}
}

// TestCallIsSentOnce: a server closes a connection instead of answering the second
// request. net/http would repeat it over a new connection.
func TestCallIsSentOnce(t *testing.T) {
	var seen atomic.Int64
	address := hostile(t, answering(func(*http.Request) []byte {
		if seen.Add(1) == 2 {
			return nil
		}
		return []byte(okAnswer)
	}))
	tg := callTarget(t, Config{URL: "http://" + address})
	s := tg.NewSession(0, 1)
	defer s.Close()
	for i := range 3 {
		o := s.Call(t.Context(), tg.config.Clock.Now(), &Call{Method: "GET", Path: "/", Checks: &Checks{}})
		if (o.Err != nil) != (i == 1) || int(seen.Load()) != i+1 {
			t.Errorf("request %d: %v; the server saw %d", i, o.Err, seen.Load())
		}
		if i == 1 && Classify(o.Err) != result.Reset {
			t.Errorf("class %s", Classify(o.Err))
		}
	}
	if n := s.Counters(); n.Connects != 2 || n.Reconnects != 1 {
		t.Errorf("%+v", n)
	}
}

// TestCallAfterIdleClose: the server closes the connection while the user pauses,
// which is no error of the next request.
func TestCallAfterIdleClose(t *testing.T) {
	address := hostile(t, func(_ int, conn net.Conn) {
		http.ReadRequest(bufio.NewReader(conn))
		io.WriteString(conn, okAnswer)
	})
	tg := callTarget(t, Config{URL: "http://" + address})
	s := tg.NewSession(0, 1)
	defer s.Close()
	for range 3 {
		o := s.Call(t.Context(), tg.config.Clock.Now(), &Call{Method: "GET", Path: "/", Checks: &Checks{}})
		if o.Err != nil || o.Connected == 0 {
			t.Fatalf("%+v", o)
		}
		for s.Open() && s.conn.(*netHTTPConn).conn.Err() == nil {
			<-time.After(time.Millisecond)
		}
	}
	if n := s.Counters(); n.Connects != 3 || n.Reconnects != 2 {
		t.Errorf("%+v", n)
	}
}

// TestCallAnsweredEarly: the server answers a request that it does not read to its end. The
// connection takes no other request, which is no error of the next one.
func TestCallAnsweredEarly(t *testing.T) {
	address := hostile(t, func(_ int, conn net.Conn) {
		reader := bufio.NewReaderSize(conn, 16)
		http.ReadRequest(reader)
		io.WriteString(conn, okAnswer)
		<-t.Context().Done()
	})
	tg := callTarget(t, Config{URL: "http://" + address})
	s := tg.NewSession(0, 1)
	defer s.Close()
	body := bytes.Repeat([]byte("x"), 16<<20)
	for i := range 3 {
		o := s.Call(t.Context(), tg.config.Clock.Now(), &Call{Method: "POST", Path: "/", Body: body, Checks: &Checks{}})
		if o.Err != nil || o.Connected == 0 {
			t.Fatalf("request %d: %+v", i, o)
		}
	}
}

// TestCallPaths sends complete URLs of the target only.
func TestCallPaths(t *testing.T) {
	address := hostile(t, answering(func(r *http.Request) []byte {
		return []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Path: " + r.RequestURI + "\r\n\r\n")
	}))
	tg := callTarget(t, Config{URL: "http://" + address})
	for path, want := range map[string]string{
		"/a?b=c": "/a?b=c", "http://" + address + "/x?y": "/x?y", "http://" + address: "/", "http://other/x": "", "//other/x": "", "x": "",
	} {
		call, o := callOnce(t, tg, path)
		if (o.Err == nil) != (want != "") || call.Answer.Header.Get("X-Path") != want {
			t.Errorf("%s: %v, %q", path, o.Err, call.Answer.Header.Get("X-Path"))
		}
	}
}

// TestScope uses variables in templates, encoded in a path.
func TestScope(t *testing.T) {
	scope := Scope{Dir: t.TempDir(), Names: map[string]int{"user.first name": 0, "id_2": 1}}
	s := newSource()
	s.Variables = []string{"a/b &ü", "http://h/x?y=z"}
	for text, want := range map[string]string{
		"{user.first name}{{{id_2}": "a/b &ü{http://h/x?y=z", "{ }{\"a\":1}": "{ }{\"a\":1}", "/{random(3,3)}": "/3",
	} {
		template, err := scope.Parse(text)
		if got := string(template.Append(nil, s)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"/{user.first name}?{+id_2}": "/a%2Fb%20%26%C3%BC?http://h/x?y=z", "{+id_2}": "http://h/x?y=z",
	} {
		template, err := scope.ParsePath(text)
		if got := string(template.Append(nil, s)); err != nil || got != want || len(template.Variables()) == 0 {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"{id}", "{ id_2 }", "/{Token}", "{id-2}"} {
		if _, err := scope.Parse(text); err == nil || !strings.Contains(err.Error(), "{id_2}, {user.first name}, {random(") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"{id_2}", "x", "", "/a b"} {
		if _, err := scope.ParsePath(text); err == nil {
			t.Errorf("path %q was accepted", text)
		}
	}
}
