//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// started is a server in this process.
type started struct {
	address string
	out     *bufio.Reader
	stdin   io.Closer
	ended   chan error
}

// startHere starts a server. It returns nil if this machine does not allow io_uring, which many containers forbid.
func startHere(t *testing.T, name string, loops int) *started {
	t.Helper()
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	s := &started{out: bufio.NewReader(stdout), stdin: stdin, ended: make(chan error, 1)}
	go func() {
		err := serve(name, loops, true, in, out)
		s.ended <- err
		out.CloseWithError(err)
	}()
	address, err := s.out.ReadString('\n')
	if name == byRing && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS)) {
		t.Logf("io_uring is not allowed here: %v", err)
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	s.address = strings.TrimSpace(address)
	return s
}

func (s *started) stop(t *testing.T) loads {
	t.Helper()
	s.stdin.Close()
	var l loads
	if err := json.NewDecoder(s.out).Decode(&l); err != nil {
		t.Fatal(err)
	}
	if err := <-s.ended; err != nil {
		t.Fatal(err)
	}
	return l
}

// client is a connection to a server.
type client struct {
	net.Conn
	read *bufio.Reader
}

func (s *started) dial(t *testing.T) *client {
	t.Helper()
	conn, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	return &client{conn, bufio.NewReader(conn)}
}

// get makes a request and checks the response. If last is set, the server must close the connection.
func (c *client) get(t *testing.T, last bool) {
	t.Helper()
	field := ""
	if last {
		field = "Connection: close\r\n"
	}
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: test\r\n%s\r\n", field); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(c.read, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if len(body) != 1500 || !bytes.HasSuffix(body, []byte(bodyEnd)) || response.StatusCode != http.StatusOK || response.Close != last {
		t.Fatalf("response %s, close %v, with a body of %d bytes", response.Status, response.Close, len(body))
	}
	if last {
		if rest, err := io.ReadAll(c.read); len(rest) > 0 || err != nil {
			t.Fatalf("after the last response: %q, %v", rest, err)
		}
	}
}

func TestServers(t *testing.T) {
	for _, name := range []string{oneSocket, plain, reusePort, byRing} {
		for loops := range 3 {
			if name == byRing && loops > 0 {
				continue
			}
			t.Run(fmt.Sprint(name, loops+1), func(t *testing.T) {
				t.Parallel()
				testServer(t, name, loops+1)
			})
		}
	}
}

// testServer keeps some connections open. The ring gets more short connections than it has slots, so that slots are used again.
func testServer(t *testing.T, name string, loops int) {
	s := startHere(t, name, loops)
	if s == nil {
		return
	}
	var kept []*client
	for range 12 {
		kept = append(kept, s.dial(t))
	}
	for range 3 {
		for _, c := range kept {
			c.get(t, false)
		}
	}
	short := 20
	if name == byRing {
		short = slots + 1
	}
	for range short {
		c := s.dial(t)
		c.get(t, true)
		c.Close()
	}
	for i, c := range kept {
		if i%2 == 0 { // the server closes
			c.get(t, true)
		}
		c.Close()
	}
	requests := 3*len(kept) + short + len(kept)/2
	l := s.stop(t)
	if got := sum(l.Requests); got != requests || len(l.Requests) != loops {
		t.Errorf("loops answered %v requests, want %d in %d loops", l.Requests, requests, loops)
	}
}

// Connections that a loop answered only once before it gave them away count for the loop that has them.
func TestSummarize(t *testing.T) {
	peer := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	want := loads{Connections: []int{1, 2, 0}, Requests: []int{8, 9, 0}}
	got := summarize([]*answerer{
		{peers: map[netip.AddrPort]int{peer(1): 7, peer(2): 1}},
		{peers: map[netip.AddrPort]int{peer(2): 6, peer(3): 3}},
		{},
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("loads (-want +got):\n%s", diff)
	}
}

func TestTables(t *testing.T) {
	r := &result{Rounds: 3}
	for round := range 3 {
		for _, name := range []string{oneSocket, byRing} {
			micros := map[string]float64{oneSocket: 10, byRing: 8 + float64(round)}[name]
			for _, short := range []bool{true, false} {
				r.Costs = append(r.Costs, cost{Round: round, Server: name, Short: short, Micros: micros, System: 0.9, Busy: 0.5, Rate: 1000})
			}
		}
		for _, open := range openCounts() {
			for _, loops := range loopCounts() {
				for _, name := range acceptors() {
					r.Shares = append(r.Shares, share{Server: name, Loops: loops, Open: open, Connections: 0.25 * float64(round+1)})
				}
			}
		}
	}
	costs, balance := costTable(r), balanceTable(r)
	wantCost := []string{"io_uring, kept", "9.00 (8.00–10.00)", "90 %", "50 %", "1000", "0.900 (0.800–1.000)"}
	if diff := cmp.Diff(wantCost, costs.Rows[3]); len(costs.Rows) != 4 || diff != "" {
		t.Errorf("%d rows; the last (-want +got):\n%s", len(costs.Rows), diff)
	}
	wantBalance := []string{"256 connections, 4 loops", "25 %", "50 (25–75) %", "50 (25–75) %", "50 (25–75) %"}
	if diff := cmp.Diff(wantBalance, balance.Rows[5]); len(balance.Rows) != 6 || diff != "" {
		t.Errorf("%d rows; the last (-want +got):\n%s", len(balance.Rows), diff)
	}
	for _, t2 := range []table{costs, balance} {
		for _, row := range t2.Rows {
			if len(row) != len(t2.Columns) {
				t.Errorf("row %q has %d cells, want %d", row[0], len(row), len(t2.Columns))
			}
		}
	}
}
