package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// session is one run of an agent.
type session struct {
	server *server
	cancel context.CancelFunc // ends the run
	out    *output
	orders chan *order
	begins chan begin
	gone   chan struct{} // closed when there is no more to read
	broken atomic.Bool   // there was no more to read
	cut    bool          // before the load had ended
}

// read executes the commands of the coordinator. The run ends with it.
func (s *session) read(body io.Reader, controller *http.ResponseController) {
	defer close(s.gone)
	defer s.cancel()
	in := bufio.NewReader(deadlineReader{body, controller})
	limit := orderMax
	for {
		line, err := readLine(in, limit)
		if err != nil {
			s.broken.Store(true)
			s.out.fail("did not hear from the coordinator any more", false) // before the records of the step that ends early
			return
		}
		var c command
		if json.Unmarshal(line, &c) != nil {
			s.out.fail("it was sent an invalid command", false)
			return
		}
		switch {
		case c.Ping != 0:
			s.out.reply(&reply{Kind: kindPong, Pong: &pong{Ping: c.Ping, Now: s.server.clock.now()}})
		case c.Order != nil:
			limit = lineMax
			offer(s.orders, c.Order)
		case c.Begin != nil:
			offer(s.begins, *c.Begin)
		case c.Stop:
			s.cancel()
		}
	}
}

// offer drops a value for which there is no room: a second order or begin.
func offer[T any](c chan T, value T) {
	select {
	case c <- value:
	default:
	}
}

// deadlineReader gives every read silenceMax.
type deadlineReader struct {
	in         io.Reader
	controller *http.ResponseController
}

func (r deadlineReader) Read(b []byte) (int, error) {
	if err := r.controller.SetReadDeadline(time.Now().Add(silenceMax)); err != nil {
		return 0, err
	}
	return r.in.Read(b)
}

// serve makes the load of the order until ctx ends.
func (s *session) serve(ctx context.Context) {
	s.out.reply(&reply{Kind: kindHello, Hello: &hello{Tool: s.server.config.Header.Tool}})
	unhook := context.AfterFunc(s.server.ctx, func() {
		s.out.fail("was stopped", false) // before the records of the step that ends early
		s.cancel()
	})
	defer unhook()
	ctx, stop := context.WithTimeout(ctx, runMax)
	defer stop()
	var o *order
	select {
	case o = <-s.orders:
	case <-ctx.Done():
		return
	}
	log := s.server.config.Log.With("target", result.RedactURL(o.Options.Target))
	err := s.execute(ctx, o)
	switch {
	case s.cut || err != nil && s.broken.Load():
		log.Warn("run ended because the coordinator does not answer any more")
	case err != nil:
		log.Warn("run failed", "error", err)
		s.out.fail("failed: "+err.Error(), exit.Code(err) == exit.Usage)
	default:
		log.Info("run ended")
	}
}

// execute makes the load and streams its records.
func (s *session) execute(ctx context.Context, o *order) error {
	options := o.Options
	options.Allow, options.ReportInterval = s.server.config.Allow, time.Second
	inputs := o.inputs()
	if _, err := options.Parse(inputs); err != nil { // refuses targets of this host's files and sockets
		return err
	}
	config, err := options.Prepare(ctx, inputs, o.Share)
	if err != nil {
		return err
	}
	s.server.config.Log.Info("run begins", "target", result.RedactURL(options.Target), "share", o.Share.Number+1, "of", o.Share.Of)
	header := s.server.config.Header
	header.StartedAt, header.Seed, header.Run = s.server.clock.now(), options.RandomSeed, options.RunID
	header.Target, header.SLO = result.RedactURL(options.Target), options.SLO
	header.Notes = config.Target.Notes()
	records := result.NewWriter(s.out)
	if err := records.WriteHeader(header); err != nil {
		return err
	}
	config.Begin = func(ctx context.Context, step int) (int64, error) { return s.begin(ctx, config.Clock, step) }
	end := result.End{Reason: result.Finished}
	interrupted, err := load.Run(ctx, *config, load.Listener{
		Step:  func(step *result.Step) error { return records.WriteStep(*step) },
		Slice: records.WriteSlice,
		Total: func(total *result.Total) error {
			end.Elapsed += total.Elapsed
			return records.WriteTotal(total)
		},
		Message: func(text string) { s.server.config.Log.Info(text) },
	})
	s.cut = s.broken.Load() // later it is the end of the exchange
	switch {
	case interrupted && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("the run took longer than %v", runMax)
	case interrupted:
		end.Reason = result.Interrupted
	case err != nil:
		return err
	}
	return records.WriteEnd(end)
}

// begin waits until a step begins, and returns the reading of c at which it does.
func (s *session) begin(ctx context.Context, c target.Clock, step int) (int64, error) {
	s.out.reply(&reply{Kind: kindReady, Ready: &ready{Step: step}})
	var told begin
	select {
	case told = <-s.begins:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if told.Step != step {
		return 0, fmt.Errorf("step %d was to begin while step %d was ready", told.Step, step)
	}
	at := c.Now() + int64(told.At.Sub(s.server.clock.now()))
	if err := awaitReading(ctx, c, at); err != nil {
		return 0, err
	}
	late := c.Now() - at
	s.out.reply(&reply{Kind: kindBegun, Begun: &begun{Step: step, Late: time.Duration(late).Seconds()}})
	return at, nil
}

// spin is how long awaitReading does not sleep, because a timer can be late.
const spin = time.Millisecond

func awaitReading(ctx context.Context, c target.Clock, at int64) error {
	timer := time.NewTimer(time.Duration(at-c.Now()) - spin)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	for c.Now() < at {
		runtime.Gosched()
	}
	return nil
}

// inputs are the files and variables that came with the order, and no others.
func (o *order) inputs() load.Inputs {
	return load.Inputs{
		Sent: true,
		Files: func(name string) (io.ReadCloser, error) {
			content, ok := o.Files[name]
			if !ok {
				return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("the coordinator did not send this file")}
			}
			return io.NopCloser(bytes.NewReader(content)), nil
		},
		Environment: func(name string) (string, bool) {
			value, set := o.Environment[name]
			return value, set
		},
	}
}

// output writes lines to the coordinator. It is safe for concurrent use. After an
// error it drops them; the session then ends because there is nothing to read.
type output struct {
	mu         sync.Mutex
	writer     http.ResponseWriter
	controller *http.ResponseController
	err        error
	failed     bool
}

// Write writes one line.
func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = o.writeLocked(line)
	}
	return len(line), o.err
}

func (o *output) writeLocked(line []byte) error {
	if err := o.controller.SetWriteDeadline(time.Now().Add(silenceMax)); err != nil {
		return err
	}
	if _, err := o.writer.Write(line); err != nil {
		return err
	}
	return o.controller.Flush()
}

func (o *output) reply(r *reply) {
	line, err := encode(r)
	if err != nil {
		panic("bug: " + err.Error())
	}
	_, _ = o.Write(line)
}

// fail says why the agent leaves the run, once.
func (o *output) fail(text string, usage bool) {
	o.mu.Lock()
	said := o.failed
	o.failed = true
	o.mu.Unlock()
	if !said {
		o.reply(&reply{Kind: kindFailed, Failed: &failed{Text: text, Usage: usage}})
	}
}
