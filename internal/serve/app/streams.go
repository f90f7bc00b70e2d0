package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// runningStream is a stream that was started, at any ack level.
type runningStream interface {
	server.Stream
	Ack() string
	Ready() error
	Stats() stream.Stats
	Close(ctx context.Context) error
}

// streamPart is a configured stream.
type streamPart struct {
	*part
	route    server.StreamRoute
	cfg      stream.Config
	ack      string
	unknown  string // as unknown_params
	schema   *stream.Schema
	database streamDatabase
	log      *slog.Logger
	running  atomic.Pointer[runningStream] // nil before start
	unread   atomic.Uint64                 // bodies that could not be parsed
	closing  sync.Once
	closed   error
}

// openStreams returns the parts of the streams.
func (a *app) openStreams() error {
	a.batches = admin.NewStreamBatches()
	for i := range a.cfg.Streams {
		c := &a.cfg.Streams[i]
		st, err := a.stores.get(a.ctx, cmp.Or(c.Database, a.cfg.Database))
		if err != nil {
			return err
		}
		d := streamDefinition(c)
		d.Special, d.Loose = st.url.Driver != database.MySQL, st.url.Driver != database.Postgres
		schema, err := stream.NewSchema(d)
		if err != nil {
			return exit.UsageError(err)
		}
		p := &streamPart{
			cfg: a.streamConfig(c, st), ack: c.Ack, unknown: c.Unknown, schema: schema, log: a.log, database: st.stream(schema),
		}
		paths := append([]string{c.Path}, c.Aliases...)
		p.part = newPart("POST "+c.Path, st, server.DownRoute{Writes: paths}, func(ctx context.Context) error { return a.startStream(ctx, p) })
		p.alone = c.Ack == stream.AckSpool
		p.route = server.StreamRoute{
			Paths:      paths,
			Access:     accessOf(c.Auth),
			Schema:     schema,
			Limits:     stream.Limits{Bytes: c.BodyBytes, Records: c.RecordsMax, Depth: recordDepth, Fields: recordFields},
			Timeout:    c.Timeout,
			Stream:     p,
			Unreadable: func() { p.unread.Add(1) },
		}
		a.streams = append(a.streams, p)
	}
	return nil
}

// The limits of one record of any stream.
const (
	recordDepth  = 32
	recordFields = 1000
)

// streamDefinition turns the configuration's stream into the engine's.
func streamDefinition(c *config.Stream) stream.Definition {
	d := stream.Definition{
		Name: c.Path, Table: c.Table, Extra: c.Extra, Key: c.Key, OrderBy: c.OrderBy,
		AnyKeyCollation: c.KeyCollation == "accept", Spooled: c.Ack == stream.AckSpool,
	}
	if c.SkippedRows == stream.SkippedAccept {
		d.SkippedRows = stream.SkippedAccept
	}
	if c.Fsync != "on" {
		d.Fsync = stream.Fsync(c.Fsync)
	}
	for _, column := range c.Columns {
		s := stream.Column{
			Name: column.Name, Type: stream.Type(column.Type), Required: column.Required,
			Min: column.Min.Text, Max: column.Max.Text, MaxLength: column.MaxLength, Claim: column.Claim, Format: column.Format,
			Round: column.Round,
		}
		if column.Default.Given {
			s.Default = &column.Default.Text
		}
		d.Columns = append(d.Columns, s)
	}
	return d
}

// streamConfig returns the limits of a stream on a store.
func (a *app) streamConfig(c *config.Stream, st *store) stream.Config {
	most := slices.MaxFunc(a.cfg.Streams, func(a, b config.Stream) int { return cmp.Compare(a.KeyTTL, b.KeyTTL) })
	return stream.Config{
		Committers: a.committers(c, st), BatchRows: c.BatchRows, BatchBytes: c.BatchBytes, QueueRows: c.QueueRows, QueueBytes: c.QueueBytes,
		WaitMax: c.WaitMax, CommitTimeout: c.CommitTimeout, RetryFor: c.RetryFor, KeyTTL: c.KeyTTL, KeyTTLMost: most.KeyTTL,
		SpoolMaxAge: a.cfg.Spool.MaxAge,
		Log:         a.log, Memory: c.Ack == stream.AckMemory, Committed: a.batches.Committed(c.Path),
	}
}

// committers returns how many transactions of a stream may run at once. The streams of a
// database share half of its pool, but each has at least one. Feeds and queries have the rest.
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

// startStream starts a stream, and opens the spool if it is the first that needs it.
func (a *app) startStream(ctx context.Context, p *streamPart) error {
	if p.ack == stream.AckSpool {
		if err := a.openSpool(ctx); err != nil {
			return err
		}
	}
	running, err := p.start(ctx, a.spool.Load())
	if err != nil {
		if a.options.File == "" && a.ctx.Err() == nil {
			err = fmt.Errorf("%w; run spillway seed freight --database URL to create missing tables", err)
		}
		return err
	}
	p.running.Store(&running)
	return nil
}

// openSpool opens the spool, unless it is open.
func (a *app) openSpool(ctx context.Context) error {
	a.openingSpool.Lock()
	defer a.openingSpool.Unlock()
	if a.spool.Load() != nil {
		return nil
	}
	c := a.cfg.Spool
	s, err := spool.Open(ctx, spool.Path(a.cfg.Data), spool.Config{
		Bytes: int64(c.Bytes), QueueBytes: c.QueueBytes, GroupBytes: c.GroupBytes, Shares: a.cfg.SpoolShares(), Log: a.log,
		Admin: a.cfg.Admin.Listen,
	})
	if err != nil {
		return err
	}
	a.spool.Store(s)
	return nil
}

// start starts a stream. Its database must answer, unless its records go to the spool.
func (p *streamPart) start(ctx context.Context, local *spool.Spool) (runningStream, error) {
	if p.ack == stream.AckSpool {
		if err := p.database.Ping(ctx); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			p.log.Warn("database does not answer: records wait in the spool", "stream", p.stream(), "error", err)
		} else if err := p.database.Check(ctx); err != nil {
			return nil, err
		}
		return stream.OpenSpooled(p.cfg, p.schema, local, p.database), nil
	}
	s := stream.Open(p.cfg, p.schema, p.database)
	if err := s.Start(ctx, p.database); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// stream returns the stream's name.
func (p *streamPart) stream() string { return p.schema.Definition().Name }

// Begin implements server.Stream.
func (p *streamPart) Begin(ctx context.Context, r stream.Request, ready func() func()) (stream.Receipt, stream.Waiting, error) {
	return (*p.running.Load()).Begin(ctx, r, ready)
}

// close stores what was accepted, and gives up when ctx ends. Only the first call
// does anything.
func (p *streamPart) close(ctx context.Context) error {
	p.closing.Do(func() {
		p.stop()
		if running := p.running.Load(); running != nil {
			p.closed = (*running).Close(ctx)
		}
		if err := p.database.Close(); err != nil {
			p.log.Warn("stream cannot be closed", "stream", p.stream(), "error", err)
		}
	})
	return p.closed
}

// ready returns why the stream does not accept records; nil if it does. If the error wraps
// queue.ErrNearlyFull, it still does.
func (p *streamPart) ready() error {
	if err := p.failure(); err != nil {
		return err
	}
	return (*p.running.Load()).Ready()
}

// closeStreams closes all streams at the same time, within http.drain_timeout, and then
// the spool. Only the first call does anything.
func (a *app) closeStreams() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), a.cfg.HTTP.DrainTimeout)
	defer cancel()
	errs := make([]error, len(a.streams))
	var group sync.WaitGroup
	group.Go(func() { a.closeLeftovers(ctx) })
	for i, p := range a.streams {
		group.Go(func() { errs[i] = p.close(ctx) })
	}
	group.Wait()
	a.closeSpool.Do(func() {
		if s := a.spool.Load(); s != nil {
			errs = append(errs, s.Close())
		}
	})
	return errors.Join(errs...)
}

// logStopped logs that every request was answered, and the records of each stream that wait
// in the spool for the next start.
func (a *app) logStopped() {
	var waiting []any
	for _, s := range a.spoolStats() {
		for _, name := range s.Names {
			if name.Rows > 0 {
				waiting = append(waiting, slog.Int64(name.Name, name.Rows))
			}
		}
	}
	if len(waiting) > 0 {
		a.log.Info("stopped: every accepted request was answered; records wait in the spool", slog.Group("waiting", waiting...))
		return
	}
	a.log.Info("stopped: every accepted request was answered, every accepted record stored")
}

// spoolStats returns the metrics of the spool; none if there is no spool.
func (a *app) spoolStats() []spool.Stats {
	if s := a.spool.Load(); s != nil {
		return []spool.Stats{s.Stats()}
	}
	return nil
}

// streamStats returns the metrics of the streams that are served.
func (a *app) streamStats() []stream.Stats {
	var stats []stream.Stats
	for _, p := range a.streams {
		if running := p.running.Load(); running != nil {
			of := (*running).Stats()
			of.Unreadable = p.unread.Load()
			of.Derive((*running).Ack())
			stats = append(stats, of)
		}
	}
	return stats
}

// streamAcks returns the levels at which the streams acknowledge.
func (a *app) streamAcks() []admin.StreamAck {
	var acks []admin.StreamAck
	for _, p := range a.streams {
		if running := p.running.Load(); running != nil {
			acks = append(acks, admin.StreamAck{Stream: p.stream(), Level: (*running).Ack()})
		}
	}
	return acks
}
