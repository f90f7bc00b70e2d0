package doctor

import (
	"bufio"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// answering serves HTTP on loopback. With Connection: close, or always, it closes the connection to end the answer; otherwise
// it waits until the client has closed it. With patience it does so after Connection: close too.
func answering(t *testing.T, always, patient bool) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				request, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				if always || request.Close && !patient {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nanswer")
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer")
				_, _ = in.ReadByte()
			})
		}
	})
	return "http://" + listener.Addr().String() + "/"
}

// TestReadClosing asks servers that close in known ways, and sees TIME_WAIT where the kernel has it.
func TestReadClosing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		always, patient bool
		want            Closing
	}{
		{false, true, Closing{WithClose: CloseCount{Client: closingProbes}, Without: CloseCount{Client: closingProbes}}},
		{false, false, Closing{WithClose: CloseCount{Server: closingProbes}, Without: CloseCount{Client: closingProbes}}},
		{true, false, Closing{WithClose: CloseCount{Server: closingProbes}, Without: CloseCount{Server: closingProbes}}},
	} {
		url := answering(t, c.always, c.patient)
		if got, ok := readClosing(t, url, func(got Closing) bool { return got == c.want }); !ok {
			t.Errorf("always %t, patient %t: %+v, want %+v", c.always, c.patient, got, c.want)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") }))
	defer server.Close()
	if got, ok := readClosing(t, server.URL, func(got Closing) bool {
		return got.Race && got.WithClose.Client+got.WithClose.Server == closingProbes
	}); !ok {
		t.Errorf("a server that closes after the answer: %+v", got)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	if _, err := ReadClosing(t.Context(), "http://"+listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "find out which side closes first") {
		t.Errorf("nothing listens: %v", err)
	}
}

// readClosing asks until the answer is as wanted, five times at most: a server that is stopped for longer than the patience
// hides how it closes.
func readClosing(t *testing.T, url string, wanted func(Closing) bool) (last Closing, ok bool) {
	t.Helper()
	for range 5 {
		got, err := ReadClosing(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		if last = *got; wanted(last) {
			return last, true
		}
	}
	return last, false
}

func TestMayAsk(t *testing.T) {
	for address, may := range map[string]bool{"127.0.0.1": true, "10.1.2.3": true, "::1": true, "fd00::1": true, "169.254.1.1": true, "8.8.8.8": false, "2001:4860::1": false} {
		if err := mayAsk(netip.MustParseAddr(address)); (err == nil) != may {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestPredictClosing has a server that closes three quarters of the connections first.
func TestPredictClosing(t *testing.T) {
	f := goodHost()
	f.TWReuse = 0
	w, err := ParseWorkload("rate=5000 short-connections", false)
	if err != nil {
		t.Fatal(err)
	}
	w.Closing = &Closing{WithClose: CloseCount{Client: 2, Server: 6}, Without: CloseCount{Client: 8}}
	p := Predict(f, w)
	// 28,232 ports; 1,250 connections per second hold one for 60 s.
	if p.RunOutSeconds == nil || math.Abs(*p.RunOutSeconds-22.5856) > 1e-3 || math.Abs(*p.MaxRateHz-28232/15.005) > 1 {
		t.Errorf("runs out after %v s, max %v", p.RunOutSeconds, *p.MaxRateHz)
	}
	if p.ClientTimeWait != 28232 || p.ServerTimeWait != 28232 {
		t.Errorf("%d and %d in TIME_WAIT", p.ClientTimeWait, p.ServerTimeWait)
	}
	var text strings.Builder
	r := &Report{Prediction: p}
	r.Add(predicted(t, p, f, w)...)
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"with Connection: close the server closed 6 of 8 first; without it the server closed 0 of 8 first",
		"because the client closes 25 % first", "28,232 / 1,250 = 22.6 s", "28,232 sockets at the client, 28,232 sockets at the server",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	w.Rate, w.Closing.Race = 1000, true
	p = Predict(f, w)
	if finding := named(t, predicted(t, p, f, w), "closing side"); p.PortsRunOut || finding.Status != Warn || !strings.Contains(finding.Arithmetic, "used up after 28.2 s") {
		t.Errorf("a race: runs out %t, %+v", p.PortsRunOut, finding)
	}
	w.Rate = 5000
	w.Closing.WithClose = CloseCount{Unknown: 8}
	if got := Predict(f, w); *got.RunOutSeconds != 28232/5000.0 {
		t.Errorf("nothing was seen: %v s", *got.RunOutSeconds)
	}
}
