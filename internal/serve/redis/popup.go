package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// PopupTable is the database that stores events and states.
type PopupTable interface {
	popup.StateTables
	// Identity returns the database's id, at random when it was created.
	Identity(ctx context.Context) (string, error)
}

// PopupConfig configures popups in Redis.
type PopupConfig struct {
	Table PopupTable
	// DatabaseName names the database in messages, without a password.
	DatabaseName string
	// Clock, if set, is told the time of the server.
	Clock *popup.Clock
	Log   *slog.Logger
	// Cache, if set, is the popup.Config.Cache of the one Popup that uses this store. A
	// state is removed from it when any process swaps it, and all states while calls fail.
	Cache *popup.Cache

	// Namespace is the prefix of all keys. Each database needs its own.
	Namespace string
	// StateTTL is how long Redis keeps a state after its last event; at least an hour. It
	// bounds the memory to the users of that time. A state that is missing is read from
	// the database, unless an event has waited for the database for more than half of
	// StateTTL: the database could be behind. 0: states are kept, and the database is
	// not read.
	StateTTL time.Duration
	// Timeout bounds a swap, and the wait for a state from the database.
	Timeout time.Duration
	// BacklogMax is how many events may wait for the database. Beyond it swaps fail.
	BacklogMax     int
	commandTimeout time.Duration // of a command and of connecting; 0: the constants
}

// Popups is a popup.Store for any number of processes. Calls fail unless Run is running.
// Its methods may be called concurrently.
//
// The state of a user is one key. A swap is one script: it compares the version, writes
// the state and appends the event to a stream, or does nothing. One process at a time reads
// events from the stream, stores them in the database and then deletes them.
//
// Calls fail after anything that may have lost states, until the states are restored from
// the database: the server is empty, was restarted, or is another one. Every new
// connection is checked for that. Durability says what an acknowledged event survives.
//
// The keys of a Namespace belong to one database. If that is not Table, calls fail, and
// nothing is read or taken from the stream.
type Popups struct {
	cfg   PopupConfig
	db    *DB    // with a separate client, to detect lost connections
	token string // by which others know this process
	keys  popupKeys

	dials   atomic.Uint64 // connections made
	checked atomic.Pointer[check]
	refused atomic.Pointer[error] // why swaps fail although calls do not; nil if they do not
	wake    chan struct{}         // makes watch check the server now
	lookups *popup.Lookups
	opened  time.Time
	oldest  atomic.Int64 // all waiting events are younger than opened plus these nanoseconds

	database atomic.Pointer[string] // the id that it returned last

	bad, rebuilds atomic.Uint64
	backlog       atomic.Int64
	durable       atomic.Bool
}

var _ popup.Store = (*Popups)(nil)

// check is the outcome of a check of the server.
type check struct {
	dials  uint64 // connections made when it began
	reason error  // why calls fail; nil if they do not
}

// popupKeys are the keys of a Namespace. state is a prefix. They have one tag, because a server in cluster mode
// requires that of the keys of a script.
type popupKeys struct{ state, ready, rebuild, events, drainer, bad, database, probe string }

// ErrPopupServer: popups cannot be stored on this server; the text says why and what to do.
var ErrPopupServer = errors.New("this Redis cannot keep popups")

// Why the server does not write states.
var (
	errOOM = errors.New("out of memory: Redis keeps no further state, so no popup is shown and no click is taken; raise its " +
		"maxmemory, or lower popups.state_ttl")
	errNoWrite = errors.New("the server refuses to write, so no popup is shown and no click is taken")
)

// errNotReady: the states may be incomplete.
var errNotReady = errors.New("popup states in Redis are not ready")

// notReady returns an errNotReady that says why.
func notReady(why string) error {
	return &queue.Unready{Why: fmt.Errorf("%w: %s", errNotReady, why)}
}

// NewPopups returns a store whose calls fail until it is opened and runs.
func NewPopups(cfg PopupConfig) *Popups {
	tag := "{" + cfg.Namespace + ":popup}:"
	p := &Popups{
		cfg: cfg, token: rand.Text(), wake: make(chan struct{}, 1), opened: time.Now(),
		keys: popupKeys{
			state: tag + "state:", ready: tag + "ready", rebuild: tag + "rebuild", events: tag + "events", drainer: tag + "drainer",
			bad: tag + "bad", database: tag + "database", probe: tag + "probe",
		},
	}
	p.lookups = popup.NewLookups(readThrough{p}, cfg.Timeout)
	p.unready(notReady("the server has not been checked yet"))
	p.backlog.Store(unknown)
	return p
}

// Open connects to the server at an address, as the function Open does, after the database has answered. If the
// server does not answer, that is logged, and Run keeps trying. An error that wraps ErrPopupServer means that the
// server cannot be used. The caller then calls Run, and Close after it; Open may follow Close.
func (p *Popups) Open(ctx context.Context, address Address) error {
	option, password, err := address.option()
	if err != nil {
		return err
	}
	if err := p.identify(ctx); err != nil {
		return err
	}
	return p.connect(ctx, option, password)
}

// connect makes the client and checks the server.
func (p *Popups) connect(ctx context.Context, option rueidis.ClientOption, password *atomic.Pointer[string]) error {
	dialing := cmp.Or(p.cfg.commandTimeout, dialTimeout)
	p.cfg.commandTimeout = cmp.Or(p.cfg.commandTimeout, commandTimeout)
	p.db = newDB(&option, password, dialing, p.cfg.commandTimeout)
	p.db.keys = "{" + p.cfg.Namespace + ":popup}:*"
	p.track(&option)
	dial := option.DialCtxFn // set for TLS and for unix sockets
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		var conn net.Conn
		var err error
		if dial != nil {
			conn, err = dial(ctx, address, dialer, config)
		} else {
			conn, err = dialer.DialContext(ctx, "tcp", address)
		}
		if err == nil { // before the first command: it may be another server, or one that lost states
			p.dials.Add(1)
			p.checkNow()
		}
		return conn, err
	}
	client, err := rueidis.NewClient(option)
	if client == nil {
		return p.db.wrap("open", err)
	}
	p.db.client = client
	if err == nil {
		_, err = p.server(ctx)
	}
	if errors.Is(err, rueidis.ErrNoCache) {
		err = fmt.Errorf("%w: %w", ErrPopupServer, &DeniedError{"this user of Redis lacks rights: permit +client|tracking with ACL SETUSER, " +
			"or set popups.cache_users to 0", err})
	}
	if errors.Is(err, ErrPopupServer) {
		client.Close()
		return p.db.wrap("use", err)
	}
	if err != nil {
		p.cfg.Log.Warn("Redis cannot be used; popups are not available until it can", "error", p.db.wrap("connect", err))
	}
	return nil
}

// checkNow makes watch check the server now.
func (p *Popups) checkNow() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Close closes the connection. Run must have ended.
func (p *Popups) Close() { p.db.Close() }

// Ready returns nil while calls are answered, otherwise why they are not.
func (p *Popups) Ready() error {
	return cmp.Or(p.available(), p.writable())
}

// writable returns why swaps fail although calls do not; nil if they do not.
func (p *Popups) writable() error {
	if why := p.refused.Load(); why != nil {
		return *why
	}
	return nil
}

// noteRefused keeps why swaps fail, and logs it when that begins, changes or ends.
func (p *Popups) noteRefused(why error) {
	before := p.writable()
	p.refused.Store(&why)
	switch {
	case (before == nil) == (why == nil) && errors.Is(before, errOOM) == errors.Is(why, errOOM):
	case why != nil:
		p.cfg.Log.Warn("Redis does not write popup states", "error", why)
	default:
		p.cfg.Log.Info("Redis writes popup states again")
	}
}

// refusedWrite returns the reason if the server has refused to write because of its memory
// (OOM), its disk (MISCONF) or its replicas (NOREPLICAS); nil otherwise.
func refusedWrite(err error) error {
	var refused *rueidis.RedisError
	switch {
	case !errors.As(err, &refused):
		return nil
	case strings.Contains(refused.Error(), "OOM command not allowed"):
		return &queue.Unready{Why: errOOM}
	case strings.HasPrefix(refused.Error(), "MISCONF"), strings.HasPrefix(refused.Error(), "NOREPLICAS"):
		return &queue.Unready{Why: errNoWrite, Cause: err}
	}
	return nil
}

// available returns nil unless calls fail, also those that only read.
func (p *Popups) available() error {
	last := p.checked.Load()
	if last.reason == nil && last.dials != p.dials.Load() {
		return notReady("the connection is new and was not checked yet")
	}
	return last.reason
}

// unready makes calls fail until the next successful check.
func (p *Popups) unready(reason error) {
	p.checked.Store(&check{reason: reason})
	if p.cfg.Cache != nil {
		p.cfg.Cache.Clear()
	}
}

// Run checks the server, restores states and moves events to the database until ctx ends.
// It is called once after Open. Calls fail before and after it.
func (p *Popups) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { p.watchDatabase(ctx) })
	running.Go(func() { p.watch(ctx) })
	running.Go(func() { p.lookups.Run(ctx) })
	running.Go(func() { p.consume(ctx) })
	running.Wait()
}

// of returns the key of a state.
func (k *popupKeys) of(key popup.Key) string { return k.state + key.Placement + ":" + key.User }

// Get implements popup.Store with one GET. If the key is missing, the state is the zero
// State, or with a StateTTL that of the database.
func (p *Popups) Get(ctx context.Context, key popup.Key) (popup.State, error) {
	if err := p.available(); err != nil {
		return popup.State{}, err
	}
	value, err := p.db.client.Do(ctx, p.db.client.B().Get().Key(p.keys.of(key)).Build()).AsBytes()
	switch {
	case err == nil:
		return decodeValue(value)
	case !rueidis.IsRedisNil(err):
		return popup.State{}, p.db.wrap("get", err)
	case p.cfg.StateTTL == 0:
		return popup.State{}, nil
	}
	if err := p.databaseCurrent(); err != nil {
		return popup.State{}, err
	}
	return p.lookups.Read(ctx, key) // after which Redis has it too
}

// Keeps implements popup.Keeper.
func (p *Popups) Keeps() bool { return p.cfg.StateTTL == 0 }

var swapScript = rueidis.NewLuaScript(script("swap"))

// Swap implements popup.Store.
func (p *Popups) Swap(ctx context.Context, key popup.Key, version uint64, next popup.State, event popup.Event, guards ...popup.Guard) (bool,
	error,
) {
	dials := p.dials.Load() // read first, so that a new connection is detected below
	if err := p.available(); err != nil {
		return false, err
	}
	encoded, err := popup.AppendEvent(nil, event)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	keys := []string{p.keys.of(key), p.keys.ready, p.keys.events}
	args := []string{
		encodeVersion(version), string(appendValue(nil, next)), strconv.FormatInt(p.cfg.StateTTL.Milliseconds(), 10),
		string(encoded), strconv.Itoa(p.cfg.BacklogMax), encodeVersion(0),
	}
	for _, g := range guards {
		keys = append(keys, p.keys.of(popup.Key{User: key.User, Placement: g.Placement}))
		args = append(args, encodeVersion(g.Version))
	}
	result, err := swapScript.Exec(ctx, p.db.client, keys, args).AsInt64()
	return p.outcome("swap", result, dials, err)
}

// encodeVersion returns a version as it begins a stored state.
func encodeVersion(version uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], version)
	return string(b[:])
}

// outcome returns what the result of a script means that began after so many dials.
func (p *Popups) outcome(action string, result int64, dials uint64, err error) (bool, error) {
	if refused := refusedWrite(err); refused != nil {
		p.noteRefused(refused)
	}
	switch {
	case err != nil:
		return false, p.db.wrap(action, err)
	case dials != p.dials.Load():
		return false, notReady("the connection broke during a swap")
	}
	switch result {
	case 1:
		return true, nil
	case 0, -3:
		return false, nil
	case -2:
		return false, fmt.Errorf("%d popup events wait for the database, the limit (popups.backlog_max)", p.cfg.BacklogMax)
	}
	p.unready(notReady("the server has lost states"))
	p.checkNow()
	return false, p.Ready()
}

var recordScript = rueidis.NewLuaScript(script("record"))

// Record implements popup.Store.
func (p *Popups) Record(ctx context.Context, event popup.Event) error {
	dials := p.dials.Load()
	if err := p.available(); err != nil {
		return err
	}
	encoded, err := popup.AppendEvent(nil, event)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	args := []string{string(encoded), strconv.Itoa(p.cfg.BacklogMax)}
	result, err := recordScript.Exec(ctx, p.db.client, []string{p.keys.ready, p.keys.events}, args).AsInt64()
	_, err = p.outcome("record", result, dials, err)
	return err
}

// appendValue appends the stored form of a state: its version in 8 bytes, the most
// significant first, and the state. Scripts compare versions without decoding states.
func appendValue(dst []byte, s popup.State) []byte {
	return popup.AppendState(binary.BigEndian.AppendUint64(dst, s.Version), s)
}

// decodeValue reads a stored state.
func decodeValue(value []byte) (popup.State, error) {
	if len(value) < 8 {
		return popup.State{}, errors.New("read a popup state from Redis: the value is too short")
	}
	s, err := popup.DecodeState(value[8:])
	if err != nil || s.Version != binary.BigEndian.Uint64(value) {
		return popup.State{}, fmt.Errorf("read a popup state from Redis: %w", cmp.Or(err, errors.New("its versions differ")))
	}
	return s, nil
}

// PopupStats is a snapshot of popups in Redis, for metrics.
type PopupStats struct {
	Bad      uint64 // events that could not be decoded and were set aside
	Rebuilds uint64 // times that this process restored the states
	Durable  bool   // the server syncs before it answers; checked each minute

	Backlog int64         // events of all processes that wait for the database, at the last count; -1: not known
	Oldest  time.Duration // age of the oldest of them; 0 if there is none or Backlog is not known
}

// unknown is the backlog before it was counted.
const unknown = -1

// Stats returns the counters.
func (p *Popups) Stats() PopupStats {
	s := PopupStats{Bad: p.bad.Load(), Rebuilds: p.rebuilds.Load(), Durable: p.durable.Load(), Backlog: p.backlog.Load()}
	if s.Backlog > 0 {
		s.Oldest = p.oldestAge()
	}
	return s
}

// track removes states from the cache when another process writes them: client-side caching
// in broadcasting mode (https://redis.io/docs/latest/develop/reference/client-side-caching).
// The cache is cleared when the connection ends.
//
// Writes of this connection are not announced (NOLOOP). popup.Popup removes what it swaps
// itself, and nothing else writes over a state while calls are answered.
func (p *Popups) track(option *rueidis.ClientOption) {
	cache := p.cfg.Cache
	option.DisableCache = cache == nil
	if cache == nil {
		return
	}
	option.ClientTrackingOptions = []string{"BCAST", "NOLOOP", "PREFIX", p.keys.state}
	option.OnInvalidations = func(keys []rueidis.RedisMessage) {
		if keys == nil { // FLUSHALL, or the connection ended
			cache.Clear()
			return
		}
		for i := range keys {
			name, err := keys[i].ToString()
			placement, user, ok := strings.Cut(strings.TrimPrefix(name, p.keys.state), ":")
			if err != nil || !ok {
				cache.Clear() // an unknown key changed
				continue
			}
			cache.Forget(popup.Key{Placement: placement, User: user})
		}
	}
}

// Forget removes the states of a user at placements and returns how many there were. Their
// events stay.
func (p *Popups) Forget(ctx context.Context, user string, placements []string) (int, error) {
	if err := p.available(); err != nil {
		return 0, err
	}
	var names []string
	for _, placement := range placements {
		names = append(names, p.keys.of(popup.Key{User: user, Placement: placement}))
	}
	n, err := p.db.client.Do(ctx, p.db.client.B().Del().Key(names...).Build()).AsInt64()
	if p.cfg.Cache != nil { // other processes are told
		for _, placement := range placements {
			p.cfg.Cache.Forget(popup.Key{User: user, Placement: placement})
		}
	}
	return int(n), p.db.wrap("del", err)
}

// Drained reports whether the database has all events that were recorded before a time.
func (p *Popups) Drained(since time.Time) bool {
	return p.backlog.Load() != unknown && p.oldestAge() < time.Since(since)
}
