// Package agent makes one load from several hosts. Serve is `spillway agent`, which
// waits on a host for work. Group is the other side: the coordinator in
// `spillway load --agents`, a load.Generator.
//
// # Protocol
//
// The coordinator sends POST /run to each agent. Request and answer stay open for
// the whole run, in both directions at once, and carry one JSON object per line:
// commands to the agent, and replies. The answer to another coordinator is 409
// meanwhile. Package peer says who may send requests.
//
//	coordinator                  agent
//	                             hello: its version, which must be the same
//	ping                         pong: the time on its clock. The first eight
//	                             exchanges estimate the offset of the clock, and
//	                             one per second follows its drift
//	order: the options, the      header: it has parsed the options, has found that
//	share, files, a seed         it may load the target, and has reached it once
//	                             ready: connections are open, step 0 can begin
//	begin: step 0 at a time      begun: how late. Then the step, one slice per
//	on the agent's clock         second, and the total, as in a result file
//	                             ready: step 1 can begin
//	…                            end
//	stop: end the step now       as at its end, early
//
// A step begins when every agent is ready. Each makes its share of the step: part of
// the connections and requests, and every n-th of evenly spaced arrivals or a Poisson
// process of an n-th of the rate. The coordinator shows the sum of the seconds as they
// pass. At the end of a step it merges the records and judges the SLO on the sum.
//
// # Failures
//
// The load ends without its coordinator: an agent stops when the connection breaks or
// is silent for silenceMax. It also stops after runMax, and when it is asked to end;
// then it says so.
//
// An agent is lost when its connection breaks or is silent, or when it reports an
// error. The coordinator stops the others, because the step can not be valid any
// more. The step consists of the shares of the others, is GENERATOR_LIMITED, and names
// the lost agent, of which nothing is summed. No other step begins.
//
// An agent opens no file of its host that the order names, loads nothing that its own
// --allow forbids, and logs neither headers nor passwords.
package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"spillway/internal/lab/load"
	"spillway/internal/lab/target"
)

// Limits of a run.
const (
	agentsMax  = 64
	filesMax   = 16 << 20               // bytes of all files of an order
	orderMax   = 2 * filesMax           // bytes of an order: files are base64
	lineMax    = 64 << 10               // bytes of another command
	replyMax   = 4 << 20                // bytes of a reply
	slicesMax  = 200_000                // seconds of a step that the coordinator holds, of all agents
	pingEvery  = time.Second            //
	silenceMax = 10 * time.Second       // without a line, a connection is broken
	joinMax    = 10 * time.Second       // to connect to an agent and for its hello
	busyEvery  = 100 * time.Millisecond // between two requests to a busy agent
	busyTries  = 20
	stopMax    = 10 * time.Second // from stop to the end of an agent's step
	runMax     = 24 * time.Hour   // length of a run
	lead       = 300 * time.Millisecond
	lateMax    = 50 * time.Millisecond // that a step may begin late
)

// command is a line to an agent. One field is set.
type command struct {
	Ping  int64  `json:"ping,omitempty"` // echoed in pong
	Order *order `json:"order,omitempty"`
	Begin *begin `json:"begin,omitempty"`
	Stop  bool   `json:"stop,omitempty"`
}

// order describes an agent's share of a run.
type order struct {
	Options load.Options      `json:"options"`
	Share   target.Part       `json:"share"`
	Files   map[string][]byte `json:"files,omitempty"` // by the names in Options
	// Environment has the variables that headers name.
	Environment map[string]string `json:"environment,omitempty"`
}

// begin tells when a step begins on the agent's clock.
type begin struct {
	Step int       `json:"step"`
	At   time.Time `json:"at"`
}

// Kinds of replies. All others are records of a result file.
const (
	kindHello  = "hello"
	kindPong   = "pong"
	kindReady  = "ready"
	kindBegun  = "begun"
	kindFailed = "failed"
)

// reply is a line of an agent. The field that Kind names is set.
type reply struct {
	Kind   string  `json:"record"`
	Hello  *hello  `json:"hello,omitempty"`
	Pong   *pong   `json:"pong,omitempty"`
	Ready  *ready  `json:"ready,omitempty"`
	Begun  *begun  `json:"begun,omitempty"`
	Failed *failed `json:"failed,omitempty"`
}

type hello struct {
	Tool string `json:"tool"` // version of spillway
}

type pong struct {
	Ping int64     `json:"ping"`
	Now  time.Time `json:"now"`
}

type ready struct {
	Step int `json:"step"`
}

type begun struct {
	Step int     `json:"step"`
	Late float64 `json:"late_seconds"`
}

// failed ends an agent's part in a run.
type failed struct {
	Text  string `json:"text"`
	Usage bool   `json:"usage,omitempty"` // a mistake in the options
}

// clock is a host's wall clock at its start plus monotonic time, so it never steps.
type clock struct {
	wall  time.Time
	start time.Time
}

func newClock(read func() time.Time) clock {
	if read == nil {
		read = time.Now
	}
	return clock{wall: read().Round(0), start: time.Now()}
}

func (c clock) now() time.Time { return c.wall.Add(time.Since(c.start)) }

// encode returns a line.
func encode(v any) ([]byte, error) {
	line, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	return append(line, '\n'), nil
}

// readLine reads a line of at most limit bytes.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return nil, fmt.Errorf("line longer than %d bytes", limit)
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
