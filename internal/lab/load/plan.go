package load

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/lab/target"
)

// Defaults and limits of a run.
const (
	DefaultDuration          = 10 * time.Second
	DefaultClosedConnections = 10    // without a rate, and for SQL
	DefaultOpenConnections   = 1000  // with a rate; opened as needed
	ConnectionsMax           = 60000 // per process
	StepsMax                 = 1000
	RateMax                  = 5e6 // arrivals per second
	backlogMin               = 1000
	backlogMax               = 1_000_000
	backlogSeconds           = 10 // of arrivals at the highest rate, within the two limits
)

// Step is one load level: an open loop if it has a rate, otherwise a closed loop.
type Step struct {
	Rate        float64 // arrivals per second; zero: a closed loop
	Connections int
	Duration    time.Duration // zero: until Requests
	Requests    int64         // zero: until Duration
	Warmup      time.Duration // load before the step, not counted
	Name        string        // in the result; "": after the load
}

// Split returns one part of the steps. Connections and the requests of an open loop are
// divided, with a difference of at most one. Those of a closed loop are divided as the
// connections are, so that all parts end at the same time. The rate stays whole, because
// each part takes its own arrivals from it (see Arrivals.Part), and so does the name.
// backlog is how many arrivals may wait; zero: the default.
func Split(steps []Step, backlog int, part target.Part) ([]Step, error) {
	n := part.Count()
	if backlog > 0 && backlog < n {
		return nil, fmt.Errorf("--backlog %d for %d parts: each needs at least one; raise --backlog", backlog, n)
	}
	own := slices.Clone(steps)
	for i := range own {
		s := &own[i]
		if s.Connections < n {
			return nil, fmt.Errorf("%d connections for %d parts: each needs at least one; raise --connections", s.Connections, n)
		}
		if s.Requests > 0 && s.Requests < int64(n) {
			return nil, fmt.Errorf("%d requests for %d parts: each needs at least one; raise --requests", s.Requests, n)
		}
		s.Name = s.title()
		if s.Requests > 0 && !s.Open() {
			s.Requests = byConnections(s.Requests, s.Connections, part)
		} else {
			s.Requests = part.Portion(s.Requests)
		}
		s.Connections = int(part.Portion(int64(s.Connections)))
	}
	return own, nil
}

// sharesOf divides n among that many threads. Shares differ by at most 1, and the
// first are the largest.
func sharesOf(n, threads int) []int {
	shares := make([]int, threads)
	for i := range shares {
		shares[i] = int(target.Part{Number: i, Of: threads}.Portion(int64(n)))
	}
	return shares
}

// byConnections is the part of the requests of a closed loop: one, and of the others as
// many as the part has connections of all.
func byConnections(requests int64, connections int, part target.Part) int64 {
	n := part.Count()
	each, rest := (requests-int64(n))/int64(connections), (requests-int64(n))%int64(connections)
	until := func(parts int) int64 { // requests of the first parts
		own := int64(parts*(connections/n) + min(parts, connections%n))
		return own*each + own*rest/int64(connections)
	}
	return 1 + until(part.Number+1) - until(part.Number)
}

// Open reports whether the step is an open loop.
func (s *Step) Open() bool { return s.Rate > 0 }

// title is the name of the step, or else its load.
func (s *Step) title() string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Open():
		return fmt.Sprintf("%g/s", s.Rate)
	}
	return fmt.Sprintf("%d connections", s.Connections)
}

// backlogLimit is the number of arrivals of a part that may wait for a connection.
func (s *Step) backlogLimit(asked int, part target.Part) int {
	if asked == 0 {
		seconds := backlogSeconds * s.Rate
		asked = int(min(max(seconds, backlogMin), backlogMax))
	}
	return int(part.Portion(int64(asked)))
}

// ParseSteps returns the steps of a run.
//
// rates is empty or a list of arrivals per second, as in "100,200,500". connections is empty or a list, as in
// "1,4,50". Only one of the two may have more than one entry. duration and
// requests limit each step; if both are zero, DefaultDuration applies. sql is true
// for a database, which gets fewer connections by default.
func ParseSteps(rates, connections string, duration time.Duration, requests int64, sql bool) ([]Step, error) {
	if duration < 0 || requests < 0 {
		return nil, errors.New("--duration and --requests must not be negative")
	}
	if duration == 0 && requests == 0 {
		duration = DefaultDuration
	}
	counts, err := parseConnections(connections, rates != "" && !sql)
	if err != nil {
		return nil, err
	}
	levels := strings.Split(rates, ",")
	if len(levels) > 1 && len(counts) > 1 {
		return nil, errors.New("--rate and --connections are both lists; only one of them may be")
	}
	var steps []Step
	for _, level := range levels {
		for _, n := range counts {
			step := Step{Connections: n, Duration: duration, Requests: requests}
			if rates != "" {
				if step.Rate, err = parseRate(level); err != nil {
					return nil, err
				}
			}
			steps = append(steps, step)
		}
	}
	if len(steps) > StepsMax {
		return nil, fmt.Errorf("%d steps; the limit is %d", len(steps), StepsMax)
	}
	return steps, nil
}

func parseConnections(list string, many bool) ([]int, error) {
	if list == "" && many {
		return []int{DefaultOpenConnections}, nil
	}
	if list == "" {
		return []int{DefaultClosedConnections}, nil
	}
	var counts []int
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 || n > ConnectionsMax {
			return nil, fmt.Errorf("--connections %s: %q is not a number from 1 to %d", list, word, ConnectionsMax)
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// oneCount parses a single number of connections of open loops, with the same defaults as ParseSteps.
func oneCount(text string, sql bool) (int, error) {
	counts, err := parseConnections(text, !sql)
	if err != nil {
		return 0, err
	}
	if len(counts) > 1 {
		return 0, fmt.Errorf("--connections %s: write one number", text)
	}
	return counts[0], nil
}

// parseRate parses a number of arrivals per second.
func parseRate(text string) (float64, error) {
	text = strings.TrimSpace(text)
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate > 0 && rate <= RateMax) {
		return 0, fmt.Errorf("--rate %q: write arrivals per second, as in 500 or 100,200,500; at most %.0f", text, RateMax)
	}
	return rate, nil
}
