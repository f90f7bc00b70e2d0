package doctor

import (
	"cmp"
	"errors"
	"net/url"
	"strconv"
	"strings"

	"spillway/internal/netstat"
)

// Listener is a listening socket of this host.
type Listener struct {
	Port    int `json:"port"`
	Backlog int `json:"accept_backlog"` // requested by listen(), at most somaxconn
	Queued  int `json:"accept_queued"`  // connections that wait to be accepted
}

// schemePorts are the default ports of URLs.
var schemePorts = map[string]string{
	"http": "80", "https": "443", "redis": "6379", "rediss": "6379",
	"postgres": "5432", "postgresql": "5432", "mysql": "3306",
}

// Target is the service under load.
type Target struct {
	Port     int
	Loopback bool // its address is a loopback address
}

// ParseTarget reads an http, redis, postgres or mysql URL, or HOST:PORT. It makes
// no DNS lookup.
func ParseTarget(text string) (Target, error) {
	if !strings.Contains(text, "://") {
		text = "tcp://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return Target{}, errors.New("invalid URL: write http://HOST:PORT/PATH") // the error of url may contain a password
	}
	port := cmp.Or(u.Port(), schemePorts[u.Scheme])
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > portMax || u.Hostname() == "" {
		return Target{}, errors.New("no host and port: write http://HOST:PORT/PATH")
	}
	return Target{Port: n, Loopback: netstat.IsLoopback(u.Hostname())}, nil
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
