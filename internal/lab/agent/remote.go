package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/peer"
	"spillway/internal/lab/result"
)

// remote is the coordinator's end of the exchange with one agent. The fields below
// share belong to the goroutine of the Group.
type remote struct {
	name     string // HOST:PORT
	base     string // URL without path
	commands chan []byte
	close    func()

	offsets  peer.Offsets
	records  *result.Assembler
	header   bool // has come
	ready    int  // steps that it is or was ready for
	finished int  // steps whose total has come
	late     time.Duration
	ended    bool
	lost     *loss
}

// loss is why an agent does not make its share any more.
type loss struct {
	text  string // without the agent's name
	usage bool
	at    time.Time
}

// event is a line of an agent, or the end of its lines.
type event struct {
	from *remote
	line []byte
	at   time.Time
	err  error
}

// dial sends the request to an agent and starts to exchange lines. All goroutines
// end with life. An agent that is busy may be about to end the run before.
func (r *remote) dial(life context.Context, g *Group) error {
	again := time.NewTicker(busyEvery)
	defer again.Stop()
	for tries := 1; ; tries++ {
		err := r.request(life, g)
		if err == nil || !errors.Is(err, errBusy) || tries == busyTries {
			return err
		}
		select {
		case <-again.C:
		case <-life.Done():
			return err
		}
	}
}

func (r *remote) request(life context.Context, g *Group) error {
	ctx, cancel := context.WithCancel(life)
	patience := time.AfterFunc(joinMax, cancel)
	in, out := io.Pipe()
	context.AfterFunc(ctx, func() { in.CloseWithError(context.Canceled) }) // Do waits for the end of the body
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/run", in)
	if err != nil {
		cancel()
		return exit.UsageError(fmt.Errorf("agent %s: %w", r.name, err))
	}
	if g.agents.Token != "" {
		request.Header.Set("Authorization", "Bearer "+g.agents.Token)
	}
	response, err := g.client.Do(request)
	if err == nil && response.StatusCode != http.StatusOK {
		err = refusal(response, g.agents.Token)
	}
	if !patience.Stop() {
		err = fmt.Errorf("it does not answer within %v", joinMax)
	}
	if err != nil {
		cancel()
		return fmt.Errorf("agent %s: %w", r.name, err)
	}
	closing := make(chan struct{})
	r.close = sync.OnceFunc(func() { close(closing) })
	g.running.Go(func() {
		defer out.Close()
		r.write(ctx, out, g.clock, closing)
	})
	g.running.Go(func() {
		defer cancel()
		defer response.Body.Close()
		r.read(life, cancel, response.Body, g.clock, g.events)
	})
	return nil
}

// errBusy is the refusal of an agent that makes another load.
var errBusy = errors.New("it is busy: it makes the load of another run")

// refusal says why an agent does not take the run.
func refusal(response *http.Response, token string) error {
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
	switch {
	case response.StatusCode == http.StatusUnauthorized && token == "":
		return exit.UsageError(errors.New("it requires the token that it was started with: give --agents-token"))
	case response.StatusCode == http.StatusUnauthorized:
		return exit.UsageError(errors.New("it rejects the token: give the one that it was started with"))
	case response.StatusCode == http.StatusConflict:
		return errBusy
	}
	return fmt.Errorf("it answers %s: %s", response.Status, peer.Printable(strings.TrimSpace(string(text))))
}

// write sends commands, and a ping every pingEvery.
func (r *remote) write(ctx context.Context, out io.Writer, c clock, closing <-chan struct{}) {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		var line []byte
		select {
		case <-ctx.Done():
			return
		case <-closing:
			return
		case line = <-r.commands:
		case <-ticker.C:
			line = pingLine(c)
		}
		if _, err := out.Write(line); err != nil {
			return
		}
	}
}

// pingLine is a ping with the time since the start of the coordinator's clock.
func pingLine(c clock) []byte {
	return fmt.Appendf(nil, "{\"ping\":%d}\n", max(c.now().Sub(c.wall), 1))
}

// read passes the lines of the agent on until they end. cancel breaks the connection.
func (r *remote) read(life context.Context, cancel func(), body io.Reader, c clock, events chan<- event) {
	silence := time.AfterFunc(silenceMax, cancel)
	defer silence.Stop()
	in := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := readLine(in, replyMax)
		silence.Stop()
		select {
		case events <- event{from: r, line: line, at: c.now(), err: err}:
		case <-life.Done():
			return
		}
		if err != nil {
			return
		}
		silence.Reset(silenceMax)
	}
}

// send queues a command. An agent that does not read them is lost.
func (r *remote) send(line []byte, now time.Time) {
	select {
	case r.commands <- line:
	default:
		r.lose("does not read its commands", false, now)
	}
}

// lose notes the first reason for which the agent is lost.
func (r *remote) lose(text string, usage bool, now time.Time) {
	if r.lost == nil && !r.ended {
		r.lost = &loss{text: text, usage: usage, at: now}
	}
}

// step returns step i as far as it has come; nil if it has not begun.
func (r *remote) step(i int) *result.StepRun {
	if steps := r.records.Run().Steps; i < len(steps) {
		return &steps[i]
	}
	return nil
}

// take takes an event.
func (r *remote) take(e event, c clock, tool string) {
	if e.err != nil {
		r.lose("stopped answering", false, e.at)
		return
	}
	var in reply
	if err := json.Unmarshal(e.line, &in); err != nil {
		r.lose("sent an invalid line", false, e.at)
		return
	}
	switch {
	case in.Hello != nil:
		if in.Hello.Tool != tool {
			r.lose(fmt.Sprintf("is spillway %s, and this is %s: install the same version", peer.Printable(in.Hello.Tool), tool), true, e.at)
		}
	case in.Pong != nil:
		r.offsets.Add(peer.Measure(c.wall.Add(time.Duration(in.Pong.Ping)), e.at, in.Pong.Now))
		if r.offsets.Len() < peer.Exchanges {
			r.send(pingLine(c), e.at)
		}
	case in.Ready != nil:
		r.ready = in.Ready.Step + 1
	case in.Begun != nil:
		r.late = time.Duration(in.Begun.Late * float64(time.Second))
	case in.Failed != nil:
		r.lose(peer.Printable(in.Failed.Text), in.Failed.Usage, e.at)
	default:
		r.record(in.Kind, e)
	}
}

// record adds a record of the result.
func (r *remote) record(kind string, e event) {
	if err := r.records.Add(e.line); err != nil {
		r.lose("sent an invalid record: "+err.Error(), false, e.at)
		return
	}
	switch kind {
	case result.KindHeader:
		r.header = true
	case result.KindTotal:
		if r.lost == nil {
			r.finished = len(r.records.Run().Steps)
		}
	case result.KindEnd:
		r.ended = true
		r.close()
	}
}
