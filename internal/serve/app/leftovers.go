package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// leftover drains a name of the spool whose stream has another ack now, or another path.
type leftover struct {
	*stream.Spooled
	sink streamDatabase
}

// openEvery is the time between two attempts to open a spool that no stream needs for new records.
const openEvery = 5 * time.Second

// drainLeftovers opens the spool if there is one, until ctx ends, and drains what it has of streams
// that have another ack or path now. It names what no stream drains.
func (a *app) drainLeftovers(ctx context.Context) {
	if _, err := os.Stat(spool.Path(a.cfg.Data)); errors.Is(err, fs.ErrNotExist) {
		return
	}
	var quiet failureLog
	for ctx.Err() == nil {
		err := a.openSpool(ctx)
		if err == nil {
			a.adopt(ctx, true)
			return
		}
		if quiet.due(err, time.Now()) && ctx.Err() == nil {
			a.log.Warn("spool cannot be opened; its records wait", "error", err)
		}
		queue.Sleep(ctx, openEvery)
	}
}

// adopt starts the drains of the names that streams have left in the spool, unless they run. With
// warn, it logs the names that no stream drains.
func (a *app) adopt(ctx context.Context, warn bool) {
	a.openingSpool.Lock()
	defer a.openingSpool.Unlock()
	s := a.spool.Load()
	if s == nil || a.leftovers == nil || ctx.Err() != nil {
		return
	}
	for _, n := range s.Stats().Names {
		p := a.drainer(n)
		switch {
		case n.Groups == 0 && n.Dead == 0, a.leftovers[n.Name] != nil, p != nil && p.ack == stream.AckSpool && p.stream() == n.Name:
		case p == nil && !warn:
		case p == nil:
			a.log.Warn("records in the spool belong to no stream: give them to one with spillway spool move", "name", n.Name,
				"records", n.Rows, "dead_letters", n.Dead)
		default:
			a.log.Info("draining what an earlier configuration has left in the spool", "name", n.Name, "stream", p.stream(), "records", n.Rows)
			d := p.schema.Definition()
			d.Spooled = true
			schema, err := stream.NewSchema(d)
			if err != nil {
				panic("bug: a definition that was valid: " + err.Error())
			}
			sink := p.store.stream(schema)
			a.leftovers[n.Name] = &leftover{stream.OpenDrain(p.cfg, schema, s, n.Name, sink), sink}
		}
	}
}

// drainer returns the stream that drains a name of the spool: the one with that path, or with the
// path that the name was moved to; nil: none.
func (a *app) drainer(n spool.NameStats) *streamPart {
	for _, path := range []string{n.Name, n.MovedTo} {
		if i := slices.IndexFunc(a.streams, func(p *streamPart) bool { return slices.Contains(p.route.Paths, path) }); i >= 0 {
			return a.streams[i]
		}
	}
	return nil
}

// closeLeftovers ends the drains. Nothing more is adopted.
func (a *app) closeLeftovers(ctx context.Context) {
	a.openingSpool.Lock()
	left := a.leftovers
	a.leftovers = nil
	a.openingSpool.Unlock()
	for name, l := range left {
		_ = l.Close(ctx)
		if err := l.sink.Close(); err != nil {
			a.log.Warn("stream cannot be closed", "stream", name, "error", err)
		}
	}
}

// leftoverChecks are the parts of readiness for what is left in the spool. Requests do not depend
// on them.
func (a *app) leftoverChecks() []readyCheck {
	a.openingSpool.Lock()
	defer a.openingSpool.Unlock()
	var checks []readyCheck
	for _, s := range a.spoolStats() {
		for _, n := range s.Names {
			l := a.leftovers[n.Name]
			if l == nil && (a.drainer(n) != nil || n.Groups == 0 && n.Dead == 0) {
				continue
			}
			part := admin.Part{Name: "spool " + n.Name, Group: admin.Writes, Spare: true}
			checks = append(checks, readyCheck{part, func(time.Time) (bool, error) {
				if l != nil {
					return tolerable(l.Ready())
				}
				why := "%d records and %d dead letters belong to no stream: give them to one with spillway spool move"
				return true, &queue.Unready{Why: fmt.Errorf(why, n.Rows, n.Dead)}
			}})
		}
	}
	return checks
}

// orderSpool executes an order on the streams' spool.
func (a *app) orderSpool(ctx context.Context, s *spool.Spool, o spool.Order) (spool.Done, error) {
	if o.Work == spool.WorkMove && a.drainer(spool.NameStats{Name: o.To}) == nil {
		return spool.Done{}, fmt.Errorf("%w: there is no stream %s", spool.ErrOrder, o.To)
	}
	done, err := s.Do(ctx, o)
	a.adopt(a.ctx, o.Waiting)
	return done, err
}

// orderEvents executes an order on the popups' event log.
func orderEvents(ctx context.Context, s *spool.Spool, o spool.Order) (spool.Done, error) {
	if o.Work == spool.WorkMove {
		return spool.Done{}, fmt.Errorf("%w: events belong to the popups", spool.ErrOrder)
	}
	return s.Do(ctx, o)
}

// The names of the spools in the admin API.
const (
	streamSpool = "streams"
	popupSpool  = "popups"
)

// SpoolOptions say which spool a command is about.
type SpoolOptions struct {
	Config string `help:"Configuration (YAML) of the server, with its data directory, and the address and the token of its admin listener." placeholder:"FILE"`
	Data   string `help:"Data directory, as of serve; default: the one in the configuration, or spillway-data." placeholder:"DIR"`
	Admin  string `help:"Admin listener of the server, host:port or unix:PATH, if the spool is on another machine."`
	Popups bool   `help:"The popups' event log, popups.spool, instead of the streams' spool."`
}

// SpoolCommand returns the subcommands of spillway spool, and the directory of the file. If a server
// has the file open, they ask that server.
func SpoolCommand(o SpoolOptions, stdout io.Writer) (c spool.Command, data string, err error) {
	cfg, err := configAt(o.Config, config.Default)
	if err != nil {
		return c, "", err
	}
	data = cmp.Or(o.Data, cfg.Data)
	remote := admin.SpoolClient{Address: o.Admin, Token: adminToken(cfg.Admin), Name: streamSpool}
	c = spool.Command{Path: spool.Path(data), Decode: stream.SpooledJSON, Out: stdout}
	if o.Popups {
		c.Path, c.Flags, c.Decode, remote.Name = popup.SpoolPath(data), " --popups", popup.EventJSON, popupSpool
	}
	switch held, address := spool.Owner(c.Path); {
	case o.Admin != "":
		c.Path, c.Remote = "", remote
	case held:
		remote.Address = cmp.Or(address, cfg.Admin.Listen)
		c.Remote = remote
	}
	return c, data, nil
}
