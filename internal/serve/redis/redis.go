// Package redis uses one Redis server for three things: the probe, caches that replicas
// share, and popups. A program can start while the server is down: each call tries to
// connect, and returns why it cannot.
//
// The client does not follow a cluster: a key on another node is an error (MOVED).
//
// Popups:
//
//	popup.go             the store: reads, swaps and forgets states, and keeps a cache current
//	popup_database.go    asks the database for its id, and for states that Redis does not have
//	popup_consumer.go    moves events to the database
//	popup_health.go      checks the server
//	popup_rebuild.go     restores states after a loss
//	popup_campaigns.go   keeps a copy of the campaigns
//	denied.go            names the rights that the user lacks
//	scripts              what the server does at once
package redis

import (
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"spillway/internal/database"
)

// Timeouts of every call. A call that must connect first takes at most the sum.
const (
	dialTimeout    = time.Second // to connect, and again to log in
	commandTimeout = time.Second // until the whole answer has arrived
)

// All commands share one connection with large buffers. Its writer pauses after a write if
// other commands wait, so that one system call carries many commands, here and in Redis. A
// single caller does not wait.
const (
	oneConnection = -1 // rueidis: 2^0 connections
	bufferSize    = 64 << 10
	flushPause    = 40 * time.Microsecond
)

// errURL is the error of every address that cannot be parsed. It quotes no part, because any
// part of a malformed address may be the password.
var errURL = errors.New("parse Redis URL: write redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// for TLS, " +
	"or unix://[USER:PASSWORD@]/PATH?db=DB; in a password write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25")

//go:embed scripts
var scripts embed.FS

// script returns the text of a script, which says what it does.
func script(name string) string {
	text, err := scripts.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(text)
}

// DB is a client of one Redis server. Its methods may be called concurrently and share a
// connection. While the server hangs, they return an error at once.
type DB struct {
	client   rueidis.Client
	addr     string                  // host:port or path, for messages
	password *atomic.Pointer[string] // never part of a message
	keys     string                  // the pattern of the keys of calls that name none, for messages
	timeout  time.Duration
	breaker  *breaker // of all calls but Ping

	denials   sync.Map    // the errors of calls that the server refused when they were last made, by denial
	noScripts atomic.Bool // Hold and Release run no scripts, because the user may not
}

// Address returns the URL of a server:
//
//	redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]
//	rediss://... the same through TLS; ?skip_verify=true takes any certificate, ?cacert=FILE those of
//	    these authorities; cert=FILE and key=FILE are the client's own
//	unix://[[USER]:PASSWORD@]/PATH[?db=DB]
//
// It is called again for each connection, whose user, password and certificates are those of that
// moment.
type Address func() (string, error)

// Open prepares the connection to the server at an address. It returns an error only for the
// address. If the server does not answer within two seconds, that is logged, and later calls
// connect. No error of this package contains the password. The caller must call Close.
func Open(address Address, log *slog.Logger) (*DB, error) {
	return open(address, log, dialTimeout, commandTimeout)
}

// Check returns what is wrong with an address or with its files. It connects to nothing.
func Check(address Address) error {
	_, err := address.read()
	return err
}

func open(address Address, log *slog.Logger, dial, command time.Duration) (*DB, error) {
	option, password, err := address.option()
	if err != nil {
		return nil, err
	}
	option.DisableCache = true
	db := newDB(&option, password, dial, command)
	db.client, err = rueidis.NewClient(option)
	if err != nil {
		if db.client == nil {
			return nil, db.wrap("open", err)
		}
		log.Warn("Redis cannot be used; each call tries again", "error", db.wrap("connect", err))
	}
	return db, nil
}

// newDB sets what the clients have in common, and returns a DB that has no client yet.
func newDB(option *rueidis.ClientOption, password *atomic.Pointer[string], dial, command time.Duration) *DB {
	option.ForceSingleClient = true // which also makes NewClient return a client for a server that is down
	option.Dialer.Timeout = dial
	option.ConnWriteTimeout = command
	option.ReadBufferEachConn = bufferSize
	option.WriteBufferEachConn = bufferSize
	option.PipelineMultiplex = oneConnection
	option.MaxFlushDelay = flushPause
	option.RetryDelay = retryStale
	db := &DB{addr: option.InitAddress[0], password: password, timeout: command}
	db.breaker = &breaker{timeout: command, ping: db.Ping}
	return db
}

// option returns what the driver needs to connect to the address, now and later, and the password of the last connection.
func (a Address) option() (option rueidis.ClientOption, password *atomic.Pointer[string], err error) {
	password = new(atomic.Pointer[string])
	if option, err = a.read(); err != nil {
		return option, password, err
	}
	password.Store(&option.Password)
	option.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		now, err := a.read()
		password.Store(&now.Password)
		return rueidis.AuthCredentials{Username: now.Username, Password: now.Password}, err
	}
	if option.TLSConfig != nil {
		option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
			now, err := a.read()
			if err != nil {
				return nil, err
			}
			return (&tls.Dialer{NetDialer: dialer, Config: now.TLSConfig}).DialContext(ctx, "tcp", address)
		}
	}
	return option, password, nil
}

// read reads the address and its files.
func (a Address) read() (option rueidis.ClientOption, err error) {
	rawURL, err := a()
	if err != nil {
		return option, err
	}
	option, files, err := parse(rawURL)
	if err == nil && files != (database.TLSFiles{}) {
		option.TLSConfig, err = files.Config(option.TLSConfig.ServerName)
	}
	return option, err
}

// parse parses the address. It refuses parts that the driver would ignore.
func parse(rawURL string) (option rueidis.ClientOption, files database.TLSFiles, err error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return option, files, errURL
	}
	known := map[string][]string{"redis": {}, "rediss": {"skip_verify", "cacert", "cert", "key"}, "unix": {"db"}}
	parameters, ok := known[u.Scheme]
	if !ok || u.Opaque != "" || u.Fragment != "" || (u.Scheme == "unix") != (u.Host == "") {
		return option, files, errURL
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return option, files, errURL
	}
	for name := range values {
		if !slices.Contains(parameters, name) {
			return option, files, errURL
		}
	}
	files = database.TLSFiles{CA: values.Get("cacert"), Cert: values.Get("cert"), Key: values.Get("key")}
	if files.CA != "" && values.Has("skip_verify") {
		return option, files, errors.New("parse Redis URL: cacert checks the certificate and skip_verify does not; give one of them")
	}
	for _, name := range []string{"cacert", "cert", "key"} {
		values.Del(name)
	}
	u.RawQuery = values.Encode()
	if u.Path == "/" {
		u.Path = ""
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return option, files, errURL
		}
	}
	option, err = rueidis.ParseURL(u.String())
	if err != nil || option.SelectDB < 0 || option.InitAddress[0] == "" {
		return rueidis.ClientOption{}, files, errURL
	}
	return option, files, nil
}

// retryStale retries a read once if its connection was lost, as after a restart of the server.
// It does not wait for a server that is down.
func retryStale(attempts int, _ rueidis.Completed, _ error) time.Duration {
	if attempts <= 1 {
		return 0
	}
	return -1
}

// bound returns ctx with the timeout of a command. It returns ctx itself if its deadline is
// similar, because a timer costs more than the command.
func (db *DB) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < db.timeout*5/4 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, db.timeout)
}

// Get returns the value of a key and whether it exists. The caller owns the value.
func (db *DB) Get(ctx context.Context, key string) (value []byte, found bool, err error) {
	err = db.guard(ctx, "get", key, func(ctx context.Context) (err error) {
		value, err = db.client.Do(ctx, db.client.B().Get().Key(key).Build()).AsBytes()
		found = err == nil
		return err
	})
	return value, found, err
}

// Put sets the value of key for at most ttl.
func (db *DB) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return db.guard(ctx, "set", key, func(ctx context.Context) error {
		text := rueidis.BinaryString(value)
		return db.client.Do(ctx, db.client.B().Set().Key(key).Value(text).Px(max(ttl, time.Millisecond)).Build()).Error()
	})
}

// Claim sets key to owner for ttl unless it is set already, and reports whether it did.
func (db *DB) Claim(ctx context.Context, key, owner string, ttl time.Duration) (claimed bool, err error) {
	err = db.guard(ctx, "claim", key, func(ctx context.Context) error {
		err := db.client.Do(ctx, db.client.B().Set().Key(key).Value(owner).Nx().Px(max(ttl, time.Millisecond)).Build()).Error()
		claimed = err == nil
		return err
	})
	return claimed, err
}

// The scripts of Hold and Release check the owner first.
var (
	holdScript    = rueidis.NewLuaScript(script("hold"))
	releaseScript = rueidis.NewLuaScript(script("release"))
)

// Hold renews the ttl of a key if it belongs to owner, and reports whether it does.
func (db *DB) Hold(ctx context.Context, key, owner string, ttl time.Duration) (held bool, err error) {
	ttl = max(ttl, time.Millisecond)
	err = db.guard(ctx, "hold", key, func(ctx context.Context) (err error) {
		renew := db.client.B().Pexpire().Key(key).Milliseconds(ttl.Milliseconds()).Build()
		held, err = db.own(ctx, holdScript, renew, key, owner, strconv.FormatInt(ttl.Milliseconds(), 10))
		return err
	})
	return held, err
}

// Release removes a key if it belongs to owner.
func (db *DB) Release(ctx context.Context, key, owner string) error {
	return db.guard(ctx, "release", key, func(ctx context.Context) error {
		_, err := db.own(ctx, releaseScript, db.client.B().Del().Key(key).Build(), key, owner)
		return err
	})
}

// own runs a script that changes a key of owner, or without the right to run scripts the command: another owner can then have
// got the key since it was read, and its claim ends too early.
func (db *DB) own(ctx context.Context, script *rueidis.Lua, change rueidis.Completed, key, owner string, args ...string) (bool, error) {
	scripts := !db.noScripts.Load()
	if scripts {
		done, err := script.Exec(ctx, db.client, []string{key}, append([]string{owner}, args...)).AsBool()
		if !isDenied(err) {
			return done, err
		}
	}
	last, err := db.client.Do(ctx, db.client.B().Get().Key(key).Build()).ToString()
	if err != nil || last != owner {
		return false, err
	}
	done, err := db.client.Do(ctx, change).AsBool()
	if scripts && err == nil {
		db.noScripts.Store(true)
	}
	return done, err
}

// Ping checks that the server answers.
func (db *DB) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, db.timeout)
	defer cancel()
	return db.wrap("ping", db.client.Do(ctx, db.client.B().Ping().Build()).Error())
}

// Close waits for current calls and closes the connections.
func (db *DB) Close() {
	db.breaker.wait()
	db.client.Close()
}

// guard runs a call of the client within its timeout, unless the server hangs, and wraps its error with the action.
// That a key does not exist is no error.
func (db *DB) guard(ctx context.Context, action, key string, call func(context.Context) error) error {
	ctx, cancel := db.bound(ctx)
	defer cancel()
	began := time.Now()
	err := db.breaker.begin(began)
	if err == nil {
		err = call(ctx)
		if rueidis.IsRedisNil(err) {
			err = nil
		}
		db.breaker.end(began, err)
		err = denied(err, keysLike(key))
		db.noteDenial(denial{action, keysLike(key)}, err)
	}
	return db.wrap(action, err)
}

// wrap adds the action and the server to an error. A refusal says what to permit. It removes the
// password, which a server that does not know HELLO repeats.
func (db *DB) wrap(action string, err error) error {
	if err == nil {
		return nil
	}
	err = denied(err, db.keys)
	if password := *db.password.Load(); password != "" && strings.Contains(err.Error(), password) {
		err = errors.New(strings.ReplaceAll(err.Error(), password, "***"))
	}
	return fmt.Errorf("%s redis %s: %w", action, db.addr, err)
}

// breakerPause is the time between two pings of a server that hangs.
const breakerPause = time.Second

// errHangs is the error of a call that was not sent.
var errHangs = errors.New("the server does not answer; it is asked again as soon as it answers a ping")

// breaker refuses calls at once while the server hangs. It hangs if a call has failed after half
// of its timeout or more. From then on, beside one call per breakerPause, a ping finds out
// whether the server answers again. Its methods may be called concurrently.
type breaker struct {
	timeout time.Duration                   // of a call
	ping    func(ctx context.Context) error // within the timeout

	until atomic.Int64 // Unix nanoseconds of the next ping; 0: the server answers
	pings sync.WaitGroup
}

// begin returns errHangs if a call must not be sent. After nil, end must be called.
func (b *breaker) begin(now time.Time) error {
	until := b.until.Load()
	if until == 0 {
		return nil
	}
	next := now.Add(2*b.timeout + breakerPause).UnixNano()
	if now.UnixNano() >= until && b.until.CompareAndSwap(until, next) {
		b.pings.Go(func() {
			if !b.end(now, b.ping(context.Background())) {
				b.until.Store(0)
			}
		})
	}
	return errHangs
}

// end takes the error of a call that began at that time, and reports whether the server hangs.
func (b *breaker) end(began time.Time, err error) (hangs bool) {
	now := time.Now()
	if hangs = err != nil && now.Sub(began) >= b.timeout/2; hangs {
		b.until.Store(now.Add(breakerPause).UnixNano())
	}
	return hangs
}

// wait waits for the ping that is under way. No call may follow.
func (b *breaker) wait() { b.pings.Wait() }
