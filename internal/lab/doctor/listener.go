package doctor

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"spillway/internal/lab/netstat"
)

// Listener is a listening socket of this host.
type Listener struct {
	Port    int `json:"port"`
	Backlog int `json:"accept_backlog"` // what listen() asked for, cut at somaxconn
	Queued  int `json:"accept_queued"`  // connections that wait to be accepted
}

// schemePorts are the ports that a target's URL may leave out.
var schemePorts = map[string]string{
	"http": "80", "https": "443", "redis": "6379", "rediss": "6379",
	"postgres": "5432", "postgresql": "5432", "mysql": "3306",
}

// Target is the host and port of what will be loaded.
type Target struct {
	Port     int
	Loopback bool // its address is this host's loopback
}

// ParseTarget reads an http, redis, postgres or mysql URL, or HOST:PORT. It
// looks no name up but localhost.
func ParseTarget(text string) (Target, error) {
	if !strings.Contains(text, "://") {
		text = "tcp://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return Target{}, errors.New("is not a URL such as http://HOST:PORT/PATH") // url's own error may hold a password
	}
	port := u.Port()
	if port == "" {
		port = schemePorts[u.Scheme]
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > portMax || u.Hostname() == "" {
		return Target{}, errors.New("names no host and port; write http://HOST:PORT/PATH")
	}
	ip := net.ParseIP(u.Hostname())
	return Target{Port: n, Loopback: u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()}, nil
}

// ReadListener adds the socket that listens on a port of this host to the facts, and the open-file limits of its owner. It
// adds nothing if there is no such socket.
func ReadListener(f *Facts, port int) error {
	client, err := netstat.Open()
	if err != nil {
		return err
	}
	defer client.Close()
	var inode uint32
	err = client.Sockets(netstat.Listening(uint16(port)), func(s *netstat.Socket) {
		if f.Listener == nil {
			f.Listener = &Listener{Port: port, Queued: int(s.Queued), Backlog: int(s.Backlog)}
			inode = s.Inode
		}
	})
	if err != nil || f.Listener == nil {
		return err
	}
	r, err := newReader("/")
	if err != nil {
		return err
	}
	owners, _, err := netstat.Owners(r.proc, inode)
	if err != nil || len(owners) == 0 { // another user's process
		return err
	}
	r.files(f, owners[0])
	return nil
}
