package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/load"
	"spillway/internal/lab/peer"
	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// Agents names the agents of a load.
type Agents struct {
	Addresses []string // HOST:PORT or https://HOST:PORT
	Token     string   // "" for agents on this host
	CA        string   // file with the certificates that https:// agents may be signed by; "": those of the system
}

// Group makes a load with several agents. It is a load.Generator. The caller must
// call Close.
type Group struct {
	options load.Options
	agents  Agents
	tool    string // version of this spillway
	client  *http.Client
	clock   clock

	remotes []*remote
	events  chan event
	cancel  context.CancelFunc // ends all exchanges
	running sync.WaitGroup

	config *load.Config // of the whole load
	start  time.Time    // from which the starts of steps count, on clock
	stop   bool         // the agents were told to stop
	full   bool         // because a step was too long
	began  time.Time    // the current step, on clock
	shown  int          // seconds of the current step that were shown
}

// NewGroup returns a Group for the options. Its errors are usage errors.
func NewGroup(agents Agents, options load.Options) (*Group, error) {
	if len(agents.Addresses) > agentsMax {
		return nil, exit.UsageError(fmt.Errorf("--agents: %d agents; the limit is %d", len(agents.Addresses), agentsMax))
	}
	transport := peer.NewTransport()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if agents.CA != "" {
		pem, err := os.ReadFile(agents.CA)
		if err != nil {
			return nil, exit.UsageError(fmt.Errorf("--agents-ca: %w", err))
		}
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, exit.UsageError(fmt.Errorf("--agents-ca %s: it has no certificate in PEM form", agents.CA))
		}
	}
	g := &Group{
		options: options, agents: agents, client: &http.Client{Transport: transport, CheckRedirect: peer.NoRedirect},
		clock: newClock(nil), events: make(chan event, len(agents.Addresses)), cancel: func() {},
	}
	for _, address := range agents.Addresses {
		r, err := newRemote(address, agents.CA != "")
		if err != nil {
			return nil, exit.UsageError(err)
		}
		for _, other := range g.remotes {
			if other.name == r.name {
				return nil, exit.UsageError(fmt.Errorf("--agents names %s twice", r.name))
			}
		}
		g.remotes = append(g.remotes, r)
	}
	return g, nil
}

func newRemote(address string, secure bool) (*remote, error) {
	scheme, name, found := strings.Cut(strings.TrimSuffix(address, "/"), "://")
	if !found {
		scheme, name = "http", address
		if secure {
			scheme = "https"
		}
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil || host == "" || port == "" || strings.ContainsAny(name, "/@?#") || scheme != "http" && scheme != "https" {
		return nil, fmt.Errorf("--agents %q: write HOST:PORT or https://HOST:PORT, as the agent prints it", result.RedactURL(address))
	}
	return &remote{
		name: name, base: scheme + "://" + name, commands: make(chan []byte, 4), close: func() {},
		records: result.NewAssembler(),
	}, nil
}

// Close ends the exchanges with the agents.
func (g *Group) Close() error {
	g.cancel()
	g.running.Wait()
	g.client.CloseIdleConnections()
	return nil
}

// Prepare joins the agents, compares the clocks, and gives each its share.
func (g *Group) Prepare(ctx context.Context, header *result.Header) (steps int, err error) {
	g.tool = header.Tool
	sent := order{Files: make(map[string][]byte), Environment: make(map[string]string)}
	if g.config, err = g.options.Parse(sent.record()); err != nil {
		return 0, err
	}
	if err := g.check(sent.Files); err != nil {
		return 0, exit.UsageError(err)
	}
	if err := g.join(ctx); err != nil {
		return 0, err
	}
	if err := g.order(sent); err != nil {
		return 0, err
	}
	if err := g.await(ctx, func(r *remote) bool { return r.header }); err != nil {
		return 0, err
	}
	g.describe(header)
	return len(g.config.Steps), nil
}

// record reads local files and variables, and adds those that are used to the order.
func (o *order) record() load.Inputs {
	local := load.LocalInputs()
	files := func(name string) (io.ReadCloser, error) {
		if content, ok := o.Files[name]; ok {
			return io.NopCloser(bytes.NewReader(content)), nil
		}
		file, err := local.Files.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		content, err := io.ReadAll(io.LimitReader(file, filesMax+1))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		o.Files[name] = content
		return io.NopCloser(bytes.NewReader(content)), nil
	}
	environment := func(name string) (string, bool) {
		value, set := local.Environment(name)
		if set {
			o.Environment[name] = value
		}
		return value, set
	}
	return load.Inputs{Files: files, Environment: environment, Sent: true}
}

// check rejects loads that can not be shared.
func (g *Group) check(files map[string][]byte) error {
	sum := 0
	for _, content := range files {
		sum += len(content)
	}
	if sum > filesMax {
		return fmt.Errorf("load --agents: the files of the requests are larger than %d MiB, which is the limit for sending them to agents",
			filesMax>>20)
	}
	n := len(g.remotes)
	for i := range g.config.Steps {
		if seconds := g.config.Steps[i].Duration.Seconds(); seconds*float64(n) > slicesMax {
			return fmt.Errorf("load --agents: a step of %v is too long for %d agents; the limit is %d s", g.config.Steps[i].Duration, n, slicesMax/n)
		}
	}
	_, err := load.Split(g.config.Steps, target.Part{Of: n})
	return err
}

// join connects to every agent and compares the clocks.
func (g *Group) join(ctx context.Context) error {
	var life context.Context // longer than ctx, so that the last records arrive after an interrupt
	life, g.cancel = context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, g.cancel)
	defer unhook()
	errs := make([]error, len(g.remotes))
	var dialing sync.WaitGroup
	for i, r := range g.remotes {
		dialing.Go(func() { errs[i] = r.dial(life, g) })
	}
	dialing.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
	}
	for _, r := range g.remotes {
		r.send(pingLine(g.clock), g.clock.now())
	}
	return g.await(ctx, func(r *remote) bool { return r.offsets.Len() == peer.Exchanges })
}

// order gives every agent its share.
func (g *Group) order(sent order) error {
	options := g.options
	options.Output = load.Output{SLO: options.SLO, RunID: options.RunID}
	for i, r := range g.remotes {
		options.RandomSeed = rand.New(rand.NewPCG(g.config.Seed, uint64(i))).Uint64()>>12 | 1
		sent.Options, sent.Share = options, target.Part{Number: i, Of: len(g.remotes)}
		line, err := encode(command{Order: &sent})
		if err != nil {
			return err
		}
		r.send(line, g.clock.now())
	}
	return nil
}

// describe completes the header of the run.
func (g *Group) describe(header *result.Header) {
	header.Seed = g.config.Seed
	var names, clocks []string
	for _, r := range g.remotes {
		part := result.Part{Header: r.records.Run().Header, Agent: r.name}
		ahead, uncertainty := r.offsets.Best()
		part.ClockOffset, part.ClockError = ahead.Seconds(), uncertainty.Seconds()
		header.Parts = append(header.Parts, part)
		names = append(names, r.name)
		for _, note := range part.Header.Notes {
			header.Notes = append(header.Notes, fmt.Sprintf("agent %s: %s", r.name, note))
		}
		clocks = append(clocks, fmt.Sprintf("%s by %v ± %v", r.name, ahead.Round(time.Microsecond), uncertainty.Round(time.Microsecond)))
	}
	header.Machine = result.Machine{Host: strings.Join(names, ", "), TCPTWReuse: -1}
	header.Notes = append(header.Notes, fmt.Sprintf("%d agents made the load; their clocks were ahead of this host's: %s. Start times "+
		"are corrected for it.", len(names), strings.Join(clocks, ", ")))
}

// await takes events until done holds for every agent. It returns an error if an
// agent is lost.
func (g *Group) await(ctx context.Context, done func(*remote) bool) error {
	for {
		waiting := false
		for _, r := range g.remotes {
			if r.lost != nil {
				err := fmt.Errorf("load: agent %s %s", r.name, r.lost.text)
				if r.lost.usage {
					return exit.UsageError(err)
				}
				return err
			}
			waiting = waiting || !done(r)
		}
		if !waiting {
			return nil
		}
		select {
		case e := <-g.events:
			g.take(e)
		case <-ctx.Done():
			return errors.New("load: interrupted before the load began")
		}
	}
}

func (g *Group) take(e event) { e.from.take(e, g.clock, g.tool) }
