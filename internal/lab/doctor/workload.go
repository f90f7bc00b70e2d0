package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Side is one end of a connection.
type Side string

// The sides.
const (
	Client     Side = "client"
	ServerSide Side = "server"
)

// The bounds and defaults of a workload.
const (
	rateMax        = 1e9
	countMax       = 1_000_000
	durationMax    = 30 * 24 * time.Hour
	serviceDefault = 5 * time.Millisecond
	stallDefault   = 200 * time.Millisecond
)

// Workload is what --for describes: requests from one host to a service.
type Workload struct {
	Text          string        // as given
	Rate          float64       // requests per second
	PerConnection int           // requests per connection; 0 means keep-alive
	Addresses     int           // source addresses
	Targets       int           // destination addresses and ports
	Closes        Side          // the side that closes a connection first
	ClosesGiven   bool          // Closes is not the default
	Closing       *Closing      // what the target does, instead of Closes; nil if it was not asked
	Loopback      bool          // over 127.0.0.0/8 or ::1
	Service       time.Duration // of one request, including connecting
	Duration      time.Duration // 0 means without end
	Stall         time.Duration // time during which the server accepts no connection
}

// errWorkload lists the words of the grammar.
var errWorkload = errors.New("write rate=N and any of short-connections, per-connection=N, keep-alive, addresses=K, targets=M, " +
	"closes=client|server, loopback|remote, service=5ms, duration=60s, stall=200ms")

// ParseWorkload reads words such as "rate=5000 short-connections
// closes=client loopback". By default connections are short and the client
// closes first. loopback is the default for the network.
func ParseWorkload(text string, loopback bool) (*Workload, error) {
	w := &Workload{
		Text: strings.Join(strings.Fields(text), " "), PerConnection: 1, Addresses: 1, Targets: 1,
		Closes: Client, Loopback: loopback, Service: serviceDefault, Stall: stallDefault,
	}
	seen := map[string]bool{}
	for _, word := range strings.Fields(text) {
		name, value, hasValue := strings.Cut(word, "=")
		topic := cmp.Or(topics[name], name)
		if seen[topic] {
			return nil, fmt.Errorf("%q: repeats or contradicts another word", word)
		}
		seen[topic] = true
		if err := w.word(name, value, hasValue); err != nil {
			return nil, fmt.Errorf("%q: %w", word, err)
		}
	}
	w.ClosesGiven = seen["closes"]
	if !seen["rate"] {
		return nil, fmt.Errorf("rate is missing: %w", errWorkload)
	}
	return w, nil
}

// topics maps words that exclude each other to one name.
var topics = map[string]string{
	"short-connections": "connections", "per-connection": "connections", "keep-alive": "connections",
	"loopback": "network", "remote": "network",
}

// word applies one word of the grammar.
func (w *Workload) word(name, value string, hasValue bool) (err error) {
	switch name {
	case "short-connections", "keep-alive", "loopback", "remote":
		if hasValue {
			return errors.New("takes no value")
		}
	}
	switch name {
	case "rate":
		w.Rate, err = parseRate(value)
	case "short-connections":
		w.PerConnection = 1
	case "keep-alive":
		w.PerConnection = 0
	case "per-connection":
		w.PerConnection, err = parseCount(value)
	case "addresses":
		w.Addresses, err = parseCount(value)
	case "targets":
		w.Targets, err = parseCount(value)
	case "closes":
		w.Closes = Side(value)
		if w.Closes != Client && w.Closes != ServerSide {
			err = errors.New("write closes=client or closes=server")
		}
	case "loopback":
		w.Loopback = true
	case "remote":
		w.Loopback = false
	case "service":
		w.Service, err = parseDuration(value)
	case "duration":
		w.Duration, err = parseDuration(value)
	case "stall":
		w.Stall, err = parseDuration(value)
	default:
		err = errWorkload
	}
	return err
}

func parseRate(text string) (float64, error) {
	rate, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil || math.IsNaN(rate) || rate <= 0 || rate > rateMax {
		return 0, errors.New("must be a number of requests per second, such as rate=5000")
	}
	return rate, nil
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > countMax {
		return 0, fmt.Errorf("must be a whole number from 1 to %d", countMax)
	}
	return n, nil
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > durationMax {
		return 0, errors.New("must be a duration such as 5ms or 60s")
	}
	return d, nil
}

// connectionRate is the number of new connections per second.
func (w *Workload) connectionRate() float64 {
	if w.PerConnection == 0 {
		return 0
	}
	return w.Rate / float64(w.PerConnection)
}

// openConnections is the number of connections open at once, by Little's law.
func (w *Workload) openConnections() float64 { return w.Rate * w.Service.Seconds() }

// ClientShare is the share of connections that the client closes first.
func (w *Workload) ClientShare() float64 {
	switch {
	case w.Closing != nil && w.Closing.WithClose.known():
		return w.Closing.WithClose.clientShare()
	case w.Closes == ServerSide:
		return 0
	}
	return 1
}
