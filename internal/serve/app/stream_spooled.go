package app

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"spillway/internal/serve/server"
	"spillway/internal/serve/sqlite"
	"spillway/internal/serve/stream"
)

// spoolPart is the process's one local queue.
type spoolPart struct {
	file    *sqlite.SpoolFile
	spool   atomic.Pointer[stream.Spool] // nil: nothing needs it, or not yet
	closing sync.Once
	closed  error
}

// SpoolPath returns the file of the streams' spool in a data directory.
func SpoolPath(data string) string { return filepath.Join(data, "spool", "spool.db") }

// startSpool opens the spool where a stream goes through it.
func (a *app) startSpool(ctx context.Context) error {
	if !slices.ContainsFunc(a.streams, func(p *streamPart) bool { return p.ack == stream.SpoolAck }) {
		return nil
	}
	file, err := sqlite.OpenSpool(ctx, SpoolPath(a.cfg.Data))
	if err != nil {
		return err
	}
	heads, err := file.Heads(ctx)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	c := a.cfg.Spool
	spool, err := stream.OpenSpool(stream.SpoolConfig{
		Bytes: int64(c.Bytes), QueueBytes: c.QueueBytes, GroupBytes: c.GroupBytes, Log: a.log,
	}, file, heads)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	a.spool.file = file
	a.spool.spool.Store(spool)
	return nil
}

// close makes durable what was accepted. The streams have been closed before. Only the
// first call does anything.
func (s *spoolPart) close() error {
	s.closing.Do(func() {
		if spool := s.spool.Load(); spool != nil {
			spool.Close()
			s.closed = s.file.Close()
		}
	})
	return s.closed
}

// stats returns the spool's figures; none where there is no spool.
func (s *spoolPart) stats() []stream.SpoolStats {
	if spool := s.spool.Load(); spool != nil {
		return []stream.SpoolStats{spool.Stats()}
	}
	return nil
}

// startSpooled starts a stream through the spool. Its statements are checked if the
// database answers: if it does not, records wait in the spool until it does.
func (p *streamPart) startSpooled(ctx context.Context) error {
	if err := p.ping(ctx); err != nil {
		p.log.Warn("the database does not answer: records wait in the spool", "stream", p.name(), "error", err)
	} else if err := p.sink.check(ctx); err != nil {
		return err
	}
	s, err := stream.OpenSpooled(p.cfg, p.schema, p.spool.Load(), p.sink)
	if err != nil {
		return UsageError{err}
	}
	p.running.Store(&running{
		store: func(ctx context.Context, r stream.Request) (server.Receipt, error) {
			outcome, err := s.Commit(ctx, r)
			return server.Receipt{Outcome: outcome, Ack: s.Ack(), Pending: true}, err
		},
		level: s.Ack,
		ready: s.Ready,
		stats: s.Stats,
		close: func(ctx context.Context) error {
			s.Close(ctx)
			return nil
		},
	})
	return nil
}
