package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/exit"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/query"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
	"spillway/internal/yaml"
)

// popupTables is where a database stores campaigns, events and states.
type popupTables interface {
	popup.CampaignTables
	popup.ListTables
	redis.PopupTable
	popup.EventDeleter
	admin.ReportTables
	audit.Store
	EnsureTables(context.Context) error
	Lock(ctx context.Context, holder string) (*popup.Lock, error)
	Counts(context.Context) (map[popup.CampaignID]popup.Counts, error)
	Now(context.Context) (time.Time, error)
	Forget(ctx context.Context, user string) (rows int64, err error)
	Close() error
}

// popupPart is the popups.
type popupPart struct {
	*part
	cfg       *config.Popups
	app       *app
	tables    popupTables
	popup     *popup.Popup
	route     *server.PopupRoute // where they are served
	campaigns *popup.Campaigns
	userRow   *query.Query // attributes_sql; nil: none
	rowSource feed.Source  // of userRow

	listSources []feed.Source // of popups.lists, in their order

	clock *popup.Clock                // of the store
	local *popup.Local                // nil with Redis
	lock  *popup.Lock                 // with local, from start on
	spool atomic.Pointer[spool.Spool] // with local, from start on
	redis *redis.Popups               // nil with local

	connected atomic.Bool // redis is open
	prepared  atomic.Bool // the tables and the statements of userRow and lists are checked

	retention *popup.Retention // nil: events are kept

	failed  context.CancelCauseFunc // ends the process
	working context.CancelFunc      // ends the background work; nil before start
	work    sync.WaitGroup
	closed  sync.Once
}

// openPopups returns the part of the popups.
func (a *app) openPopups() error {
	c := &a.cfg.Popups
	if c.Path == "" {
		return nil
	}
	st, err := a.stores.get(a.ctx, cmp.Or(c.Database, a.cfg.Database))
	if err != nil {
		return err
	}
	schema, err := popup.NewSchema(popupAttributes(c))
	if err != nil {
		return exit.UsageError(fmt.Errorf("popups: %w", err))
	}
	empty, err := popup.NewSet(schema, nil)
	if err != nil {
		return fmt.Errorf("popups: %w", err)
	}
	if a.cfg.PopupsOpenToOthers() {
		a.log.Warn("popups trust the user parameter of requests: allow only your own back end to reach the listener, or set "+
			"popups.identity.trust to jwt", "listen", a.cfg.Listen)
	}
	p := &popupPart{cfg: c, app: a, tables: st.popups()}
	p.part = newPart(c.Path, st, server.DownRoute{
		Reads:  []string{c.Path},
		Writes: []string{c.Path + "/click", c.Path + "/dismiss", c.Path + "/convert"},
	}, p.start)
	a.popups = p
	settings := popup.Config{ShowAnyway: c.OnUnavailable == "anyway", Placements: c.PlacementNames(), ConvertTTL: c.ConvertWithin, Log: a.log}
	for _, one := range c.MaxPer {
		settings.Limits = append(settings.Limits, popup.Limit(one))
	}
	if settings.Signer, err = a.popupSigner(); err != nil {
		return err
	}
	if err := p.openUserRow(&settings); err != nil {
		return err
	}
	if err := p.openStore(&settings); err != nil {
		return err
	}
	if p.popup, err = popup.Open(settings, empty); err != nil {
		return fmt.Errorf("popups: %w", err)
	}
	if c.EventsDays > 0 {
		p.retention = &popup.Retention{Tables: p.tables, Keep: time.Duration(c.EventsDays) * 24 * time.Hour, Now: p.popup.Time, Log: a.log}
	}
	p.campaigns = popup.NewCampaigns(p.tables, p.tables, p.popup,
		popup.Defaults{RepeatAfter: popup.Period(c.RepeatAfter), Quiet: popup.Period(c.QuietAfter)}, a.log)
	p.route = p.newRoute()
	return p.openLists()
}

// openStore chooses the store.
func (p *popupPart) openStore(settings *popup.Config) error {
	p.clock = popup.NewClock()
	settings.Now = p.clock.Now
	if p.cfg.Store == "memory" {
		p.local = popup.NewLocal(p.cfg.MemoryUsers, p.cfg.Timeout, p.tables, p.clock, p.app.log)
		settings.Store = p.local
		return nil
	}
	if p.app.cfg.Redis == "" {
		return exit.UsageError(errors.New("popups: store: redis requires redis: in the configuration, or --redis"))
	}
	if p.cfg.CacheUsers > 0 {
		settings.Cache = popup.NewCache(p.cfg.CacheUsers)
	}
	p.redis = redis.NewPopups(redis.PopupConfig{
		Table: p.tables, DatabaseName: p.store.url.String(), Namespace: p.cfg.RedisPrefix, Clock: p.clock, Cache: settings.Cache,
		Log: p.app.log, StateTTL: p.cfg.StateTTL, Timeout: p.cfg.Timeout, BacklogMax: p.cfg.BacklogMax,
	})
	settings.Store = p.redis
	return nil
}

// Limits of attributes_sql.
const (
	userRowBytes = 16 << 10
	userWaiters  = 10_000 // requests that wait for the database at once
)

// openUserRow sets popup.Config.UserRow if attributes_sql is configured. The answers of the
// query, "no row" too, are cached and shared by concurrent requests.
func (p *popupPart) openUserRow(settings *popup.Config) error {
	c := p.cfg
	if c.AttributesSQL == "" {
		return nil
	}
	d := attributesDefinition(c)
	source, err := p.store.source(d)
	if err != nil {
		return exit.UsageError(err)
	}
	q := query.Open(query.Config{
		Definition: d, Limit: feed.Limit{Rows: 1, Bytes: userRowBytes}, Timeout: c.AttributesTimeout, TTL: c.AttributesTTL,
		CacheBytes: c.AttributesBytes, WaitersMax: userWaiters, Log: p.app.log, Gate: p.store.gate.Entrance(),
		Logins: p.store.Logins,
	}, source)
	p.userRow, p.rowSource = q, source
	settings.UserRow = func(ctx context.Context, user string) ([]byte, error) {
		if !p.prepared.Load() {
			return nil, errWaiting
		}
		answer, _, err := q.Ask(ctx, time.Now(), []string{user})
		if errors.Is(err, param.ErrValue) {
			return nil, nil // no row can have this id
		}
		if err != nil || answer.Rows == 0 {
			return nil, err
		}
		return answer.Data, nil
	}
	return nil
}

// attributesDefinition describes the statement of attributes_sql.
func attributesDefinition(c *config.Popups) feed.Definition {
	return feed.Definition{
		Name: "popups.attributes_sql", SQL: c.AttributesSQL, Params: []param.Param{{Name: "user", Type: param.Type(c.UserType)}},
	}
}

// popupAttributes returns the declared attributes.
func popupAttributes(c *config.Popups) []popup.Attribute {
	var all []popup.Attribute
	for _, a := range c.Attributes {
		all = append(all, popup.Attribute{Name: a.Name, Type: popup.AttributeType(a.Type)})
	}
	return all
}

// popupSigner returns the signer of show tokens. If no key is configured, it uses one of the
// data directory.
func (a *app) popupSigner() (*popup.Signer, error) {
	var keys [][]byte
	for _, key := range a.cfg.Popups.Keys {
		keys = append(keys, []byte(key.Reveal()))
	}
	if len(keys) == 0 {
		key, err := ownKey(filepath.Join(a.cfg.Data, "popups.key"))
		if err != nil {
			return nil, fmt.Errorf("key of show tokens: %w", err)
		}
		keys = [][]byte{key}
	}
	return popup.NewSigner(keys, a.cfg.Popups.TokenTTL), nil
}

// ownKey reads the key in a file, or creates it.
func ownKey(file string) ([]byte, error) {
	key, err := os.ReadFile(file)
	if !errors.Is(err, fs.ErrNotExist) {
		if err == nil && len(key) < popup.KeyBytesMin {
			err = fmt.Errorf("%s does not contain a key: delete it, which makes earlier show tokens invalid", file)
		}
		return key, err
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	key = []byte(hex.EncodeToString(random[:]))
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(key)
	return key, errors.Join(err, f.Sync(), f.Close())
}

// start restores campaigns and states, and starts the background work. The states are last:
// after them nothing can fail.
func (p *popupPart) start(ctx context.Context) error {
	err := p.prepare(ctx)
	switch {
	case err != nil:
	case p.local != nil:
		err = p.startLocal(ctx)
	default:
		err = p.redis.Open(ctx, p.app.cfg.Redis.Read)
		p.connected.Store(err == nil)
	}
	if err != nil {
		return fmt.Errorf("popups: %w", errors.Join(err, p.release()))
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.working = stop
	p.work.Go(func() { p.campaigns.Run(working) })
	if p.retention != nil {
		p.work.Go(func() { p.retention.Run(working) })
	}
	if p.redis != nil {
		p.work.Go(func() { p.redis.Run(working) })
	} else {
		p.work.Go(func() { p.local.Run(working, p.failed) })
	}
	return nil
}

// prepare creates missing tables, checks the statements of attributes_sql and lists, and reads
// the campaigns.
func (p *popupPart) prepare(ctx context.Context) error {
	err := p.tables.EnsureTables(ctx)
	if err == nil && p.rowSource != nil {
		err = p.checkRow(ctx)
	}
	if err == nil {
		err = p.checkLists(ctx)
	}
	if err == nil && p.app.cfg.Demo {
		var all []popup.Campaign
		if err := json.Unmarshal(freight.Campaigns, &all); err != nil {
			panic("bug: the campaigns of the freight app: " + err.Error())
		}
		err = p.campaigns.SaveFirst(ctx, all)
	}
	if err == nil {
		err = p.campaigns.Reload(ctx)
	}
	if err == nil {
		p.prepared.Store(true)
	}
	return err
}

// checkRow checks the statement of attributes_sql. Its columns are known afterwards.
func (p *popupPart) checkRow(ctx context.Context) error {
	if err := p.rowSource.Check(ctx, 0); err != nil {
		return err
	}
	var names []string
	for _, column := range p.rowSource.Columns() {
		names = append(names, column.Name)
	}
	p.popup.RowColumns(names)
	return nil
}

// release gives up what start has taken.
func (p *popupPart) release() error {
	var err error
	if p.connected.Swap(false) {
		p.redis.Close()
	}
	if events := p.spool.Swap(nil); events != nil {
		err = events.Close()
	}
	if p.lock != nil {
		p.lock.Close()
		p.lock = nil
	}
	return err
}

// Limits of the event log.
const (
	popupQueueBytes = 64 << 20 // of events that wait for the next fsync
	popupGroupBytes = 1 << 20  // of events in one fsync
)

// startLocal takes the lock, opens the event log and restores the states.
func (p *popupPart) startLocal(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	if p.lock, err = p.tables.Lock(ctx, fmt.Sprintf("process %d on %s", os.Getpid(), host)); err != nil {
		return err
	}
	path := popup.SpoolPath(p.app.cfg.Data)
	events, err := spool.Open(ctx, path, spool.Config{
		Bytes: int64(p.cfg.SpoolBytes), QueueBytes: popupQueueBytes, GroupBytes: popupGroupBytes, Log: p.app.log, Admin: p.app.cfg.Admin.Listen,
	})
	if err == nil {
		p.spool.Store(events)
		err = p.local.Start(ctx, p.lock, events)
	}
	if errors.Is(err, spool.ErrDamaged) {
		err = fmt.Errorf("%s: %w; run spillway spool repair --popups --data %s to see what is lost, and with --yes to continue without it", path,
			err, p.app.cfg.Data)
	}
	return err
}

// close stops what start began. Only the first call does anything.
func (p *popupPart) close() {
	p.closed.Do(func() {
		p.stop()
		if p.local != nil {
			p.local.Shut()
		}
		if p.working != nil {
			p.working()
			p.work.Wait()
		}
		if p.userRow != nil {
			p.userRow.Close()
		}
		if err := errors.Join(p.release(), p.tables.Close()); err != nil {
			p.app.log.Warn("popups could not be closed", "error", err)
		}
	})
}

// ready returns nil while the popups can be served, otherwise why not. If the error wraps
// queue.ErrNearlyFull, they still are.
func (p *popupPart) ready() error {
	if err := p.failure(); err != nil {
		return err
	}
	if p.redis != nil {
		if !p.connected.Load() {
			return errStopped
		}
		return p.redis.Ready()
	}
	if err := p.local.Ready(); err != nil {
		return err
	}
	if events := p.spool.Load(); events != nil {
		return events.Ready("")
	}
	return errStopped
}

// newRoute returns where the popups are served.
func (p *popupPart) newRoute() *server.PopupRoute {
	r := &server.PopupRoute{
		Path: p.cfg.Path, Popup: p.popup, Placements: p.cfg.PlacementNames(), User: param.Type(p.cfg.UserType), ClockOffset: p.app.cfg.Demo,
	}
	for _, attribute := range p.cfg.Attributes {
		r.Attributes = append(r.Attributes, attribute.Name)
	}
	if d := p.cfg.Identity; d.Trust == "jwt" {
		r.Identity = (*server.Identity)(&d)
	}
	return r
}

// admin is what the campaign API works with.
func (p *popupPart) admin() *admin.Popups {
	return &admin.Popups{
		Popup: p.popup, Campaigns: p.campaigns, Counts: p.tables.Counts, Reports: p.tables, Forget: p.forget,
		Placements: p.cfg.PlacementNames(), User: param.Type(p.cfg.UserType), ClockOffset: p.app.cfg.Demo,
		Attributes: popupAttributes(p.cfg),
	}
}

// figures are the popups' metrics.
func (p *popupPart) figures() admin.PopupFigures {
	serves, _ := tolerable(p.ready())
	f := admin.PopupFigures{
		Store: p.cfg.Store, Stats: p.popup.Stats(), Campaigns: p.campaigns.Stats(), Down: !serves,
		ClockSkew: p.clock.Skew().Seconds(),
	}
	if p.retention != nil {
		f.Deleted = p.retention.Deleted()
	}
	if p.redis != nil {
		s := p.redis.Stats()
		f.Waiting, f.WaitingAge, f.SetAside, f.Durable = s.Backlog, s.Oldest.Seconds(), int64(s.Bad), s.Durable
		return f
	}
	f.States, f.Evicted, f.RecordErrors = p.local.Len(), p.local.Evicted(), p.local.RecordErrors()
	f.LockAge, f.Durable = p.local.LockAge().Seconds(), true
	if events := p.spool.Load(); events != nil {
		for _, s := range events.Stats().Names {
			f.Waiting, f.WaitingAge, f.SetAside = s.Rows, s.OldestSeconds, s.Dead
		}
	}
	return f
}

// checkPopups returns the mistakes in the configuration of popups that only the engine finds.
func checkPopups(c config.Config) []config.Mistake {
	p := &c.Popups
	var found []config.Mistake
	add := func(path, rule string) { found = append(found, config.Mistake{Path: "popups." + path, Rule: rule}) }
	for _, a := range popupAttributes(p) {
		if _, err := popup.NewSchema([]popup.Attribute{a}); err != nil {
			add("attributes."+yaml.Printable(a.Name), err.Error())
		}
	}
	for _, list := range p.Lists {
		statement, _, err := parseStatement(list.SQL, nil, cmp.Or(p.Database, c.Database))
		switch {
		case err != nil:
			add("lists."+list.Name, "cannot be parsed at "+err.Error())
		case len(statement.Names()) > 0:
			add("lists."+list.Name, "must have no parameters")
		}
	}
	if p.AttributesSQL == "" {
		return found
	}
	statement, _, err := parseStatement(p.AttributesSQL, []string{"user"}, cmp.Or(p.Database, c.Database))
	if err != nil {
		add("attributes_sql", "cannot be parsed at "+err.Error())
		return found
	}
	if names := statement.Names(); len(names) != 1 || names[0] != "user" {
		add("attributes_sql", "must have the parameter :user and no other")
	}
	return found
}
