// Package config reads Spillway's YAML file. It reports every mistake by line and column.
// Secrets come from the environment or from files and are never printed. It also prints the
// effective configuration, and a JSON Schema of it.
//
// The types below define all keys. Their tags default, required, doc (meaning), range, enum and over
// (what happens beyond the range) are the source of Default, Validate, Schema and the tables of
// the manual. The package does not parse SQL and opens no database; such rules are passed as Checks.
package config

import (
	"fmt"
	"reflect"
	"runtime"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/param"
)

// Config is a configuration: the file on top of Default, with secrets resolved. Durations
// are written as in Go ("100ms").
type Config struct {
	Listen        string        `yaml:"listen" default:"127.0.0.1:8080" doc:"public listener, HOST:PORT or unix:PATH"`
	Admin         Admin         `yaml:"admin" doc:"admin listener"`
	Data          string        `yaml:"data" default:"spillway-data" doc:"directory of all files that Spillway writes"`
	Database      Address       `yaml:"database" doc:"default database: a URL, or a block of url, user and password; empty: SQLite in data"`
	Replica       Address       `yaml:"replica" doc:"read replica of database, for feeds and queries; empty: none"`
	ReplicaLagMax time.Duration `yaml:"replica_lag_max" default:"10s" range:"2s..24h" doc:"age of the replica's rows while the primary answers" over:"the primary answers; 'spillway_replica_late'"`
	Redis         Address       `yaml:"redis" doc:"redis://, rediss:// or unix://, for the probe, shared caches and popups; empty: none"`
	RedisPrefix   string        `yaml:"redis_prefix" doc:"prefix of the keys of shared caches, in place of the identity of the database: all who have it share their answers, so each database and each of its users needs its own; empty: spillway, and the identity"`
	Keys          []Secret      `yaml:"keys" doc:"bearer keys of the write paths, at least 16 characters each; none: open, on loopback only"`
	Auth          Auth          `yaml:"auth" doc:"authentication of feeds and queries, and JWTs of streams"`
	Pool          Pool          `yaml:"pool" doc:"limits of each database pool"`
	HTTP          HTTP          `yaml:"http" doc:"limits of the public listener"`
	Probes        bool          `yaml:"probes" doc:"serve the probes, /hello and below /probe, to everyone"`
	Demo          bool          `yaml:"demo" doc:"be the demo of the freight app: serve its page at /, to everyone, create its campaigns, accept clock_offset, and without database create its data"`
	Log           Log           `yaml:"log" doc:"log on standard error"`
	Feeds         []Feed        `yaml:"feeds" doc:"newest-first lists"`
	Queries       []Query       `yaml:"queries" doc:"statements with parameters"`
	Streams       []Stream      `yaml:"streams" doc:"small records to store"`
	Spool         Spool         `yaml:"spool" doc:"local queue of streams with ack: spool, a file in data"`
	Popups        Popups        `yaml:"popups" doc:"popups per user"`
}

// Admin is the listener for operators.
type Admin struct {
	Listen string `yaml:"listen" default:"127.0.0.1:9090" doc:"HOST:PORT (without tokens on loopback) or unix:PATH"`
	Token  Secret `yaml:"token" doc:"bearer token, at least 16 characters, of all requests except /livez and /readyz with its groups; name and role are admin; empty: none"`

	Tokens []AdminToken `yaml:"tokens" doc:"further bearer tokens, with names and roles"`
	Links  []AdminLink  `yaml:"links" doc:"pages that the console links to: the consoles of other replicas, dashboards"`
}

// AdminLink is a page that the console links to.
type AdminLink struct {
	Name string  `yaml:"name" required:"true" doc:"of the link; 1 to 64 printable characters"`
	URL  Address `yaml:"url" required:"true" doc:"http or https"`
}

// AdminToken is a token of the admin listener.
type AdminToken struct {
	Name  string `yaml:"name" required:"true" doc:"of who uses it, for the history of campaigns; 1 to 64 printable characters"`
	Token Secret `yaml:"token" required:"true" doc:"bearer token, at least 16 characters"`
	Role  string `yaml:"role" default:"read" enum:"read,edit,admin" doc:"read: all that GET returns, except profiles; edit: also campaigns, and retries and moves in spools; admin: everything"`
}

// Pool limits each database pool.
type Pool = database.Pool

// HTTP holds the limits of the public listener.
type HTTP struct {
	Connections    int           `yaml:"connections" default:"65536" range:"1..1000000" doc:"open connections" over:"503; 'spillway_http_connections_rejected_total'"`
	Loops          int           `yaml:"loops" range:"-1..1024" doc:"event loops of the fast lane, which answer what needs no waiting, queries and POST to streams; 0: one per core; -1: none" over:"connections share the loops"`
	HeaderBytes    int           `yaml:"header_bytes" default:"16384" range:"1024..1048576" doc:"request line and headers" over:"431"`
	BodyBytes      int           `yaml:"body_bytes" default:"4194304" range:"1..1073741824" doc:"request body" over:"413; a path that reads no body accepts 4096 bytes"`
	BodiesBytes    int           `yaml:"bodies_bytes" default:"268435456" range:"1..1099511627776" doc:"all request bodies over 4 KiB; at least body_bytes; a chunked body counts as the largest of its path" over:"503 'too-many-bodies'; 'spillway_http_bodies_rejected_total'"`
	CompressBytes  int           `yaml:"compress_bytes" default:"67108864" range:"0..68719476736" doc:"memory of compressed first pages and cached answers; 0: nothing is compressed" over:"those unused for 10 s leave; without any, sent uncompressed; 'spillway_http_compress_refused_total'"`
	ReadTimeout    time.Duration `yaml:"read_timeout" default:"10s" range:"10ms..1h" doc:"from the first byte of a request to its last" over:"408"`
	WriteTimeout   time.Duration `yaml:"write_timeout" default:"10s" range:"10ms..1h" doc:"writing a response to a slow client" over:"the connection is closed"`
	IdleTimeout    time.Duration `yaml:"idle_timeout" default:"1m" range:"10ms..24h" doc:"time between requests on a connection" over:"the connection is closed"`
	StopDelay      string        `yaml:"stop_delay" default:"auto" doc:"after SIGTERM, time in which readiness says 503 and connections are still accepted, up to 10m; auto: 5s, or 0s if listen is on loopback or a Unix socket"`
	DrainTimeout   time.Duration `yaml:"drain_timeout" default:"10s" range:"10ms..10m" doc:"time for open requests when the server stops" over:"the process ends and logs their number"`
	TLSCert        string        `yaml:"tls_cert" doc:"PEM file of the certificate; requires tls_key; enables https"`
	TLSKey         string        `yaml:"tls_key" doc:"PEM file of the key"`
	Hosts          []string      `yaml:"hosts" doc:"host names that requests must use, without ports; others get 421; none: any"`
	CORSOrigins    []string      `yaml:"cors_origins" doc:"allowed origins, SCHEME://HOST[:PORT], or * for all; none: no CORS headers"`
	UnknownParams  string        `yaml:"unknown_params" default:"ignore" enum:"ignore,refuse" doc:"what becomes of a request with parameters that its path does not have: they are ignored, or it gets 400 with the nearest name"`
	OpenAPI        bool          `yaml:"openapi" default:"true" doc:"describe the public listener at /openapi.json, to everyone"`
	TrustedProxies []string      `yaml:"trusted_proxies" doc:"addresses or CIDRs whose X-Forwarded-For names the client, in the access log and for rate_per_minute"`
	RatePerMinute  int           `yaml:"rate_per_minute" range:"0..60000000" doc:"requests per minute to configured paths from a key or subject of a JWT, where required, else from an address (IPv6: a /64 network); 0: no limit" over:"429; 'spillway_http_rate_limited_total'"`
	RateBurst      int           `yaml:"rate_burst" default:"100" range:"1..1000000" doc:"requests of a client at once" over:"as rate_per_minute"`
	RateClients    int           `yaml:"rate_clients" default:"100000" range:"16..100000000" doc:"clients remembered, about 150 bytes each" over:"the longest idle is forgotten; 'spillway_http_rate_clients_forgotten_total'"`
}

// Log configures the log on standard error.
type Log struct {
	Level  string `yaml:"level" default:"info" enum:"debug,info,warn,error" doc:"lowest level that is logged"`
	Format string `yaml:"format" default:"text" enum:"text,json" doc:"key=value or JSON, one line per entry"`
	Access bool   `yaml:"access" doc:"one line per request; of its parameters only limit, offset and before; lines that cannot be written in time are lost"`
}

// Feed is one feed.
type Feed struct {
	Path       string        `yaml:"path" required:"true" doc:"starts with /; a segment may be a parameter, as in /orders/{id}"`
	Aliases    []string      `yaml:"aliases" doc:"further paths of the same feed"`
	Database   Address       `yaml:"database" doc:"empty: the top-level one"`
	SQL        string        `yaml:"sql" required:"true" doc:"one SELECT without ORDER BY and LIMIT; parameters as :name"`
	Key        Keys          `yaml:"key" required:"true" doc:"output columns that order the feed, descending unless followed by asc; unique together, NOT NULL, immutable"`
	Envelope   string        `yaml:"envelope" default:"data" enum:"data,none,return_code" doc:"what is around the rows of an answer"`
	Params     Params        `yaml:"params" doc:"NAME: TYPE or NAME: {type, default, list_max}; text, integer, real, decimal, boolean, timestamp, date, time, uuid or bytes; with list_max (1 to 1000) a list of up to that many values; claim.NAME: of the JWT"`
	Unknown    string        `yaml:"unknown_params" default:"default" enum:"default,ignore,refuse" doc:"as http.unknown_params, or as that says (default)"`
	Filters    Types         `yaml:"filters" doc:"NAME: TYPE of up to 4 output columns that requests can filter by"`
	Timestamps string        `yaml:"timestamps" default:"database" enum:"database,rfc3339" doc:"as the database has them, or RFC 3339 in UTC"`
	Numbers    string        `yaml:"numbers" default:"json" enum:"json,text" doc:"decimals and integers of 64 bits as JSON numbers or strings"`
	Plan       string        `yaml:"plan" default:"check" enum:"check,accept" doc:"what becomes of a statement that reads too many rows: it is refused at start, or accepted with a warning"`
	Auth       string        `yaml:"auth" default:"default" enum:"default,open,key,jwt,any" doc:"what requests need, as in auth.reads; default: as auth.reads says"`
	Window     int           `yaml:"window" default:"200" range:"1..100000" doc:"newest rows kept encoded in memory" over:"older rows are read from the database"`
	Refresh    time.Duration `yaml:"refresh" default:"100ms" range:"10ms..1h" doc:"interval between reads of the window while there are requests" over:"rows are older while a refresh takes longer; 'spillway_feed_age_seconds'"`
	IdleAfter  time.Duration `yaml:"idle_after" default:"2s" range:"10ms..24h" doc:"time without requests after which refreshes stop" over:"the next request waits for one"`
	StaleMax   time.Duration `yaml:"stale_max" default:"30s" range:"10ms..24h" doc:"age of the window served while the database is down" over:"503 until a refresh succeeds; 'spillway_feed_refused_total'"`
	SMaxAge    time.Duration `yaml:"s_maxage" range:"0s..24h" doc:"age up to which shared caches may serve rows without asking; whole seconds, longer than refresh; only without authentication; 0s: none" over:"they ask"`
	Revalidate time.Duration `yaml:"stale_while_revalidate" range:"0s..24h" doc:"time after s_maxage during which caches may serve the old rows while they ask; whole seconds" over:"requests wait"`
	Timeout    time.Duration `yaml:"timeout" default:"2s" range:"1ms..5m" doc:"wait of a request for the database" over:"503, at once if the predicted wait exceeds it; 'spillway_feed_refused_total'"`
	Limit      int           `yaml:"limit" default:"10" range:"1..100000" doc:"rows per page by default" over:"requests may ask for up to limit_max"`
	LimitMax   int           `yaml:"limit_max" default:"100" range:"1..100000" doc:"rows per page" over:"400"`
	OffsetMax  int           `yaml:"offset_max" default:"100000000" range:"0..1000000000000" doc:"largest offset" over:"400"`
	WaitersMax int           `yaml:"waiters_max" default:"1000" range:"1..1000000" doc:"requests waiting for the database, per value of the parameters" over:"503; 'spillway_feed_refused_total'"`
	WindowsMax int           `yaml:"windows_max" default:"100" range:"1..100000" doc:"windows kept, one per value of the parameters" over:"the values asked for most keep theirs; 'spillway_feed_evictions_total'"`
	WindowsMem int           `yaml:"windows_bytes" range:"0..68719476736" doc:"memory of the windows, of which one is always kept; 0: an equal share, with the other feeds that have parameters or filters, of 128 MiB, or of an eighth of the memory limit of the control group if that is less" over:"as windows_max; 'spillway_feed_window_bytes'"`
	LiveMax    int           `yaml:"live_max" range:"0..99999" doc:"of windows_max, values of the parameters that may have listeners at once; of one user ('claim.…') or address, a quarter" over:"503 'busy'; 'spillway_feed_refused_total'"`
	SweepShare float64       `yaml:"sweep_share" default:"0.02" range:"0.001..1" doc:"share of one connection spent counting rows for deep offsets" over:"counting pauses; 'spillway_feed_segment_age_seconds'"`
	SweepBytes int           `yaml:"sweep_bytes" default:"67108864" range:"65536..68719476736" doc:"memory of these counts" over:"503 'counting' for larger offsets; 'spillway_feed_segment_bytes'"`
}

// Query is one query.
type Query struct {
	Path       string        `yaml:"path" required:"true" doc:"as in feeds"`
	Aliases    []string      `yaml:"aliases" doc:"further paths of the same query"`
	Database   Address       `yaml:"database" doc:"empty: the top-level one"`
	SQL        string        `yaml:"sql" required:"true" doc:"one SELECT; parameters as :name"`
	Params     Params        `yaml:"params" doc:"as in feeds"`
	Unknown    string        `yaml:"unknown_params" default:"default" enum:"default,ignore,refuse" doc:"as in feeds"`
	Timestamps string        `yaml:"timestamps" default:"database" enum:"database,rfc3339" doc:"as in feeds"`
	Numbers    string        `yaml:"numbers" default:"json" enum:"json,text" doc:"as in feeds"`
	Auth       string        `yaml:"auth" default:"default" enum:"default,open,key,jwt,any" doc:"as in feeds"`
	Envelope   string        `yaml:"envelope" default:"data" enum:"data,none,return_code" doc:"as in feeds; without effect with one"`
	One        bool          `yaml:"one" doc:"the response is the only row as an object, or 404; rows_max is 1"`
	RowsMax    int           `yaml:"rows_max" default:"1000" range:"1..1000000" doc:"rows per answer" over:"500 'result-too-large'; 'spillway_query_execution_errors_total'"`
	BytesMax   int           `yaml:"bytes_max" default:"1048576" range:"2..1073741824" doc:"bytes per answer" over:"as rows_max"`
	Timeout    time.Duration `yaml:"timeout" default:"2s" range:"1ms..5m" doc:"wait of a request for the database" over:"503, at once if the predicted wait exceeds it; 'spillway_query_refused_total'"`
	TTL        time.Duration `yaml:"ttl" range:"0s..24h" doc:"time that an answer is cached; 0s: not at all" over:"executed again"`
	Stale      time.Duration `yaml:"stale" range:"0s..24h" doc:"time after ttl during which the old answer is served while it is renewed" over:"requests wait for the execution"`
	StaleMax   time.Duration `yaml:"stale_max" default:"30s" range:"10ms..24h" doc:"age of a replica's rows while the primary is away" over:"503; 'spillway_query_refused_total'"`
	Cache      string        `yaml:"cache" default:"memory" enum:"memory,redis" doc:"where answers are cached; redis: in memory, and in Redis for all replicas"`
	CacheBytes int           `yaml:"cache_bytes" default:"67108864" range:"1024..68719476736" doc:"memory of cached answers" over:"the least recently used is dropped; 'spillway_query_evictions_total'"`
	SMaxAge    time.Duration `yaml:"s_maxage" range:"0s..24h" doc:"as in feeds; longer than ttl" over:"they ask"`
	Revalidate time.Duration `yaml:"stale_while_revalidate" range:"0s..24h" doc:"as in feeds" over:"requests wait"`
	WaitersMax int           `yaml:"waiters_max" default:"10000" range:"1..1000000" doc:"requests waiting for the database" over:"503; 'spillway_query_refused_total'"`
}

// Keys is a feed's key: one column or a list of columns. A column may be followed by "asc" or
// "desc", which is the default.
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

// Types are names with their types, in the file's order.
type Types []Typed

// Typed is a name and its type.
type Typed struct {
	Name string `yaml:",key"`
	Type string `short:"true"`
}

// Params are the parameters of a statement in the file's order.
type Params []Param

// Names returns the names of the parameters.
func (p Params) Names() []string {
	var names []string
	for _, one := range p {
		names = append(names, one.Name)
	}
	return names
}

// Param is a named, typed parameter that may be optional, or a list.
type Param struct {
	Name    string   `yaml:",key"`
	Type    string   `yaml:"type" short:"true"` // text, integer, real, decimal, boolean, timestamp, date, time, uuid or bytes
	Default Literals `yaml:"default"`           // its value in requests that lack it; none: they are rejected
	ListMax int      `yaml:"list_max"`          // at least 1: a list of 1 to this many values; 0: one value
}

// Literals are one or several values, as written in the file; nil: none; param.Absent: null.
type Literals []string

// isNull reports whether requests that lack the parameter have NULL.
func (l Literals) isNull() bool { return len(l) == 1 && l[0] == param.Absent }

// Auth configures keys and JWTs. Feeds, queries and streams say which they require.
type Auth struct {
	Reads  string   `yaml:"reads" default:"open" enum:"open,key,jwt,any" doc:"what feeds and queries require: nothing (open), one of auth.keys, a JWT, or either (any)"`
	Keys   []Secret `yaml:"keys" doc:"bearer keys of feeds and queries, at least 16 characters each"`
	Cookie string   `yaml:"cookie" doc:"cookie that may carry the key or the JWT in GET requests for feeds and queries; empty: none"`
	JWT    JWT      `yaml:"jwt" doc:"which JWTs (JSON Web Tokens) are accepted"`
	JWKS   JWKS     `yaml:"jwks" doc:"public keys of an issuer that rotate (JSON Web Key Set); kid selects the key"`
}

// JWT says which tokens are accepted.
type JWT struct {
	Keys      []JWTKey      `yaml:"keys" doc:"keys that do not rotate"`
	Issuer    string        `yaml:"issuer" doc:"required iss; empty: any"`
	Audience  string        `yaml:"audience" doc:"required in aud; empty: any, also for other services"`
	Exp       string        `yaml:"exp" default:"required" enum:"required,optional" doc:"whether a token needs an expiry"`
	Nbf       string        `yaml:"nbf" default:"optional" enum:"required,optional" doc:"whether a token needs a begin"`
	ClockSkew time.Duration `yaml:"clock_skew" default:"30s" range:"0s..10m" doc:"permitted difference between the issuer's clock and this one" over:"401"`
}

// JWTKey is one key of JWTs.
type JWTKey struct {
	Kid       string `yaml:"kid" doc:"kid of its tokens; required if there are several keys or a key set; empty: any"`
	Algorithm string `yaml:"algorithm" default:"HS256" enum:"HS256,RS256,ES256,EdDSA" doc:"its only signature"`
	Key       Secret `yaml:"key" required:"true" doc:"HS256: the key, at least 32 characters; otherwise the public key in PEM"`
}

// JWKS says where a key set is fetched.
type JWKS struct {
	URL     Address       `yaml:"url" doc:"https://, or http:// on a loopback address; empty: none"`
	Refresh time.Duration `yaml:"refresh" default:"5m" range:"1s..24h" doc:"time from one fetch to the next" over:"known keys stay valid while fetches fail; 'spillway_jwks_age_seconds'"`
	Pause   time.Duration `yaml:"pause" default:"10s" range:"100ms..1h" doc:"shortest time between fetches for tokens with an unknown kid" over:"401, or 503 'token-keys-down' if the last fetch failed"`
	Timeout time.Duration `yaml:"timeout" default:"5s" range:"10ms..1m" doc:"of a fetch, and of a request's wait for one" over:"503 'token-keys-down'; 'spillway_jwks_errors_total'"`
}

// StopDelay returns http.stop_delay of a valid configuration.
func (c Config) StopDelay() time.Duration {
	delay, err := time.ParseDuration(c.HTTP.StopDelay)
	if err != nil && openToOthers(c.Listen) {
		return stopDelayAuto
	}
	return delay
}

// The default and the bound of http.stop_delay.
const (
	stopDelayAuto = 5 * time.Second
	stopDelayMax  = 10 * time.Minute
)

// RefusesUnknown reports whether a path with that unknown_params refuses parameters that it does not have.
func (c Config) RefusesUnknown(own string) bool {
	return own == "refuse" || own == "default" && c.HTTP.UnknownParams == "refuse"
}

// ReadAccess returns what a feed or a query with that auth requires: open, key, jwt or any.
func (c Config) ReadAccess(auth string) string {
	if auth == authDefault {
		return c.Auth.Reads
	}
	return auth
}

// authDefault stands for auth.reads.
const authDefault = "default"

// Default returns the default configuration, without feeds. Only Pool.Max depends on the
// machine: (cores x 2) + 1.
func Default() Config {
	c := Defaults[Config]()
	c.Pool.Max = 2*runtime.GOMAXPROCS(0) + 1
	return c
}

// Defaults returns a block of the configuration with the defaults of its keys.
func Defaults[Block any]() Block {
	block, _ := Preset(reflect.TypeFor[Block]())
	return block.Interface().(Block)
}

// IsBlock reports whether a type is that of a block of keys.
func IsBlock(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	name := t.Field(0).Tag.Get("yaml")
	return name != "" && name != ",key"
}

// Preset is Defaults for the type of a block; false if t is no such type.
func Preset(t reflect.Type) (reflect.Value, bool) {
	if !IsBlock(t) {
		return reflect.Value{}, false
	}
	v := reflect.New(t).Elem()
	for i := range t.NumField() {
		if block, ok := Preset(t.Field(i).Type); ok {
			v.Field(i).Set(block)
		}
		if text, ok := t.Field(i).Tag.Lookup("default"); ok {
			setDefault(v.Field(i), text)
		}
	}
	return v, true
}

// setDefault sets a duration, a number, a bool or a word.
func setDefault(v reflect.Value, text string) {
	var err error
	if duration, ok := v.Addr().Interface().(*time.Duration); ok {
		*duration, err = time.ParseDuration(text)
	} else {
		_, err = fmt.Sscan(text, v.Addr().Interface())
	}
	if err != nil {
		panic("BUG: the default " + text + ": " + err.Error())
	}
}
