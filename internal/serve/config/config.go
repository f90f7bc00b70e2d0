// Package config reads Spillway's one YAML file: strictly, with every mistake
// reported by line and column, and with secrets that come from the environment
// or from files and are never printed. It also prints the effective
// configuration and a JSON Schema of it.
//
// The types below are the one source of keys, meanings and bounds: the doc,
// range and enum tags feed the decoder's messages, Validate, Schema, and the
// test that holds docs/configuration.md to them. The package knows nothing of
// SQL and opens no database: what only another package can judge comes in as a
// Check.
package config

import "time"

// Config is a whole configuration: what the file says over Default, with
// secrets resolved. Durations are written as in Go ("100ms").
type Config struct {
	Listen   string   `yaml:"listen" doc:"address of the public listener, HOST:PORT"`
	Admin    Admin    `yaml:"admin" doc:"the listener for operators"`
	Data     string   `yaml:"data" doc:"directory of everything Spillway writes"`
	Database Secret   `yaml:"database" doc:"database of every feed and query that names none, postgres://, mysql:// or sqlite:PATH; empty: SQLite in data"`
	Replica  Secret   `yaml:"replica" doc:"read replica of database: feeds and queries on database read it while it answers; empty: none"`
	Redis    Secret   `yaml:"redis" doc:"Redis, for the probe and shared caches, redis://, rediss:// or unix://; empty: none"`
	Keys     []Secret `yaml:"keys" doc:"bearer keys of the write paths, 16 characters or more; none: they are open, which only a loopback listener may be"`
	Pool     Pool     `yaml:"pool" doc:"bounds of every database pool"`
	HTTP     HTTP     `yaml:"http" doc:"limits of the public listener"`
	Log      Log      `yaml:"log" doc:"what is logged and how, on standard error"`
	Feeds    []Feed   `yaml:"feeds" doc:"newest-first lists, each at its path"`
	Queries  []Query  `yaml:"queries" doc:"statements with parameters, each at its path"`
	Streams  []Stream `yaml:"streams" doc:"small records to store, each at its path"`
	Spool    Spool    `yaml:"spool" doc:"the local queue of streams with ack: spool, a file in data"`
	Popups   Popups   `yaml:"popups" doc:"the popup that suits each user"`
}

// Admin is the listener for operators.
type Admin struct {
	Listen string `yaml:"listen" doc:"address of the admin listener, HOST:PORT; loopback unless token is set"`
	Token  Secret `yaml:"token" doc:"bearer token, 16 characters or more, asked of every admin request but /livez and /readyz; empty: none"`
}

// Pool is database.Pool as the file writes it.
type Pool struct {
	Min              int           `yaml:"min" range:"0..10000" doc:"connections opened at start and kept"`
	Max              int           `yaml:"max" range:"1..10000" doc:"connections at most, for each database"`
	MaxLifetime      time.Duration `yaml:"max_lifetime" range:"1s..8760h" doc:"a connection older than this is replaced once it is free"`
	MaxIdleTime      time.Duration `yaml:"max_idle_time" range:"1s..8760h" doc:"a connection idle for longer is closed, down to min"`
	ConnectTimeout   time.Duration `yaml:"connect_timeout" range:"10ms..10m" doc:"one attempt to connect"`
	AcquireTimeout   time.Duration `yaml:"acquire_timeout" range:"1ms..10m" doc:"a statement waits at most this long for a connection"`
	StatementTimeout time.Duration `yaml:"statement_timeout" range:"1ms..1h" doc:"the server cancels a statement that runs longer"`
}

// HTTP holds the limits of the public listener.
type HTTP struct {
	Connections    int           `yaml:"connections" range:"1..1000000" doc:"connections open at once"`
	HeaderBytes    int           `yaml:"header_bytes" range:"1024..1048576" doc:"request line and headers together"`
	BodyBytes      int           `yaml:"body_bytes" range:"1..1073741824" doc:"request body"`
	BodiesBytes    int           `yaml:"bodies_bytes" range:"1..1099511627776" doc:"request bodies over 4 KiB that all connections together are sending or hold; at least body_bytes"`
	ReadTimeout    time.Duration `yaml:"read_timeout" range:"10ms..1h" doc:"from a request's first byte to its last"`
	WriteTimeout   time.Duration `yaml:"write_timeout" range:"10ms..1h" doc:"an answer's bytes to a slow client"`
	IdleTimeout    time.Duration `yaml:"idle_timeout" range:"10ms..24h" doc:"a keep-alive connection without a request"`
	DrainTimeout   time.Duration `yaml:"drain_timeout" range:"10ms..10m" doc:"time given to requests under way when the server stops"`
	TLSCert        string        `yaml:"tls_cert" doc:"PEM file of the certificate; with tls_key: https"`
	TLSKey         string        `yaml:"tls_key" doc:"PEM file of the certificate's key"`
	CORSOrigins    []string      `yaml:"cors_origins" doc:"allowed origins, SCHEME://HOST[:PORT], or * for all; none: no CORS headers"`
	TrustedProxies []string      `yaml:"trusted_proxies" doc:"addresses or CIDRs whose X-Forwarded-For is believed in logs"`
}

// Log says what is logged and how, on standard error.
type Log struct {
	Level  string `yaml:"level" enum:"debug,info,warn,error" doc:"the least level that is logged"`
	Format string `yaml:"format" enum:"text,json" doc:"one line a record, as key=value or as JSON"`
	Access bool   `yaml:"access" doc:"a line for each request"`
}

// Feed is one feed.
type Feed struct {
	Path       string        `yaml:"path" doc:"path of the list, starts with /"`
	Aliases    []string      `yaml:"aliases" doc:"further paths of the same list"`
	Database   Secret        `yaml:"database" doc:"the feed's own database; empty: the top-level one"`
	SQL        string        `yaml:"sql" doc:"one SELECT, no ORDER BY, no LIMIT; parameters as :name"`
	Key        Keys          `yaml:"key" doc:"output columns that order the list: unique together, NOT NULL, never changed; the largest first unless asc follows the name"`
	Params     Params        `yaml:"params" doc:"the statement's parameters, NAME: TYPE; the types are text, integer, real, boolean, timestamp and uuid"`
	Window     int           `yaml:"window" range:"1..100000" doc:"newest rows kept encoded in memory"`
	Refresh    time.Duration `yaml:"refresh" range:"10ms..1h" doc:"how often the window is read again while it is asked for"`
	IdleAfter  time.Duration `yaml:"idle_after" range:"10ms..24h" doc:"no request for so long: no more refreshes"`
	StaleMax   time.Duration `yaml:"stale_max" range:"10ms..24h" doc:"the oldest window served while the database is down"`
	Timeout    time.Duration `yaml:"timeout" range:"1ms..5m" doc:"a request waits at most so long for the database"`
	Limit      int           `yaml:"limit" range:"1..100000" doc:"rows a page when the request does not say"`
	LimitMax   int           `yaml:"limit_max" range:"1..100000" doc:"rows a page at most"`
	OffsetMax  int           `yaml:"offset_max" range:"0..1000000000000" doc:"the largest offset accepted"`
	WaitersMax int           `yaml:"waiters_max" range:"1..1000000" doc:"requests that may wait for the database at once"`
	WindowsMax int           `yaml:"windows_max" range:"1..100000" doc:"windows kept, one for each value of the parameters"`
	SweepShare float64       `yaml:"sweep_share" range:"0.001..1" doc:"share of one connection's time spent counting for deep offsets"`
}

// Query is one query.
type Query struct {
	Path       string        `yaml:"path" doc:"path of the query, starts with /"`
	Aliases    []string      `yaml:"aliases" doc:"further paths of the same query"`
	Database   Secret        `yaml:"database" doc:"the query's own database; empty: the top-level one"`
	SQL        string        `yaml:"sql" doc:"one SELECT; parameters as :name"`
	Params     Params        `yaml:"params" doc:"the statement's parameters, NAME: TYPE; the types are text, integer, real, boolean, timestamp and uuid"`
	RowsMax    int           `yaml:"rows_max" range:"1..1000000" doc:"rows of one answer at most"`
	BytesMax   int           `yaml:"bytes_max" range:"2..1073741824" doc:"bytes of one answer at most"`
	Timeout    time.Duration `yaml:"timeout" range:"1ms..5m" doc:"a request waits at most so long for the database; when all have left, the statement is cancelled"`
	TTL        time.Duration `yaml:"ttl" range:"0s..24h" doc:"an answer is good for so long from when it came; 0s: nothing is kept"`
	Stale      time.Duration `yaml:"stale" range:"0s..24h" doc:"and is served so much longer while one execution renews it"`
	Cache      string        `yaml:"cache" enum:"memory,redis" doc:"where answers are kept; redis: in memory and, for all replicas, in redis"`
	CacheBytes int           `yaml:"cache_bytes" range:"1024..68719476736" doc:"memory of kept answers"`
	WaitersMax int           `yaml:"waiters_max" range:"1..1000000" doc:"requests that may wait for the database at once"`
}

// Keys is a feed's key: one column or a list of them. A column may be followed by
// "asc" or "desc"; desc, the largest value first, is the default.
type Keys []KeyColumn

// KeyColumn is one column of a key.
type KeyColumn struct {
	Name      string
	Ascending bool
}

// String returns the column as the file writes it.
func (k KeyColumn) String() string {
	if k.Ascending {
		return k.Name + " asc"
	}
	return k.Name
}

// Params are a feed's parameters in the order of the file.
type Params []Param

// Param is one named, typed parameter.
type Param struct {
	Name string
	Type string // text, integer, real, boolean, timestamp or uuid
}
