// Command drain counts the requests that a stopping server loses. Keep-alive
// connections send one request after the other, others open a connection for
// each request; in the middle of it the server gets SIGTERM. A request that was
// written on an established connection and got no full answer is lost. A refused
// connection is not: nobody accepted anything.
//
// It prints one JSON document and exits 1 when a request was lost.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// outcome counts the requests of one kind of connection. The lost ones are told
// apart: the first request on a connection may have waited in the kernel's queue
// of a listener that was closed, a later one was the server's for certain.
type outcome struct {
	Answered   int `json:"answered"`
	After      int `json:"answered_after_signal"`
	LostNew    int `json:"lost_on_a_new_connection"`
	LostUsed   int `json:"lost_on_a_used_connection"`
	Cut        int `json:"lost_cut_short"`
	Status     int `json:"status_not_200"`
	Refused    int `json:"connections_refused"`
	Unwritten  int `json:"closed_before_the_request_was_written"`
	Reconnects int `json:"closed_by_the_server_after_an_answer"`
}

// lost returns how many requests got no full answer.
func (o outcome) lost() int { return o.LostNew + o.LostUsed + o.Cut }

// client is one connection after the other. Only its own goroutine uses it.
type client struct {
	address, request string
	keepAlive        bool
	signalled        <-chan struct{}
	outcome          outcome
}

func main() {
	lost, err := run()
	if err != nil {
		slog.Error("stop", "error", err)
		os.Exit(3)
	}
	if lost > 0 {
		os.Exit(1)
	}
}

func run() (lost int, err error) {
	address := flag.String("address", "127.0.0.1:8080", "host and port of the server")
	path := flag.String("path", "/goodslist", "path and query to ask for")
	pid := flag.Int("pid", 0, "process that gets SIGTERM")
	keepAlive := flag.Int("keep-alive", 64, "keep-alive connections")
	short := flag.Int("short", 8, "clients that open a connection for each request")
	after := flag.Duration("after", 2*time.Second, "load before the signal")
	flag.Parse()
	if *pid <= 0 {
		return 0, errors.New("--pid must name the server's process")
	}
	signalled := make(chan struct{})
	clients := make([]*client, *keepAlive+*short)
	var group sync.WaitGroup
	for i := range clients {
		c := &client{address: *address, keepAlive: i < *keepAlive, signalled: signalled}
		c.request = "GET " + *path + " HTTP/1.1\r\nHost: " + *address + "\r\n"
		if !c.keepAlive {
			c.request += "Connection: close\r\n"
		}
		c.request += "\r\n"
		clients[i] = c
		group.Go(c.run)
	}
	<-time.After(*after)
	close(signalled)
	sent := time.Now()
	if err := syscall.Kill(*pid, syscall.SIGTERM); err != nil {
		return 0, fmt.Errorf("signal process %d: %w", *pid, err)
	}
	group.Wait()
	total := map[bool]*outcome{true: {}, false: {}}
	for _, c := range clients {
		total[c.keepAlive].add(c.outcome)
	}
	lost = total[true].lost() + total[false].lost()
	return lost, json.NewEncoder(os.Stdout).Encode(map[string]any{
		"keep_alive": total[true], "short": total[false], "lost": lost,
		"clients_done_after_signal_seconds": time.Since(sent).Seconds(),
	})
}

func (o *outcome) add(p outcome) {
	o.Answered += p.Answered
	o.After += p.After
	o.LostNew += p.LostNew
	o.LostUsed += p.LostUsed
	o.Cut += p.Cut
	o.Status += p.Status
	o.Refused += p.Refused
	o.Unwritten += p.Unwritten
	o.Reconnects += p.Reconnects
}

// run connects and sends until the server refuses a connection.
func (c *client) run() {
	for {
		conn, err := net.DialTimeout("tcp", c.address, 5*time.Second)
		if err != nil {
			c.outcome.Refused++
			return
		}
		c.use(conn)
		conn.Close()
	}
}

// use sends requests on an established connection until the server closes it.
func (c *client) use(conn net.Conn) {
	answers := bufio.NewReader(conn)
	for first := true; ; first = false {
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return
		}
		if _, err := io.WriteString(conn, c.request); err != nil {
			c.outcome.Unwritten++
			return
		}
		if _, err := answers.Peek(1); err != nil {
			if first {
				c.outcome.LostNew++
			} else {
				c.outcome.LostUsed++
			}
			return
		}
		if more := c.read(answers); !more {
			return
		}
	}
}

// read takes one answer of which a byte has come, and tells whether the
// connection may carry another request.
func (c *client) read(answers *bufio.Reader) bool {
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		c.outcome.Cut++
		return false
	}
	_, err = io.Copy(io.Discard, response.Body)
	response.Body.Close()
	if err != nil {
		c.outcome.Cut++
		return false
	}
	c.outcome.Answered++
	if response.StatusCode != http.StatusOK {
		c.outcome.Status++
	}
	select {
	case <-c.signalled:
		c.outcome.After++
	default:
	}
	if response.Close && c.keepAlive {
		c.outcome.Reconnects++
	}
	return !response.Close
}
