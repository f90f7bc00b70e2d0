// Package redis reads and writes single keys of a Redis server, for the probe and
// for caches that replicas share. A server
// that is down does not keep a program from starting: each call tries to
// connect anew, and says why when it cannot.
//
// It talks to one server: a key that another node of a cluster holds is an error
// (MOVED).
package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// The bounds of every call. A call that has to connect first takes at most the sum.
const (
	dialTimeout    = time.Second // to connect, and again to log in
	commandTimeout = time.Second // from asking to the whole answer
)

// Commands go over one connection with two buffers of bufferSize: it makes the largest
// batches of what comes at once. Its writer pauses after a write where others wait:
// then one system call carries many commands, here and in Redis, which at 128
// callers saves a fifth of the CPU time of both. Who is alone does not wait.
const (
	oneConnection = -1 // as rueidis counts them
	bufferSize    = 64 << 10
	flushPause    = 40 * time.Microsecond
)

// errURL is what is wrong with any address that cannot be read. It quotes
// nothing of it: in a malformed address, any part may be the password.
var errURL = errors.New("parse Redis URL: write redis://[USER:PASSWORD@]HOST:PORT/DB, rediss:// for TLS, " +
	"or unix://[USER:PASSWORD@]/PATH?db=DB; in a password write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25")

// DB is one Redis server. Its methods may be called concurrently; commands that
// run at the same time share a connection.
type DB struct {
	client   rueidis.Client
	addr     string // host:port or path, for messages
	password string // never shown

	hold, release *rueidis.Lua
}

// Open prepares the connection to the server that rawURL names:
//
//	redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]
//	rediss://... the same through TLS; ?skip_verify=true takes any certificate
//	unix://[[USER]:PASSWORD@]/PATH[?db=DB]
//
// Its only errors are those of the address, and none of this package's errors
// holds the password. A server that does not answer is logged: later calls
// connect by themselves. Open waits for it up to two seconds. Close must be called.
func Open(rawURL string, log *slog.Logger) (*DB, error) {
	option, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	option.ForceSingleClient = true // which also makes NewClient return a client for a server that is down
	option.DisableCache = true
	option.Dialer.Timeout = dialTimeout
	option.ConnWriteTimeout = commandTimeout
	option.ReadBufferEachConn = bufferSize
	option.WriteBufferEachConn = bufferSize
	option.PipelineMultiplex = oneConnection
	option.MaxFlushDelay = flushPause
	option.RetryDelay = retryStale
	db := &DB{
		addr: option.InitAddress[0], password: option.Password,
		hold: rueidis.NewLuaScript(holdScript), release: rueidis.NewLuaScript(releaseScript),
	}
	db.client, err = rueidis.NewClient(option)
	if err != nil {
		if db.client == nil {
			return nil, db.wrap("open", err)
		}
		log.Warn("Redis does not answer; each call tries again", "err", db.wrap("connect", err))
	}
	return db, nil
}

// parse reads the address. It refuses what the driver would leave unread.
func parse(rawURL string) (rueidis.ClientOption, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rueidis.ClientOption{}, errURL
	}
	known := map[string]string{"redis": "", "rediss": "skip_verify", "unix": "db"}
	parameter, ok := known[u.Scheme]
	if !ok || u.Opaque != "" || u.Fragment != "" || (u.Scheme == "unix") != (u.Host == "") {
		return rueidis.ClientOption{}, errURL
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return rueidis.ClientOption{}, errURL
	}
	for name := range values {
		if name != parameter {
			return rueidis.ClientOption{}, errURL
		}
	}
	if u.Path == "/" {
		u.Path = ""
	}
	option, err := rueidis.ParseURL(u.String())
	if err != nil || option.SelectDB < 0 || option.InitAddress[0] == "" {
		return rueidis.ClientOption{}, errURL
	}
	return option, nil
}

// retryStale repeats a read whose connection turned out to be gone, as it is after a
// restart of the server, once; it does not wait for a server that is down.
func retryStale(attempts int, _ rueidis.Completed, _ error) time.Duration {
	if attempts <= 1 {
		return 0
	}
	return -1
}

// bound returns ctx with the time of one command. A context that ends about then by
// itself is used as it is: a timer for each command costs more than the command.
func bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < 2*commandTimeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, commandTimeout)
}

// Get returns the value of key and whether there is one. The value is the caller's.
func (db *DB) Get(ctx context.Context, key string) (value []byte, found bool, err error) {
	ctx, cancel := bound(ctx)
	defer cancel()
	value, err = db.client.Do(ctx, db.client.B().Get().Key(key).Build()).AsBytes()
	if rueidis.IsRedisNil(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, db.wrap("get", err)
	}
	return value, true, nil
}

// Put sets the value of key for at most ttl.
func (db *DB) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	command := db.client.B().Set().Key(key).Value(rueidis.BinaryString(value)).Px(max(ttl, time.Millisecond)).Build()
	if err := db.client.Do(ctx, command).Error(); err != nil {
		return db.wrap("set", err)
	}
	return nil
}

// Claim sets key to owner for ttl unless it is set already, and reports whether it did.
func (db *DB) Claim(ctx context.Context, key, owner string, ttl time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	err := db.client.Do(ctx, db.client.B().Set().Key(key).Value(owner).Nx().Px(max(ttl, time.Millisecond)).Build()).Error()
	if rueidis.IsRedisNil(err) {
		return false, nil
	}
	if err != nil {
		return false, db.wrap("claim", err)
	}
	return true, nil
}

// The scripts of Hold and Release: both look first whose the key is.
const (
	holdScript    = `if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end return redis.call("PEXPIRE", KEYS[1], ARGV[2])`
	releaseScript = `if redis.call("GET", KEYS[1]) ~= ARGV[1] then return 0 end return redis.call("DEL", KEYS[1])`
)

// Hold lets key last for ttl from now if owner has claimed it, and reports that.
func (db *DB) Hold(ctx context.Context, key, owner string, ttl time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	milliseconds := strconv.FormatInt(max(ttl.Milliseconds(), 1), 10)
	held, err := db.hold.Exec(ctx, db.client, []string{key}, []string{owner, milliseconds}).AsBool()
	if err != nil {
		return false, db.wrap("hold", err)
	}
	return held, nil
}

// Release removes key if owner has claimed it.
func (db *DB) Release(ctx context.Context, key, owner string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if err := db.release.Exec(ctx, db.client, []string{key}, []string{owner}).Error(); err != nil {
		return db.wrap("release", err)
	}
	return nil
}

// Ping asks whether the server answers.
func (db *DB) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if err := db.client.Do(ctx, db.client.B().Ping().Build()).Error(); err != nil {
		return db.wrap("ping", err)
	}
	return nil
}

// Close waits for the calls under way and closes the connections.
func (db *DB) Close() { db.client.Close() }

// wrap says what was done and where. A server that does not know HELLO repeats
// its arguments, and the password is one.
func (db *DB) wrap(action string, err error) error {
	if db.password != "" && strings.Contains(err.Error(), db.password) {
		err = errors.New(strings.ReplaceAll(err.Error(), db.password, "***"))
	}
	return fmt.Errorf("%s redis %s: %w", action, db.addr, err)
}
