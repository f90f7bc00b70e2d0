package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
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
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/redis"
	"spillway/internal/serve/server"
)

// popupTables is where a database keeps campaigns, events and states.
type popupTables interface {
	campaignTables
	redis.PopupTable
	EnsureTables(context.Context) error
	Lock(ctx context.Context, holder string) (*popup.Lock, error)
	Close() error
}

// popupPart is the popups and what goes around them. They are served once start has
// returned.
type popupPart struct {
	cfg       *config.Popups
	app       *app
	tables    popupTables
	popup     *popup.Popup
	campaigns *campaigns

	row    *userRow      // nil without attributes_sql
	memory *memoryStates // nil with Redis
	log    *EventLog     // with memory
	lock   *popup.Lock   // with memory, from start on
	redis  *redis.Popups // nil with memory
	stop   context.CancelFunc
	work   sync.WaitGroup
	closed sync.Once
}

// openPopups makes the popups. It asks no database anything.
func (a *app) openPopups() error {
	c := &a.cfg.Popups
	if c.Path == "" {
		return nil
	}
	st, err := a.stores.get(a.ctx, cmp.Or(c.Database.Reveal(), a.cfg.Database.Reveal()))
	if err != nil {
		return err
	}
	st.needed = true // also where streams could do without it, through the spool
	schema, err := popup.NewSchema(popupAttributes(c))
	if err != nil {
		return UsageError{fmt.Errorf("popups: %w", err)}
	}
	empty, err := popup.NewSet(schema, nil)
	if err != nil {
		return fmt.Errorf("popups: %w", err)
	}
	if a.cfg.PopupsOpenToOthers() {
		a.log.Warn("popups believe the user that a query names, whoever sends it: let only your own back end reach the listener, or set popups.identity.trust to jwt", "listen", a.cfg.Listen)
	}
	p := &popupPart{cfg: c, app: a, tables: st.popups()}
	a.popups = p
	settings := popup.Config{ShowAnyway: c.OnUnavailable == "anyway", Log: a.log}
	if settings.Signer, err = a.popupSigner(); err != nil {
		return err
	}
	if settings.Fill, err = p.fill(st); err != nil {
		return err
	}
	if err := p.openStates(&settings); err != nil {
		return err
	}
	if p.popup, err = popup.Open(settings, empty); err != nil {
		return fmt.Errorf("popups: %w", err)
	}
	p.campaigns = newCampaigns(p.tables, p.popup, c.RepeatAfter, a.log)
	return nil
}

// openStates sets where states are kept and events recorded.
func (p *popupPart) openStates(settings *popup.Config) error {
	if p.cfg.Store == "memory" {
		p.memory = &memoryStates{Memory: popup.NewMemory(p.cfg.MemoryUsers)}
		p.log = NewEventLog(p.cfg, PopupSpoolPath(p.app.cfg.Data), p.app.log)
		settings.Store, settings.Recorder = p.memory, p.log
		return nil
	}
	url := p.app.cfg.Redis.Reveal()
	if url == "" {
		return UsageError{errors.New("popups: store: redis needs redis: in the configuration, or --redis")}
	}
	if p.cfg.CacheUsers > 0 {
		settings.Cache = popup.NewCache(p.cfg.CacheUsers)
	}
	states, err := redis.OpenPopups(p.app.ctx, url, redis.PopupConfig{
		Table: p.tables, Cache: settings.Cache, Log: p.app.log, StateTTL: p.cfg.StateTTL, Timeout: p.cfg.Timeout, BacklogMax: p.cfg.BacklogMax,
	})
	if err != nil {
		return UsageError{fmt.Errorf("popups: %w", err)}
	}
	p.redis = states
	settings.Store = limitedStore{states, p.cfg.Timeout}
	return nil
}

// popupAttributes returns the declared attributes.
func popupAttributes(c *config.Popups) []popup.Attribute {
	var all []popup.Attribute
	for _, a := range c.Attributes {
		all = append(all, popup.Attribute{Name: a.Name, Type: popup.AttributeType(a.Type)})
	}
	return all
}

// popupSigner returns the signer of show tokens, with a key of its own where none is
// configured.
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
	signer, err := popup.NewSigner(keys, a.cfg.Popups.TokenTTL)
	if err != nil {
		return nil, UsageError{fmt.Errorf("popups.keys: %w", err)}
	}
	return signer, nil
}

// ownKey reads the key in a file, and makes one where there is none.
func ownKey(file string) ([]byte, error) {
	key, err := os.ReadFile(file)
	if !errors.Is(err, fs.ErrNotExist) {
		if err == nil && len(key) < popup.KeyBytesMin {
			err = fmt.Errorf("%s holds no key: delete it, and tokens given so far are no good any more", file)
		}
		return key, err
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // it does not fail
	key = []byte(hex.EncodeToString(random[:]))
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(key)
	return key, errors.Join(err, f.Sync(), f.Close())
}

// start has the database, which must answer, give what it knows, and sets the popups
// going. failed is told when they must not be served any more.
func (p *popupPart) start(ctx context.Context, failed context.CancelCauseFunc) error {
	err := p.tables.EnsureTables(ctx)
	if err == nil && p.memory != nil {
		err = p.restore(ctx)
	}
	if err == nil && p.app.demo {
		err = p.campaigns.fillDemo(ctx)
	}
	if err == nil {
		err = p.campaigns.reload(ctx)
	}
	if err != nil {
		return fmt.Errorf("popups: %w", err)
	}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	p.work.Go(func() { p.campaigns.follow(working) })
	if p.redis != nil {
		p.work.Go(func() { p.redis.Run(working) })
		return nil
	}
	p.work.Go(func() { p.log.drain(working, p.tables) })
	p.work.Go(func() {
		select {
		case <-p.lock.Lost():
			p.memory.shut(errLockLost)
			failed(errLockLost)
		case <-working.Done():
		}
	})
	return nil
}

var errLockLost = errors.New("popups: another process keeps their states now; this one stops, so that nobody is shown a popup twice")

// restore takes the lock and puts into memory what the database and the event log
// know.
func (p *popupPart) restore(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	if p.lock, err = p.tables.Lock(ctx, fmt.Sprintf("process %d on %s", os.Getpid(), host)); err != nil {
		return err
	}
	// The log first: of two states of one version, the one in the log is newer.
	waiting, err := p.log.Open(ctx, p.memory.replace)
	if err != nil {
		return err
	}
	err = p.tables.Restore(ctx, p.memory.Restore)
	if errors.Is(err, popup.ErrFull) {
		err = fmt.Errorf("%w: raise popups.memory_users", err)
	}
	if err != nil {
		return err
	}
	p.app.log.Info("popup states are restored", "states", p.memory.Len(), "events_waiting", waiting)
	p.memory.opened.Store(true)
	return nil
}

// close stops what start began. Only the first call does anything.
func (p *popupPart) close() {
	p.closed.Do(func() {
		if p.memory != nil {
			p.memory.shut(errors.New("the popups are closed"))
		}
		if p.stop != nil {
			p.stop()
			p.work.Wait()
		}
		var err error
		if p.redis != nil {
			p.redis.Close()
		}
		if p.log != nil {
			err = p.log.Close()
		}
		if p.lock != nil {
			p.lock.Close()
		}
		if err = errors.Join(err, p.tables.Close()); err != nil {
			p.app.log.Warn("popups cannot be closed", "error", err)
		}
	})
}

// ready returns why requests should go elsewhere; nil: they need not.
func (p *popupPart) ready() error {
	if p.redis != nil {
		return p.redis.Ready()
	}
	if err := p.memory.available(); err != nil {
		return err
	}
	return p.log.ready()
}

// route is where the popups are served.
func (p *popupPart) route() (*server.PopupRoute, error) {
	r := &server.PopupRoute{
		Path: p.cfg.Path, Popup: p.popup, Placements: p.cfg.PlacementNames(), User: param.Type(p.cfg.UserType), ClockOffset: p.app.demo,
	}
	d := p.cfg.Identity
	if d.Trust != "jwt" {
		return r, nil
	}
	identity, err := server.NewIdentity(server.IdentityConfig{
		Header: d.Header, Algorithm: d.Algorithm, Key: []byte(d.Key.Reveal()), Claim: d.Claim, Issuer: d.Issuer, Audience: d.Audience,
	})
	if err != nil {
		return nil, UsageError{fmt.Errorf("popups.identity: %w", err)}
	}
	r.Identity = identity
	return r, nil
}

// admin is what the campaign API works with.
func (p *popupPart) admin() *admin.Popups {
	return &admin.Popups{
		Popup: p.popup, Placements: p.cfg.PlacementNames(), User: param.Type(p.cfg.UserType), ClockOffset: p.app.demo,
		Read: p.campaigns.read, Save: p.campaigns.save, Counts: p.tables.Counts,
	}
}

// figures are the popups' metrics.
func (p *popupPart) figures() admin.PopupFigures {
	f := admin.PopupFigures{Stats: p.popup.Stats(), Down: p.ready() != nil}
	f.Campaigns, f.Version, f.PollErrors = p.campaigns.figures()
	if p.row != nil {
		f.RowRefused = p.row.refused.Load()
	}
	if p.redis != nil {
		s := p.redis.Stats()
		f.Waiting, f.WaitingAge, f.SetAside, f.Durable = s.Backlog, s.Oldest.Seconds(), int64(s.Bad), s.Durable
		return f
	}
	f.States, f.Durable = p.memory.Len(), true
	if p.memory.opened.Load() { // and so the lock is there
		f.LockAge = time.Since(p.lock.Verified()).Seconds()
	}
	if s, ok := p.log.stats(); ok {
		f.Waiting, f.WaitingAge, f.SetAside = s.Rows, s.Oldest.Seconds(), s.Dead
	}
	return f
}

// memoryStates is the states in this process, while they may be used.
type memoryStates struct {
	*popup.Memory
	opened atomic.Bool
	reason atomic.Pointer[error] // why they may not be used any more
}

var errNotRestored = errors.New("the popup states are not restored yet")

func (m *memoryStates) shut(reason error) { m.reason.CompareAndSwap(nil, &reason) }

func (m *memoryStates) available() error {
	if reason := m.reason.Load(); reason != nil {
		return *reason
	}
	if !m.opened.Load() {
		return errNotRestored
	}
	return nil
}

// replace puts a state that is no older than the one there.
func (m *memoryStates) replace(key popup.Key, state popup.State) error {
	ctx := context.Background() // nothing waits
	was, err := m.Memory.Get(ctx, key)
	if err != nil || was.Version > state.Version {
		return err
	}
	_, err = m.Memory.Swap(ctx, key, was.Version, state, popup.Event{})
	return err
}

// Get implements popup.Store.
func (m *memoryStates) Get(ctx context.Context, key popup.Key) (popup.State, error) {
	if err := m.available(); err != nil {
		return popup.State{}, err
	}
	return m.Memory.Get(ctx, key)
}

// Swap implements popup.Store.
func (m *memoryStates) Swap(ctx context.Context, key popup.Key, version uint64, next popup.State, event popup.Event) (bool, error) {
	if err := m.available(); err != nil && event.Kind != 0 { // a state may always be put back
		return false, err
	}
	return m.Memory.Swap(ctx, key, version, next, event)
}

// checkPopups says what is wrong with the popups that only the engine can tell.
func checkPopups(c config.Config) []config.Mistake {
	p := &c.Popups
	var found []config.Mistake
	add := func(path, rule string) { found = append(found, config.Mistake{Path: "popups." + path, Rule: rule}) }
	url, err := database.Parse(cmp.Or(p.Database, c.Database).Reveal())
	if err != nil && p.Database != "" {
		add("database", errors.Unwrap(err).Error())
	}
	for _, a := range popupAttributes(p) {
		if !strings.Contains("text,integer,real,boolean,timestamp,texts", string(a.Type)) {
			continue // Validate says so
		}
		if _, err := popup.NewSchema([]popup.Attribute{a}); err != nil {
			add("attributes", err.Error())
		}
	}
	if p.AttributesSQL == "" {
		return found
	}
	statement, err := database.ParseStatementFor(url.Driver, p.AttributesSQL)
	if err != nil {
		add("attributes_sql", "in the statement at "+err.Error())
		return found
	}
	if names := statement.Names(); len(names) != 1 || names[0] != "user" {
		add("attributes_sql", "must ask for :user, and take no other parameter")
	}
	return found
}

var _ popup.Recorder = (*EventLog)(nil)

// spoolName is the name of popups' events in their spool.
const spoolName = "popups"

// errSpool explains what a spool's error means here.
func errSpool(err error) error {
	var full *queue.Overload
	if errors.As(err, &full) {
		return fmt.Errorf("popups.%s is reached: %w", full.Limit, err)
	}
	return err
}
