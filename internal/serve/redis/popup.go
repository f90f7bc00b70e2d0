package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// popupShards is the number of shards. Users are assigned to them by a hash of their id. It
// is part of the keys, so it cannot change while there are any.
const popupShards = 16

// PopupTable is the database that stores events and states.
type PopupTable interface {
	// Apply stores events. An event that is stored already is skipped.
	Apply(ctx context.Context, events []popup.Event) error
	// Restore yields all states.
	Restore(ctx context.Context, yield func(popup.Key, popup.State) error) error
	// States returns the states of keys, in the same order.
	States(ctx context.Context, keys []popup.Key) ([]popup.State, error)
	// Identity returns the database's id, at random when it was created. Before it has
	// succeeded, no other method is called.
	Identity(ctx context.Context) (string, error)
}

// PopupConfig configures popups in Redis.
type PopupConfig struct {
	Table PopupTable
	// DatabaseAddress is where Table is, without a password. While the database does not
	// answer, the states in Redis count as its states if another process with this address
	// has seen that they are.
	DatabaseAddress string
	// DatabaseName names the database in messages, without a password.
	DatabaseName string
	// Campaigns, if set, is written to Redis.
	Campaigns *CampaignCopy
	// Clock, if set, is told the time of the server.
	Clock *popup.Clock
	Log   *slog.Logger
	// Cache, if set, is the popup.Config.Cache of the one Popup that uses this store. A
	// state is removed from it when any process swaps it, and all states while calls fail.
	Cache *popup.Cache

	// Namespace is the prefix of all keys; "": spillway. Each database needs its own.
	Namespace string
	// StateTTL is how long Redis keeps a state after its last event; at least an hour. It
	// bounds the memory to the users of that time. A state that is missing is read from
	// the database, unless an event has waited for the database for more than half of
	// StateTTL: the database could be behind. 0: states are kept, and the database is
	// not read.
	StateTTL time.Duration
	// Timeout bounds a swap, and the wait for a state from the database; 0: 5 seconds.
	Timeout time.Duration
	// BacklogMax is how many events may wait for the database. Beyond it swaps fail. 0:
	// 4,000,000, which take about 600 MB.
	BacklogMax int
	// ClaimAfter is how long another process may hold events without storing them before
	// this one claims them; 0: 30 seconds.
	ClaimAfter time.Duration

	commandTimeout time.Duration // of a command and of connecting; 0: the constants
}

// The defaults of PopupConfig.
const (
	defaultNamespace  = "spillway"
	defaultBacklogMax = 4_000_000
	defaultClaimAfter = 30 * time.Second
	defaultTimeout    = 5 * time.Second
)

// Popups is a popup.Store for any number of processes. Calls fail unless Run is running.
// Its methods may be called concurrently.
//
// The state of a user is one key. A swap is one script: it compares the version, writes
// the state and appends the event to a stream, or does nothing. Each process reads events
// from the streams, stores them in the database and then deletes them.
//
// Calls fail after anything that may have lost states, until the states are restored from
// the database: the server is empty, was restarted, or is another one. Every new
// connection is checked for that. If the server was restarted while the database is away, the
// states that it has are used. Durability says what an acknowledged event survives.
//
// The keys of a Namespace belong to one database. If that is not Table, calls fail, and
// nothing is read or taken from the streams.
type Popups struct {
	cfg      PopupConfig
	db       *DB // with a separate client, to detect lost connections
	consumer string
	keys     [popupShards]shardKeys

	swapSHA  string // the SHA-1 by which the server knows swapScript
	pipeline *pipeline

	dials    atomic.Uint64 // connections made
	verified atomic.Uint64 // dials at the last successful check; 0: the last check failed
	wake     chan struct{} // makes watch check the server now
	lookups  *popup.Lookups
	opened   time.Time
	oldest   atomic.Int64 // all waiting events are younger than opened plus these nanoseconds

	database     identity
	addressField string        // of the key that names the database
	owned        atomic.Uint64 // dials when the keys last belonged to the database; 0: they do not
	foreign      atomic.Bool   // the last check found another database
	uncompared   atomic.Bool   // the server was restarted while the database is away: a missing state says nothing

	mu      sync.Mutex
	reason  error // why calls fail; nil if they do not
	refused error // why swaps fail although calls do not; nil if they do not

	counters popupCounters
}

var _ popup.Store = (*Popups)(nil)

// shardKeys are the keys of a shard. state is a prefix. The last three are of the first shard.
type shardKeys struct{ state, ready, rebuild, events, bad, database, campaigns, probe string }

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
	cfg.Namespace = cmp.Or(cfg.Namespace, defaultNamespace)
	cfg.BacklogMax = cmp.Or(cfg.BacklogMax, defaultBacklogMax)
	cfg.ClaimAfter = cmp.Or(cfg.ClaimAfter, defaultClaimAfter)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	var name [8]byte
	_, _ = rand.Read(name[:]) // never fails
	p := &Popups{
		cfg: cfg, consumer: hex.EncodeToString(name[:]), wake: make(chan struct{}, 1), opened: time.Now(),
		addressField: addressField(cfg.DatabaseAddress),
		swapSHA:      fmt.Sprintf("%x", sha1.Sum([]byte(swapText))),
		reason:       notReady("the server has not been checked yet"),
	}
	p.lookups = popup.NewLookups(readThrough{p}, cfg.Timeout)
	p.counters.backlog.Store(unknown)
	for i := range p.keys {
		tag := fmt.Sprintf("{%s:popup:%02d}", cfg.Namespace, i)
		p.keys[i] = shardKeys{
			state: tag + ":state:", ready: tag + ":ready", rebuild: tag + ":rebuild", events: tag + ":events", bad: tag + ":bad",
			database: tag + ":database", campaigns: tag + ":campaigns", probe: tag + ":probe",
		}
	}
	return p
}

// Open connects to the server at an address, as the function Open does. If the server does not answer, that is
// logged, and Run keeps trying. An error that wraps ErrPopupServer means that the server
// cannot be used. The caller then calls Run, and Close after it; Open may follow Close.
func (p *Popups) Open(ctx context.Context, address Address) error {
	option, password, err := address.option()
	if err != nil {
		return err
	}
	if err := p.connect(ctx, option, password); err != nil {
		return err
	}
	if p.cfg.Campaigns != nil {
		p.cfg.Campaigns.store.Store(p)
	}
	return nil
}

// connect makes the client and checks the server.
func (p *Popups) connect(ctx context.Context, option rueidis.ClientOption, password *atomic.Pointer[string]) error {
	dialing := cmp.Or(p.cfg.commandTimeout, dialTimeout)
	p.cfg.commandTimeout = cmp.Or(p.cfg.commandTimeout, commandTimeout)
	p.db = newDB(&option, password, dialing, p.cfg.commandTimeout)
	p.db.keys = "{" + p.cfg.Namespace + ":popup:*"
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
	p.pipeline = newPipeline(client)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == nil && p.verified.Load() != p.dials.Load() {
		return notReady("the connection is new and was not checked yet")
	}
	return cmp.Or(p.reason, p.refused)
}

// noteRefused keeps why swaps fail, and logs it when that begins, changes or ends.
func (p *Popups) noteRefused(why error) {
	p.mu.Lock()
	before := p.refused
	p.refused = why
	p.mu.Unlock()
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

// available is Ready for the hot path.
func (p *Popups) available() error {
	if v := p.verified.Load(); v == 0 || v != p.dials.Load() {
		return cmp.Or(p.Ready(), errNotReady)
	}
	return nil
}

// unready makes calls fail until the next successful check.
func (p *Popups) unready(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verified.Store(0)
	p.reason = reason
	if p.cfg.Cache != nil {
		p.cfg.Cache.Clear()
	}
}

// Run checks the server, restores states and moves events to the database until ctx ends.
// It is called once after Open. Calls fail before and after it.
func (p *Popups) Run(ctx context.Context) {
	go p.pipeline.run()
	defer p.pipeline.close()
	var running sync.WaitGroup
	identified := make(chan struct{})
	running.Go(func() { p.watchDatabase(ctx, identified) })
	running.Go(func() { p.watch(ctx, identified) })
	running.Go(func() { p.lookups.Run(ctx) })
	running.Go(func() { p.consume(ctx) })
	running.Wait()
}

// shardOf returns the shard of a user.
func shardOf(user string) int { return int(xxhash.Sum64String(user) % popupShards) }

// stateKey returns the key of a state.
func (k *shardKeys) stateKey(key popup.Key) string { return k.state + key.Placement + ":" + key.User }

// Get implements popup.Store with one GET. If the key is missing, the state is the zero
// State, or with a StateTTL that of the database.
func (p *Popups) Get(ctx context.Context, key popup.Key) (popup.State, error) {
	if err := p.available(); err != nil {
		return popup.State{}, err
	}
	result, err := p.pipeline.do(ctx, p.db.client.B().Get().Key(p.keys[shardOf(key.User)].stateKey(key)).Build())
	if err != nil {
		return popup.State{}, p.db.wrap("get", err)
	}
	value, err := result.AsBytes()
	switch {
	case err == nil:
		return decodeValue(value)
	case !rueidis.IsRedisNil(err):
		return popup.State{}, p.db.wrap("get", err)
	case p.uncompared.Load():
		return popup.State{}, errUncompared
	case p.cfg.StateTTL == 0:
		return popup.State{}, nil
	}
	return p.lookup(ctx, key)
}

// swapText replaces a state if it has the expected version, and appends the event.
//
//	KEYS state, ready, events, other states of the user
//	ARGV expected version, value, TTL in ms or 0, event, limit of events or "", version 0,
//	     1: a missing state says nothing, expected versions of the other states
//
// It returns 1; 0 for another version; -1 if the shard is not ready; -2 if too many events
// wait; -3 if the state must be read from the database first. All keys of a script are in
// one shard.
const swapText = `
local got = redis.call('MGET', KEYS[1], KEYS[2])
if not got[2] then return -1 end
local old, version = got[1], ARGV[6]
if old then version = string.sub(old, 1, 8) elseif ARGV[3] ~= '0' or ARGV[7] == '1' then return -3 end
if version ~= ARGV[1] then return 0 end
for i = 4, #KEYS do
	local other = redis.call('GET', KEYS[i])
	if not other and (ARGV[3] ~= '0' or ARGV[7] == '1') then return -3 end
	if (other and string.sub(other, 1, 8) or ARGV[6]) ~= ARGV[i+4] then return 0 end
end
if ARGV[5] ~= '' and redis.call('XLEN', KEYS[3]) >= tonumber(ARGV[5]) then return -2 end
if ARGV[3] == '0' then redis.call('SET', KEYS[1], ARGV[2])
else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])
return 1`

var swapScript = rueidis.NewLuaScript(swapText)

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
	k := &p.keys[shardOf(key.User)]
	keys := []string{k.stateKey(key), k.ready, k.events}
	args := []string{
		encodeVersion(version), string(appendValue(nil, next)), strconv.FormatInt(p.cfg.StateTTL.Milliseconds(), 10),
		string(encoded), p.eventsMax(), encodeVersion(0), "0",
	}
	if p.uncompared.Load() {
		args[6] = "1"
	}
	for _, g := range guards {
		keys = append(keys, k.stateKey(popup.Key{User: key.User, Placement: g.Placement}))
		args = append(args, encodeVersion(g.Version))
	}
	result, err := p.script(ctx, keys, args)
	if err != nil {
		if refused := refusedWrite(err); refused != nil {
			p.noteRefused(refused)
		}
		return false, p.db.wrap("swap", err)
	}
	return p.outcome(result, dials)
}

// encodeVersion returns a version as it begins a stored state.
func encodeVersion(version uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], version)
	return string(b[:])
}

// outcome returns what the result of a script means that began after so many dials.
func (p *Popups) outcome(result int64, dials uint64) (bool, error) {
	if dials != p.dials.Load() {
		return false, notReady("the connection broke during a swap")
	}
	switch result {
	case 1:
		return true, nil
	case 0, -3:
		return false, nil
	case -2:
		p.counters.full.Add(1)
		return false, fmt.Errorf("%d popup events wait for the database, the limit (popups.backlog_max)", p.cfg.BacklogMax)
	}
	p.unready(notReady("the server has lost states"))
	p.checkNow()
	return false, p.Ready()
}

// recordScript appends an event.
//
//	KEYS ready, events; ARGV event, limit of events or ""
//
// It returns 1, -1 or -2, as swapScript does.
var recordScript = rueidis.NewLuaScript(`
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
if ARGV[2] ~= '' and redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[2]) then return -2 end
redis.call('XADD', KEYS[2], '*', 'e', ARGV[1])
return 1`)

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
	k := &p.keys[shardOf(event.Key.User)]
	result, err := recordScript.Exec(ctx, p.db.client, []string{k.ready, k.events}, []string{string(encoded), p.eventsMax()}).AsInt64()
	if err != nil {
		if refused := refusedWrite(err); refused != nil {
			p.noteRefused(refused)
		}
		return p.db.wrap("record", err)
	}
	_, err = p.outcome(result, dials)
	return err
}

// script runs swapScript.
func (p *Popups) script(ctx context.Context, keys, args []string) (int64, error) {
	call := p.db.client.B().Evalsha().Sha1(p.swapSHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	result, err := p.pipeline.do(ctx, call)
	if err != nil {
		return 0, err
	}
	if refused, ok := rueidis.IsRedisErr(result.Error()); ok && refused.IsNoScript() {
		result = swapScript.Exec(ctx, p.db.client, keys, args) // loads the script
	}
	return result.AsInt64()
}

// backlogMargin is more than the events that all processes add between two counts.
const backlogMargin = 500_000

// eventsMax returns how many events of a shard may wait; "" if the backlog is far below its
// limit, so that swaps need not count.
func (p *Popups) eventsMax() string {
	if n := p.counters.backlog.Load(); n != unknown && 2*(n+backlogMargin) < int64(p.cfg.BacklogMax) {
		return ""
	}
	return strconv.Itoa(max(1, p.cfg.BacklogMax/popupShards))
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
	Applied  uint64 // events stored in the database and deleted here
	Claimed  uint64 // of those, claimed from a process that did not store them
	Bad      uint64 // events that could not be decoded and were set aside
	Failures uint64 // attempts to store a batch that failed
	Full     uint64 // swaps refused because too many events wait
	Loaded   uint64 // states read from the database for one user
	Rebuilds uint64 // times that this process restored the states
	Durable  bool   // the server syncs before it answers; checked each minute

	Backlog int64         // events of all processes that wait for the database, at the last count; -1: not known
	Oldest  time.Duration // age of the oldest of them; 0 if there is none or Backlog is not known
}

type popupCounters struct {
	applied, claimed, bad, failures, full, loaded, rebuilds atomic.Uint64
	backlog                                                 atomic.Int64
	durable                                                 atomic.Bool
}

// unknown is the backlog before it was counted.
const unknown = -1

// Stats returns the counters.
func (p *Popups) Stats() PopupStats {
	c := &p.counters
	s := PopupStats{
		Applied: c.applied.Load(), Claimed: c.claimed.Load(), Bad: c.bad.Load(), Failures: c.failures.Load(), Full: c.full.Load(),
		Loaded: c.loaded.Load(), Rebuilds: c.rebuilds.Load(), Backlog: c.backlog.Load(),
		Durable: c.durable.Load(),
	}
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
	option.ClientTrackingOptions = []string{"BCAST", "NOLOOP"}
	for i := range p.keys {
		option.ClientTrackingOptions = append(option.ClientTrackingOptions, "PREFIX", p.keys[i].state)
	}
	option.OnInvalidations = func(keys []rueidis.RedisMessage) {
		if keys == nil { // FLUSHALL, or the connection ended
			cache.Clear()
			return
		}
		for i := range keys {
			name, err := keys[i].ToString()
			key, ok := p.keyOf(name)
			if err != nil || !ok {
				cache.Clear() // an unknown key changed
				continue
			}
			cache.Forget(key)
		}
	}
}

// keyOf is the reverse of stateKey.
func (p *Popups) keyOf(name string) (popup.Key, bool) {
	prefix := len(p.keys[0].state) // of each shard
	if len(name) < prefix {
		return popup.Key{}, false
	}
	placement, user, ok := strings.Cut(name[prefix:], ":")
	return popup.Key{Placement: placement, User: user}, ok
}

// Forget removes the states of a user at placements and returns how many there were. Their
// events stay.
func (p *Popups) Forget(ctx context.Context, user string, placements []string) (int, error) {
	if err := p.available(); err != nil {
		return 0, err
	}
	keys := &p.keys[shardOf(user)]
	var names []string
	for _, placement := range placements {
		names = append(names, keys.stateKey(popup.Key{User: user, Placement: placement}))
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
	return p.counters.backlog.Load() != unknown && p.oldestAge() < time.Since(since)
}
