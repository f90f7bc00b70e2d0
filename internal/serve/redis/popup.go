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
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/rueidis"

	"spillway/internal/serve/popup"
)

// popupShards is over how many streams events are spread, and users with them. It is
// part of the keys: it cannot change while there are any.
const popupShards = 16

// PopupTable is the database that events go to and states come back from.
type PopupTable interface {
	// Apply stores events, each once, however often it comes.
	Apply(ctx context.Context, mark popup.Mark, events []popup.Event) error
	// Restore yields all states.
	Restore(ctx context.Context, yield func(popup.Key, popup.State) error) error
	// States returns the states of keys, in their order.
	States(ctx context.Context, keys []popup.Key) ([]popup.State, error)
}

// PopupConfig is what popups in Redis work with.
type PopupConfig struct {
	Table PopupTable
	Log   *slog.Logger
	// Cache, if set, is the popup.Config.Cache of the one Popup that uses these states:
	// what any process swaps is forgotten in it, and all of it while calls fail.
	Cache *popup.Cache

	// Namespace begins all keys; "": spillway. Services that share a server have
	// different ones.
	Namespace string
	// StateTTL is how long a state stays after its last event, so that the memory is
	// bounded by the users of that time: the state of a user who comes back later is
	// read from the database, and so is that of a new user, once. At least an hour.
	// 0: states stay for good, and the database is never asked for one. While an event
	// has waited for the database for more than half of it, no state is read from there:
	// it could be one of before an event that still waits.
	StateTTL time.Duration
	// Timeout is how long a call waits for a state from the database; 0: 5 seconds.
	Timeout time.Duration
	// BacklogMax is how many events may wait for the database; beyond it nothing is
	// shown or answered. 0: 4,000,000, which take about 600 MB.
	BacklogMax int
	// ClaimAfter is how long events may be with another process, without being stored,
	// before this one takes them over; 0: 30 seconds.
	ClaimAfter time.Duration
}

// The defaults of PopupConfig.
const (
	defaultNamespace  = "spillway"
	defaultBacklogMax = 4_000_000
	defaultClaimAfter = 30 * time.Second
	defaultTimeout    = 5 * time.Second
	stateTTLMin       = time.Hour
)

// Popups is a popup.Store for any number of processes, with the events in its swaps:
// popup.Config.Recorder stays nil. Run must run, or every call fails. Its methods may
// be called concurrently.
//
// Per user, the state is one key; a swap is one script that compares the version,
// writes the state and appends the event, or does none of it. Processes take
// events from the streams, store them in the database and only then forget them.
//
// Whatever may have cost Redis states makes all calls fail until states have been put
// back from the database: an empty server, and every other server or restart, as a
// new connection may reach one. What an answer was worth is the server's
// appendfsync: Durability says it.
type Popups struct {
	cfg      PopupConfig
	db       *DB // its client is not shared: a lost connection says something
	consumer string
	keys     [popupShards]shardKeys

	swap, restore, ready, ack, setAside, leave *rueidis.Lua

	swapSHA string // what the server calls swapScript
	sender  *sender

	dials    atomic.Uint64 // connections made
	verified atomic.Uint64 // dials, when the server was last found to be right; 0: not
	warmed   bool          // states were read ahead, once; the watcher's
	wake     chan struct{} // has the watcher look at once
	loads    chan *load
	opened   time.Time
	oldest   atomic.Int64 // no event that waits is older than opened plus these nanoseconds

	mu     sync.Mutex
	reason error // why calls fail; nil: they do not

	counters popupCounters
}

var _ popup.Store = (*Popups)(nil)

// shardKeys are the keys of a shard that there is one of.
type shardKeys struct{ state, ready, rebuild, events, bad string }

// ErrPopupServer: the server is one that popups cannot be kept on; the text says why
// and what to do.
var ErrPopupServer = errors.New("this Redis cannot keep popups")

// errNotReady begins the errors while states are not to be trusted.
var errNotReady = errors.New("popup states in Redis are not ready")

// OpenPopups prepares popups on the server at rawURL, which is as for Open. A server that
// does not answer is logged: it is looked for while Run runs. One that cannot be used
// is an error that wraps ErrPopupServer. The caller calls Run and, behind it, Close.
func OpenPopups(ctx context.Context, rawURL string, cfg PopupConfig) (*Popups, error) {
	if cfg.Table == nil || cfg.Log == nil {
		return nil, errors.New("open popups in Redis: a table and a log are needed")
	}
	if cfg.StateTTL != 0 && cfg.StateTTL < stateTTLMin {
		return nil, fmt.Errorf("open popups in Redis: the TTL of states must be %s or more, or 0", stateTTLMin)
	}
	cfg.Namespace = cmp.Or(cfg.Namespace, defaultNamespace)
	if !popup.IsPlacement(cfg.Namespace) {
		return nil, fmt.Errorf("open popups in Redis: the namespace must be 1 to %d lower-case letters, digits and -, not - first", popup.PlacementBytesMax)
	}
	option, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	cfg.BacklogMax = cmp.Or(cfg.BacklogMax, defaultBacklogMax)
	cfg.ClaimAfter = cmp.Or(cfg.ClaimAfter, defaultClaimAfter)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	var name [8]byte
	_, _ = rand.Read(name[:]) // it never fails
	p := &Popups{
		cfg: cfg, consumer: hex.EncodeToString(name[:]), wake: make(chan struct{}, 1), loads: make(chan *load, loadsMax), opened: time.Now(),
		swap: rueidis.NewLuaScript(swapScript), restore: rueidis.NewLuaScript(restoreScript), ready: rueidis.NewLuaScript(readyScript),
		ack: rueidis.NewLuaScript(ackScript), setAside: rueidis.NewLuaScript(setAsideScript), leave: rueidis.NewLuaScript(leaveScript),
		reason: fmt.Errorf("%w: nobody has looked at the server yet", errNotReady),
	}
	sum := sha1.Sum([]byte(swapScript))
	p.swapSHA = hex.EncodeToString(sum[:])
	p.counters.backlog.Store(unknown)
	for i := range p.keys {
		tag := fmt.Sprintf("{%s:popup:%02d}", cfg.Namespace, i)
		p.keys[i] = shardKeys{state: tag + ":state:", ready: tag + ":ready", rebuild: tag + ":rebuild", events: tag + ":events", bad: tag + ":bad"}
	}
	if err := p.connect(ctx, option); err != nil {
		return nil, err
	}
	return p, nil
}

// connect makes the client and looks at the server.
func (p *Popups) connect(ctx context.Context, option rueidis.ClientOption) error {
	option.ForceSingleClient = true // which also makes NewClient return a client for a server that is down
	p.track(&option)
	option.Dialer.Timeout = dialTimeout
	option.ConnWriteTimeout = commandTimeout
	option.ReadBufferEachConn = bufferSize
	option.WriteBufferEachConn = bufferSize
	option.PipelineMultiplex = oneConnection
	option.MaxFlushDelay = flushPause
	option.RetryDelay = retryStale
	dial := option.DialCtxFn // set for unix sockets
	option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		var conn net.Conn
		var err error
		switch {
		case dial != nil:
			conn, err = dial(ctx, address, dialer, config)
		case config != nil:
			conn, err = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
		default:
			conn, err = dialer.DialContext(ctx, "tcp", address)
		}
		if err == nil { // before any command goes over it: from here on nobody knows what the server holds
			p.dials.Add(1)
			p.look()
		}
		return conn, err
	}
	p.db = &DB{addr: option.InitAddress[0], password: option.Password}
	client, err := rueidis.NewClient(option)
	if client == nil {
		return p.db.wrap("open", err)
	}
	p.db.client = client
	p.sender = newSender(client)
	if err == nil {
		_, err = p.server(ctx)
	}
	if errors.Is(err, rueidis.ErrNoCache) {
		err = fmt.Errorf("%w: it does not let this user run CLIENT TRACKING; run ACL SETUSER with +client|tracking, or set popups.cache_users to 0", ErrPopupServer)
	}
	if errors.Is(err, ErrPopupServer) {
		client.Close()
		return p.db.wrap("use", err)
	}
	if err != nil {
		p.cfg.Log.Warn("Redis does not answer; popups wait for it", "err", p.db.wrap("connect", err))
	}
	return nil
}

// look has the watcher look at the server at once.
func (p *Popups) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Close closes the connection, after Run has ended.
func (p *Popups) Close() { p.db.Close() }

// Ready returns nil while calls are answered, and else why not.
func (p *Popups) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == nil && p.verified.Load() != p.dials.Load() {
		return fmt.Errorf("%w: the connection is new", errNotReady)
	}
	return p.reason
}

// available is Ready for the hot path.
func (p *Popups) available() error {
	if v := p.verified.Load(); v == 0 || v != p.dials.Load() {
		return cmp.Or(p.Ready(), errNotReady)
	}
	return nil
}

// unready has calls fail until the server is found to be right.
func (p *Popups) unready(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verified.Store(0)
	p.reason = reason
	if p.cfg.Cache != nil {
		p.cfg.Cache.Clear()
	}
}

// shardOf returns where a user is kept.
func shardOf(user string) int { return int(xxhash.Sum64String(user) % popupShards) }

// stateKey returns the key of a state.
func (k *shardKeys) stateKey(key popup.Key) string { return k.state + key.Placement + ":" + key.User }

// Get returns a state: one GET. Where the key is missing, the state is the zero State,
// or with a StateTTL what the database has.
func (p *Popups) Get(ctx context.Context, key popup.Key) (popup.State, error) {
	if err := p.available(); err != nil {
		return popup.State{}, err
	}
	result, err := p.sender.do(ctx, p.db.client.B().Get().Key(p.keys[shardOf(key.User)].stateKey(key)).Build())
	if err != nil {
		return popup.State{}, p.db.wrap("get", err)
	}
	value, err := result.AsBytes()
	switch {
	case err == nil:
		return decodeValue(value)
	case !rueidis.IsRedisNil(err):
		return popup.State{}, p.db.wrap("get", err)
	case p.cfg.StateTTL == 0:
		return popup.State{}, nil
	}
	return p.load(ctx, key)
}

// Swap replaces a state if its version is still version, and appends the event, where
// there is one, in the same step. An error may come behind the swap.
func (p *Popups) Swap(ctx context.Context, key popup.Key, version uint64, next popup.State, event popup.Event) (bool, error) {
	dials := p.dials.Load() // before the look: a connection made between them must be noticed below
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
	var expected [8]byte
	binary.BigEndian.PutUint64(expected[:], version)
	keys := []string{k.stateKey(key), k.ready, k.events}
	args := []string{
		string(expected[:]), string(appendValue(nil, next)), strconv.FormatInt(p.cfg.StateTTL.Milliseconds(), 10),
		string(encoded), p.eventsMax(), "\x00\x00\x00\x00\x00\x00\x00\x00",
	}
	result, err := p.script(ctx, keys, args)
	switch {
	case err != nil:
		return false, p.db.wrap("swap", err)
	case dials != p.dials.Load():
		return false, fmt.Errorf("%w: the connection broke during a swap", errNotReady)
	}
	switch result {
	case 1:
		return true, nil
	case 0, -3:
		return false, nil
	case -2:
		p.counters.full.Add(1)
		return false, fmt.Errorf("%d popup events wait for the database, and no more may", p.cfg.BacklogMax)
	}
	p.unready(fmt.Errorf("%w: the server has lost them", errNotReady))
	p.look()
	return false, p.Ready()
}

// script runs swapScript.
func (p *Popups) script(ctx context.Context, keys, args []string) (int64, error) {
	call := p.db.client.B().Evalsha().Sha1(p.swapSHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	result, err := p.sender.do(ctx, call)
	if err != nil {
		return 0, err
	}
	if refused, ok := rueidis.IsRedisErr(result.Error()); ok && refused.IsNoScript() {
		result = p.swap.Exec(ctx, p.db.client, keys, args) // the server learns it by that
	}
	return result.AsInt64()
}

// backlogMargin is more events than all processes add between two looks at them.
const backlogMargin = 500_000

// eventsMax returns how many events of a shard may wait, or "" where there are so few
// that no swap needs to count.
func (p *Popups) eventsMax() string {
	if n := p.counters.backlog.Load(); n != unknown && 2*(n+backlogMargin) < int64(p.cfg.BacklogMax) {
		return ""
	}
	return strconv.Itoa(max(1, p.cfg.BacklogMax/popupShards))
}

// appendValue appends a state as it is stored.
func appendValue(dst []byte, s popup.State) []byte {
	return popup.AppendState(binary.BigEndian.AppendUint64(dst, s.Version), s)
}

// decodeValue reads a stored state.
func decodeValue(value []byte) (popup.State, error) {
	if len(value) < 8 {
		return popup.State{}, errors.New("read a popup state from Redis: it is no state")
	}
	s, err := popup.DecodeState(value[8:])
	if err != nil || s.Version != binary.BigEndian.Uint64(value) {
		return popup.State{}, fmt.Errorf("read a popup state from Redis: %w", cmp.Or(err, errors.New("its versions differ")))
	}
	return s, nil
}
