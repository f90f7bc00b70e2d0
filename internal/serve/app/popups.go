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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/query"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
	"spillway/internal/serve/spool"
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
	copy  *redis.CampaignCopy         // nil with local

	connected atomic.Bool           // redis is open
	prepared  atomic.Bool           // the tables and the statements of userRow and lists are checked
	refused   atomic.Pointer[error] // why prepareLater has failed although the database answers

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
	p.alone = c.Store == "redis"
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
	var campaigns popup.CampaignTables = p.tables
	if p.copy != nil {
		campaigns = p.copy
	}
	p.campaigns = popup.NewCampaigns(campaigns, p.tables, p.popup,
		popup.Defaults{RepeatAfter: popup.Period(c.RepeatAfter), Quiet: popup.Period(c.QuietAfter)}, a.log)
	if p.route, err = p.newRoute(); err != nil {
		return err
	}
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
	p.copy = redis.NewCampaignCopy(p.tables)
	p.redis = redis.NewPopups(redis.PopupConfig{
		Table: preparedTables{p.tables, p}, DatabaseAddress: p.store.url.Identity(), DatabaseName: p.store.url.String(),
		Namespace: p.cfg.RedisPrefix, Campaigns: p.copy, Clock: p.clock, Cache: settings.Cache, Log: p.app.log,
		StateTTL: p.cfg.StateTTL, Timeout: p.cfg.Timeout, BacklogMax: p.cfg.BacklogMax,
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
	var err error
	if p.redis != nil && !p.connected.Load() {
		err = p.redis.Open(ctx, p.app.cfg.Redis.Read)
		p.connected.Store(err == nil)
	}
	if err == nil {
		err = p.startCampaigns(ctx)
	}
	if err == nil && p.local != nil {
		err = p.startLocal(ctx)
	}
	if errors.Is(err, errWaiting) {
		return err // Redis stays open for the next attempt
	}
	if err != nil {
		return fmt.Errorf("popups: %w", errors.Join(err, p.release()))
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.working = stop
	p.work.Go(func() { p.campaigns.Run(working) })
	p.work.Go(func() { p.prepareLater(working) })
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

// startCampaigns prepares the database and reads the campaigns. With Redis, those of Redis are
// used while the database cannot be reached, until prepareLater has prepared it.
func (p *popupPart) startCampaigns(ctx context.Context) error {
	if p.redis == nil {
		return p.prepare(ctx)
	}
	away := p.store.ask(ctx)
	if away == nil {
		err := p.prepare(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if away = p.store.ask(ctx); away == nil {
			return err // the database refuses it
		}
	}
	p.copy.SetAway(true)
	if err := p.campaigns.Reload(ctx); err != nil {
		cause := fmt.Errorf("%w; its campaigns cannot be used either: %w", away, err)
		return &queue.Unready{Why: errWaiting, Cause: cause}
	}
	p.app.log.Warn("the database of the popups does not answer; their campaigns are those that Redis has", "database", p.store.url.String(),
		"error", away)
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
	if err == nil && p.copy != nil {
		p.copy.SetAway(false)
	}
	if err == nil && p.app.cfg.Demo {
		err = p.campaigns.SaveFirst(ctx, demoCampaigns())
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

// prepareTimeout bounds one attempt to prepare a database that was away.
const prepareTimeout = 15 * time.Second

// prepareLater prepares a database that was away at the start. It tries once per second, until
// that succeeds or ctx ends.
func (p *popupPart) prepareLater(ctx context.Context) {
	var quiet failureLog
	for !p.prepared.Load() && ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, prepareTimeout)
		err := p.store.ask(limited)
		if err == nil {
			err = p.prepare(limited)
		}
		cancel()
		if err != nil && isRejection(err) && p.store.ask(ctx) == nil {
			p.refused.Store(&err)
			if quiet.due(err, time.Now()) {
				p.app.log.Warn("the database of the popups cannot be used; retried", "database", p.store.url.String(), "error", err)
			}
		} else {
			p.refused.Store(nil)
		}
		queue.Sleep(ctx, probeEvery)
	}
}

// preparedTables are tables that Redis uses once they are prepared.
type preparedTables struct {
	popupTables
	part *popupPart
}

// Identity implements redis.PopupTable.
func (t preparedTables) Identity(ctx context.Context) (string, error) {
	if !t.part.prepared.Load() {
		return "", errWaiting
	}
	return t.popupTables.Identity(ctx)
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

// demoCampaigns returns the campaigns of the freight app.
func demoCampaigns() []popup.Campaign {
	var all []popup.Campaign
	if err := json.Unmarshal(freight.Campaigns, &all); err != nil {
		panic("bug: the campaigns of the freight app: " + err.Error())
	}
	return all
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
		if refused := p.refused.Load(); refused != nil {
			return &queue.Unready{Why: errNotStarted, Cause: *refused}
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
func (p *popupPart) newRoute() (*server.PopupRoute, error) {
	r := &server.PopupRoute{
		Path: p.cfg.Path, Popup: p.popup, Placements: p.cfg.PlacementNames(), User: param.Type(p.cfg.UserType), ClockOffset: p.app.cfg.Demo,
	}
	for _, attribute := range p.cfg.Attributes {
		r.Attributes = append(r.Attributes, attribute.Name)
	}
	d := p.cfg.Identity
	if d.Trust != "jwt" {
		return r, nil
	}
	identity, err := server.NewIdentity(server.IdentityConfig{
		Header: d.Header, Algorithm: d.Algorithm, Key: []byte(d.Key.Reveal()), Claim: d.Claim, Issuer: d.Issuer, Audience: d.Audience,
	})
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("popups.identity: %w", err))
	}
	r.Identity = identity
	return r, nil
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
	if _, err := database.Parse(p.Database.Reveal()); err != nil && p.Database != "" {
		add("database", cause(err))
	}
	for _, a := range popupAttributes(p) {
		if !strings.Contains("text,integer,real,boolean,timestamp,texts", string(a.Type)) {
			continue // reported by Validate
		}
		if _, err := popup.NewSchema([]popup.Attribute{a}); err != nil {
			add("attributes", err.Error())
		}
	}
	for _, list := range p.Lists {
		if strings.TrimSpace(list.SQL) == "" {
			continue // reported by Validate
		}
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
