package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"spillway/internal/database"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/server"
	"spillway/internal/serve/stream"
)

// streamSink is where a store keeps a stream's records.
type streamSink struct {
	stream.Sink
	check func(context.Context) error // that the database takes its statements
	close func()
}

// streamPart is a stream and what goes around it. It is served once start has
// returned.
type streamPart struct {
	cfg     stream.Config
	ack     string // of the configuration
	schema  *stream.Schema
	sink    streamSink
	ping    func(context.Context) error
	spool   *atomic.Pointer[stream.Spool] // for ack: spool
	log     *slog.Logger
	running atomic.Pointer[running] // nil before start
	unread  atomic.Uint64           // bodies that could not be read
	closing sync.Once
	closed  error
}

// running is a stream that was started, whatever its ack level.
type running struct {
	store server.Store
	level func() string // what an answer is worth, in words
	ready func() error  // why requests should go elsewhere; nil: they need not
	stats func() stream.Stats
	close func(context.Context) error
}

// openStreams makes the streams. It asks no database anything.
func (a *app) openStreams() error {
	a.batches = admin.NewStreamBatches()
	for i := range a.cfg.Streams {
		c := &a.cfg.Streams[i]
		st, err := a.stores.get(a.ctx, cmp.Or(c.Database.Reveal(), a.cfg.Database.Reveal()))
		if err != nil {
			return err
		}
		st.spooled = st.spooled || c.Ack == stream.SpoolAck
		st.needed = st.needed || c.Ack != stream.SpoolAck
		schema, err := stream.NewSchema(streamDefinition(c))
		if err != nil {
			return UsageError{err}
		}
		p := &streamPart{
			cfg: a.streamConfig(c, st), ack: c.Ack, schema: schema, sink: st.stream(schema), ping: st.ping, log: a.log,
			spool: &a.spool.spool,
		}
		a.streams = append(a.streams, p)
		a.streamRoutes = append(a.streamRoutes, server.StreamRoute{
			Paths:   append([]string{c.Path}, c.Aliases...),
			Schema:  schema,
			Limits:  stream.Limits{Bytes: c.BodyBytes, Records: c.RecordsMax, Depth: recordDepth, Fields: recordFields},
			Timeout: c.Timeout,
			Store: func(ctx context.Context, r stream.Request) (server.Receipt, error) {
				return p.running.Load().store(ctx, r)
			},
			Unreadable: func() { p.unread.Add(1) },
		})
	}
	return nil
}

// What one record may hold, whatever the stream.
const (
	recordDepth  = 32
	recordFields = 1000
)

// streamDefinition turns the configuration's stream into the engine's.
func streamDefinition(c *config.Stream) stream.Definition {
	d := stream.Definition{Name: c.Path, Table: c.Table, Extra: c.Extra, Key: c.Key, OrderBy: c.OrderBy}
	if c.Fsync != "on" {
		d.Fsync = stream.Fsync(c.Fsync)
	}
	for _, column := range c.Columns {
		s := stream.Column{
			Name: column.Name, Type: stream.Type(column.Type), Required: column.Required,
			Min: column.Min.Text, Max: column.Max.Text, MaxLength: column.MaxLength,
		}
		if column.Default.Given {
			s.Default = &column.Default.Text
		}
		d.Columns = append(d.Columns, s)
	}
	return d
}

// streamConfig returns a stream's bounds on that store.
func (a *app) streamConfig(c *config.Stream, st *store) stream.Config {
	return stream.Config{
		Committers: a.committers(c, st), BatchRows: c.BatchRows, BatchBytes: c.BatchBytes, QueueRows: c.QueueRows, QueueBytes: c.QueueBytes,
		WaitMax: c.WaitMax, CommitTimeout: c.CommitTimeout, RetryFor: c.RetryFor, KeyTTL: c.KeyTTL,
		Log: a.log, Committed: a.batches.Committed(c.Path),
	}
}

// committers returns how many transactions of a stream may run at once: the streams of a
// database share half of its pool, so that feeds and queries have the other.
func (a *app) committers(c *config.Stream, st *store) int {
	if st.url.Driver == database.SQLite {
		return 1 // it has one writer at a time
	}
	streams := 0
	for i := range a.cfg.Streams {
		if cmp.Or(a.cfg.Streams[i].Database, a.cfg.Database) == cmp.Or(c.Database, a.cfg.Database) {
			streams++
		}
	}
	return min(c.Committers, max(1, a.cfg.Pool.Max/2/streams))
}

// start has the database, which must answer, take the stream's statements, and starts
// the stream. Records that go to the spool need no database for now.
func (p *streamPart) start(ctx context.Context) error {
	if p.ack == stream.SpoolAck {
		return p.startSpooled(ctx)
	}
	if err := p.sink.check(ctx); err != nil {
		return err
	}
	worth, err := p.sink.Durability(ctx)
	if err != nil {
		return fmt.Errorf("stream %s: %w", p.name(), err)
	}
	s, err := stream.Open(p.cfg, p.schema, p.sink)
	if err != nil {
		return UsageError{err}
	}
	d := &directStream{part: p, stream: s, worth: worth}
	ctx, d.endPulse = context.WithCancel(context.WithoutCancel(ctx))
	d.pulsing.Go(func() { d.keepPulse(ctx) })
	r := &running{store: d.commit, level: d.level, ready: d.ready, stats: s.Stats, close: d.close}
	if p.ack == "memory" {
		r.store, r.level = d.accept, func() string { return "memory" }
	}
	p.running.Store(r)
	return nil
}

func (p *streamPart) name() string { return p.schema.Definition().Name }

// close stores what was accepted, and gives up when ctx ends. Only the first call
// does anything.
func (p *streamPart) close(ctx context.Context) error {
	p.closing.Do(func() {
		if r := p.running.Load(); r != nil {
			p.closed = r.close(ctx)
		}
		p.sink.close()
	})
	return p.closed
}

// ready returns why requests should go elsewhere; nil: they need not.
func (p *streamPart) ready() error {
	if r := p.running.Load(); r != nil {
		return r.ready()
	}
	return errors.New("waiting for its database")
}

// closeStreams closes all streams at the same time, within http.drain_timeout, and then
// the spool.
func (a *app) closeStreams() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), a.cfg.HTTP.DrainTimeout)
	defer cancel()
	errs := make([]error, len(a.streams))
	var group sync.WaitGroup
	for i, p := range a.streams {
		group.Go(func() { errs[i] = p.close(ctx) })
	}
	group.Wait()
	return errors.Join(append(errs, a.spool.close())...)
}

// streamStats returns the figures of the streams that are served.
func (a *app) streamStats() []stream.Stats {
	var stats []stream.Stats
	for _, p := range a.streams {
		if r := p.running.Load(); r != nil {
			of := r.stats()
			of.Unreadable = p.unread.Load()
			stats = append(stats, of)
		}
	}
	return stats
}

// streamAcks returns the levels at which they acknowledge.
func (a *app) streamAcks() []admin.StreamAck {
	var acks []admin.StreamAck
	for _, p := range a.streams {
		if r := p.running.Load(); r != nil {
			acks = append(acks, admin.StreamAck{Stream: p.name(), Level: r.level()})
		}
	}
	return acks
}

// explainStream adds what to run where the freight app's tables are those of an
// earlier release.
func (a *app) explainStream(err error) error {
	if !a.builtIn || a.ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w; tables that are missing are made by: spillway seed freight --upgrade --database URL", err)
}
