package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway/internal/yaml"

	"spillway/internal/serve/param"
)

// valid returns a configuration with one feed, changed by change.
func valid(change func(*Config)) Config {
	c := Default()
	feed := Defaults[Feed]()
	feed.Path, feed.SQL, feed.Key = "/orders", "SELECT id FROM orders", Keys{{Name: "id"}}
	c.Feeds = []Feed{feed}
	change(&c)
	return c
}

func TestValidateAccepts(t *testing.T) {
	t.Parallel()
	good := func(change func(*Config)) {
		t.Helper()
		if err := valid(change).Validate(); err != nil {
			t.Error(err)
		}
	}
	good(func(*Config) {})
	good(func(c *Config) { c.Feeds = nil })
	good(func(c *Config) { c.Listen, c.Admin.Listen = ":0", "localhost:0" })
	good(func(c *Config) { c.Listen, c.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0" })
	good(func(c *Config) { c.Admin.Listen = "[::1]:9090" })
	good(func(c *Config) { c.Admin = Admin{Listen: ":9090", Token: "0123456789abcdef"} })
	good(func(c *Config) { c.HTTP.TLSCert, c.HTTP.TLSKey = "a", "b" })
	good(func(c *Config) { c.HTTP.CORSOrigins = []string{"*", "https://[::1]:1", "http://a"} })
	good(func(c *Config) { c.HTTP.Hosts = []string{"api.example.com", "localhost", "10.0.0.1", "[::1]"} })
	good(func(c *Config) { c.Redis = "rediss://ann:pw@h:6379/1" })
	good(func(c *Config) { c.Feeds[0].Path = "/" })
	good(func(c *Config) { c.HTTP.StopDelay = "0" })
	for listen, want := range map[string]time.Duration{":80": 5 * time.Second, "10.0.0.1:80": 5 * time.Second, "127.0.0.1:80": 0, "[::1]:80": 0, "unix:/a": 0} {
		c := valid(func(c *Config) { c.Listen = listen })
		if got := c.StopDelay(); got != want {
			t.Errorf("%s: %v, want %v", listen, got, want)
		}
		if c.HTTP.StopDelay = "2s"; c.StopDelay() != 2*time.Second {
			t.Errorf("%s: a given delay is %v", listen, c.StopDelay())
		}
	}
	good(func(c *Config) { c.HTTP.OpenAPI, c.Feeds[0].Path = false, "/openapi.json" })
	good(func(c *Config) { c.Feeds[0].Aliases = []string{"/helloworld", "/probes", "/a/b.json", "/~x/1-2_3"} })
	good(func(c *Config) { c.Feeds[0].SweepShare = 1; c.Feeds[0].OffsetMax = 0; c.Pool.Min = 0 })
	good(func(c *Config) {
		c.Feeds[0].Params = Params{{Name: "city", Type: "text"}, {Name: "_n1", Type: "integer"}}
	})
	good(func(c *Config) {
		c.Feeds[0].Params, c.Feeds[0].Filters = Params{{Name: "id", Type: "integer"}}, Types{{Name: "city", Type: "text"}}
		c.Feeds[0].Path, c.Feeds[0].Aliases = "/orders/{id}", []string{"/orders", "/orders/new", "/{city}/{id}", "/{city}/orders"}
		q := Defaults[Query]()
		q.Path, q.SQL, q.Params = "/orders/{b}/lines", "SELECT :b", Params{{Name: "b", Type: "text"}}
		c.Queries = []Query{q}
	})
	good(func(c *Config) { c.Feeds[0].Key = Keys{{Name: "größe"}, {Name: "id", Ascending: true}} })
}

func TestValidateRefusesPath(t *testing.T) {
	t.Parallel()
	refused := func(want string, change func(*Config)) {
		t.Helper()
		err := valid(change).Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line %s...", err, want)
		}
	}
	withParams := func(path string, aliases ...string) func(*Config) {
		return func(c *Config) {
			c.Feeds[0].Params = Params{{Name: "id", Type: "integer"}, {Name: "ids", Type: "integer", ListMax: 2}, {Name: "claim.sub", Type: "text"}}
			c.Feeds[0].Path, c.Feeds[0].Aliases, c.Feeds[0].Auth = path, aliases, "jwt"
			c.Auth.JWT.Keys = []JWTKey{{Algorithm: "HS256", Key: Secret(strings.Repeat("k", 32))}}
		}
	}
	refused(`feeds[0].path: must have in braces, each once, only params without list_max, and filters: id, not "/a/{other}"`, withParams("/a/{other}"))
	refused(`feeds[0].path: must have in braces`, withParams("/a/{ids}"))
	refused(`feeds[0].path: must have in braces`, withParams("/{id}/{id}"))
	refused(`feeds[0].path: must have {NAME} only as a whole segment`, withParams("/a/{claim.sub}"))
	refused(`feeds[0].path: must have {NAME} only as a whole segment`, withParams("/a/x{id}"))
	refused(`feeds[0].path: must have {NAME} only as a whole segment`, withParams("/a/{}"))
	refused(`feeds[0].path: must have {NAME} only as a whole segment`, withParams("/a/{id}/"))
	refused(`feeds[0].path: must have {NAME} only as a whole segment`, withParams("{id}"))
	refused(`feeds[0].path: must not be /hello or below /probe`, withParams("/probe/{id}"))
	refused(`feeds[0].aliases[0]: must differ from feeds[0].path, not only in the names of parameters, not "/a/{id}"`, withParams("/a/{id}", "/a/{id}"))
	refused(`queries[0].path: must differ from feeds[0].path, not only in the names of parameters, not "/a/{n}"`, func(c *Config) {
		withParams("/a/{id}")(c)
		q := Defaults[Query]()
		q.Path, q.SQL, q.Params = "/a/{n}", "SELECT :n", Params{{Name: "n", Type: "text"}}
		c.Queries = []Query{q}
	})
	refused(`feeds[0].path: must have no {NAME}: only params`, func(c *Config) { c.Feeds[0].Path = "/a/{id}" })
	refused(`feeds[0].unknown_params: must be default, ignore or refuse, not "reject"`, func(c *Config) { c.Feeds[0].Unknown = "reject" })
}

func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	refused := func(want string, change func(*Config)) {
		t.Helper()
		err := valid(change).Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line %s...", err, want)
		}
	}
	refused(`listen: must be HOST:PORT, :PORT for all addresses of this machine, or unix:PATH, not "8080"`, func(c *Config) { c.Listen = "8080" })
	refused("listen: must be HOST:PORT", func(c *Config) { c.Listen = "" })
	refused("listen: must be HOST:PORT", func(c *Config) { c.Listen = "h:65536" })
	refused("listen: must be HOST:PORT", func(c *Config) { c.Listen = "h:http" })
	refused(`admin.token: must be set, unless admin.listen is a loopback address`, func(c *Config) { c.Admin.Listen = ":9090" })
	refused(`admin.token: must be set, unless admin.listen is a loopback address`, func(c *Config) { c.Admin.Listen = "10.0.0.1:9090" })
	refused(`admin.token: must be set, unless admin.listen is a loopback address`, func(c *Config) { c.Admin.Listen = "db.example:9090" })
	refused(`admin.listen: must differ from listen, not "127.0.0.1:8080"`, func(c *Config) { c.Admin.Listen = c.Listen })
	refused("admin.token: must have at least 16 characters", func(c *Config) { c.Admin.Token = "0123456789abcde" })
	token := func(name, token string) AdminToken { return AdminToken{Name: name, Token: Secret(token), Role: "edit"} }
	const good, other = "0123456789abcdef", "another-0123456789"
	accepted := valid(func(c *Config) { c.Admin.Listen, c.Admin.Tokens = ":9090", []AdminToken{token("Zoë", good)} })
	if err := accepted.Validate(); err != nil {
		t.Errorf("a token with a role: %v", err)
	}
	refused("admin.tokens[0].token: must have at least 16 characters", func(c *Config) { c.Admin.Tokens = []AdminToken{token("a", "short")} })
	refused("admin.tokens[1].token: must not be repeated", func(c *Config) { c.Admin.Tokens = []AdminToken{token("a", good), token("b", good)} })
	refused("admin.tokens[1].name: must not be repeated", func(c *Config) { c.Admin.Tokens = []AdminToken{token("a", good), token("a", other)} })
	refused("admin.tokens[0].name: must not be repeated; admin is the name of admin.token", func(c *Config) {
		c.Admin.Token, c.Admin.Tokens = good, []AdminToken{token("admin", other)}
	})
	refused("admin.tokens[0].name: must be 1 to 64 printable characters", func(c *Config) { c.Admin.Tokens = []AdminToken{token(" ", good)} })
	links := func(name, url string) func(*Config) {
		return func(c *Config) { c.Admin.Links = []AdminLink{{name, Address(url)}} }
	}
	linked := valid(links("Grafana 📈", "https://grafana.example/d/x?var=1"))
	if err := linked.Validate(); err != nil {
		t.Errorf("a link: %v", err)
	}
	if text := linked.Admin.Links[0].URL.String(); text != "https://grafana.example/d/x?***" {
		t.Errorf("the link is printed as %s", text)
	}
	refused(`admin.links[0].url: must be a URL with http or https, not "***"`, links("a", "javascript:alert(1)"))
	refused("admin.links[0].url: must be a URL with http or https", links("a", "/d/x"))
	refused("admin.links[0].name: must be 1 to 64 printable characters", links("", "http://a"))
	refused("admin.tokens[0].role: must be read, edit or admin", func(c *Config) { c.Admin.Tokens = []AdminToken{{Name: "a", Token: good, Role: "root"}} })
	refused("admin.token: must have at least 16 characters", func(c *Config) { c.Admin.Token = "0123456789 abcdef" })
	refused("data: must name a directory", func(c *Config) { c.Data = " " })
	refused("redis: must be redis://", func(c *Config) { c.Redis = "cache:6379" })
	refused(`http.stop_delay: must be auto, or from 0s to 10m, not "5"`, func(c *Config) { c.HTTP.StopDelay = "5" })
	refused(`http.stop_delay: must be auto`, func(c *Config) { c.HTTP.StopDelay = "-1s" })
	refused("redis_prefix: must be 1 to 32", func(c *Config) { c.RedisPrefix = "a:b" })
	refused(`pool.min: must not be larger than pool.max, which is 3, not "4"`, func(c *Config) { c.Pool.Min, c.Pool.Max = 4, 3 })
	refused("http.bodies_bytes: must not be smaller than http.body_bytes", func(c *Config) { c.HTTP.BodiesBytes = c.HTTP.BodyBytes - 1 })
	refused("http.tls_cert: requires http.tls_key", func(c *Config) { c.HTTP.TLSCert = "a" })
	refused("http.tls_key: requires http.tls_cert", func(c *Config) { c.HTTP.TLSKey = "a" })
	for _, host := range []string{"", "a:80", "a:", "https://a", "a/", "::1", "u@a", "a b", "a?b"} {
		refused("http.hosts[0]: must be a host name or an address", func(c *Config) { c.HTTP.Hosts = []string{host} })
	}
	refused("http.cors_origins[1]: must be SCHEME://HOST", func(c *Config) { c.HTTP.CORSOrigins = []string{"*", "https://a/"} })
	refused("http.cors_origins[0]: must be SCHEME://HOST", func(c *Config) { c.HTTP.CORSOrigins = []string{"a.example"} })
	refused("http.trusted_proxies[0]: must be an address", func(c *Config) { c.HTTP.TrustedProxies = []string{"10.0.0.0/33"} })
	refused(`log.level: must be debug, info, warn or error, not "all"`, func(c *Config) { c.Log.Level = "all" })
	refused(`log.format: must be text or json`, func(c *Config) { c.Log.Format = "" })
}

func TestValidateRefusesFeed(t *testing.T) {
	t.Parallel()
	refused := func(want string, change func(*Feed)) {
		t.Helper()
		err := valid(func(c *Config) { change(&c.Feeds[0]) }).Validate()
		if want = "feeds[0]." + want; err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line %s...", err, want)
		}
	}
	for _, path := range []string{"orders", "/a b", "/a?b", "//", "/a/", "/a//b", "/a/../b", "/ä", "/%41", "/a#b"} {
		refused(`path: must start with /`, func(f *Feed) { f.Path = path })
	}
	for _, path := range []string{"/hello", "/probe", "/probe/database"} {
		refused("aliases[0]: must not be /hello", func(f *Feed) { f.Aliases = []string{path} })
	}
	refused("path: must be given", func(f *Feed) { f.Path = "" })
	refused(`aliases[1]: must differ from feeds[0].aliases[0], not "/a"`, func(f *Feed) { f.Aliases = []string{"/a", "/a"} })
	refused(`path: must differ from the path of http.openapi, which can be false, not "/openapi.json"`, func(f *Feed) { f.Path = "/openapi.json" })
	refused(`aliases[0]: must differ from feeds[0].path`, func(f *Feed) { f.Aliases = []string{"/orders"} })
	refused("sql: must be given", func(f *Feed) { f.SQL = " \n" })
	refused("key: must name at least one column", func(f *Feed) { f.Key = nil })
	refused("key: must be the name of an output column", func(f *Feed) { f.Key = Keys{{Name: "o.id"}} })
	refused("key: must be the name of an output column", func(f *Feed) { f.Key = Keys{{Name: "1"}} })
	refused(`key: must not repeat a column, not "ID"`, func(f *Feed) { f.Key = Keys{{Name: "id"}, {Name: "ID"}} })
	refused("params.?: must be a name of letters", func(f *Feed) { f.Params = Params{{Name: "a b", Type: "text"}} })
	refused("params.a-b: must be a name of letters", func(f *Feed) { f.Params = Params{{Name: "a-b", Type: "text"}} })
	for _, name := range []string{"limit", "offset", "before", "fields"} {
		refused("params."+name+": must have another name, here and in sql; reserved: limit, offset, before, fields", func(f *Feed) { f.Params = Params{{Name: name, Type: "text"}} })
		refused("filters."+name+": must have another name, here and in sql; reserved: limit, offset, before, fields", func(f *Feed) { f.Filters = Types{{name, "text"}} })
	}
	refused(`envelope: must be data, none or return_code, not "array"`, func(f *Feed) { f.Envelope = "array" })
	refused(`params.a: must be text, integer, real, decimal, boolean, timestamp, date, time, uuid or bytes, not "string"`, func(f *Feed) { f.Params = Params{{Name: "a", Type: "string"}} })
	refused("params.a.default: cannot be used", func(f *Feed) { f.Params = Params{{Name: "a", Type: "integer", Default: Literals{"x"}}} })
	refused("filters.o.id: must be the name of an output column", func(f *Feed) { f.Filters = Types{{"o.id", "text"}} })
	refused("filters.a: must not be a parameter", func(f *Feed) { f.Params, f.Filters = Params{{Name: "a", Type: "text"}}, Types{{"a", "text"}} })
	refused(`filters.a: must be text, integer`, func(f *Feed) { f.Filters = Types{{"a", "string"}} })
	refused(`filters: must be at most 4 columns, not "5"`, func(f *Feed) {
		f.Filters = Types{{"a", "text"}, {"b", "text"}, {"c", "text"}, {"d", "text"}, {"e", "text"}}
	})
	refused(`timestamps: must be database or rfc3339, not "unix"`, func(f *Feed) { f.Timestamps = "unix" })
	refused(`numbers: must be json or text`, func(f *Feed) { f.Numbers = "" })
	refused(`limit: must not be larger than limit_max, which is 100, not "101"`, func(f *Feed) { f.Limit = 101 })
	refused(`stale_max: must not be shorter than refresh, which is 31s, not "30s"`, func(f *Feed) { f.Refresh, f.IdleAfter = 31*time.Second, time.Minute })
	refused(`live_max: must be smaller than windows_max, which is 100,`, func(f *Feed) { f.LiveMax = 100 })
	refused(`idle_after: must not be shorter than refresh, which is 3s, not "2s"`, func(f *Feed) { f.Refresh = 3 * time.Second })
	refused(`refresh: must be from 10ms to 1h, not "9.999999ms"`, func(f *Feed) { f.Refresh = 10*time.Millisecond - 1 })
	refused(`s_maxage: must be longer than refresh, which is 1s: rows can be that old when a cache gets them, not "1s"`, func(f *Feed) {
		f.SMaxAge, f.Refresh, f.IdleAfter, f.StaleMax = time.Second, time.Second, time.Second, time.Second
	})
	refused(`s_maxage: must be whole seconds, not "1.5s"`, func(f *Feed) { f.SMaxAge = 1500 * time.Millisecond })
	refused(`stale_while_revalidate: must be whole seconds, not "1ms"`, func(f *Feed) { f.SMaxAge, f.Revalidate = time.Second, time.Millisecond })
	refused(`stale_while_revalidate: requires s_maxage, not "1s"`, func(f *Feed) { f.Revalidate = time.Second })
	refused(`sweep_share: must be from 0.001 to 1, not "NaN"`, func(f *Feed) { f.SweepShare = math.NaN() })
}

func TestValidateQueryParams(t *testing.T) {
	t.Parallel()
	query := Defaults[Query]()
	query.Path, query.SQL = "/q", "SELECT 1"
	for want, params := range map[string]Params{
		"": {
			{Name: "a", Type: "text"},
			{Name: "b", Type: "text", Default: Literals{""}},
			{Name: "c", Type: "integer", Default: Literals{"+7"}, ListMax: 1000},
			{Name: "limit", Type: "uuid", ListMax: 2},
		},
		"queries[0].params.fields: must have another name, here and in sql; reserved: fields":                       {{Name: "fields", Type: "text"}},
		"queries[0].params.?: must be a name of letters":                                                            {{Name: "a b", Type: "text"}},
		`queries[0].params.a: must be text, integer, real, decimal, boolean, timestamp, date, time, uuid or bytes`:  {{Name: "a", Type: "json", Default: Literals{"1"}}},
		`queries[0].params.a.list_max: must be from 0 to 1000, not "1001"`:                                          {{Name: "a", Type: "text", ListMax: 1001}},
		`queries[0].params.a.list_max: must be from 0 to 1000, not "-1"`:                                            {{Name: "a", Type: "text", ListMax: -1}},
		`queries[0].params.a.default: cannot be used: a must be a whole number of at most 64 bits, not "x"`:         {{Name: "a", Type: "integer", Default: Literals{"x"}}},
		`queries[0].params.a.default: cannot be used: 2 values; a list has at least one`:                            {{Name: "a", Type: "integer", Default: Literals{"1", "2"}}},
		`queries[0].params.a.default: cannot be used: 0 values; a list has at least one`:                            {{Name: "a", Type: "integer", Default: Literals{}, ListMax: 2}},
		`queries[0].params.a.default: cannot be used: null, which a list cannot be; its default is a list, or none`: {{Name: "a", Type: "integer", Default: Literals{param.Absent}, ListMax: 2}},
		`queries[0].params.a.default: cannot be used: a has more than 2 values`:                                     {{Name: "a", Type: "integer", Default: Literals{"1", "2", "3"}, ListMax: 2}},
	} {
		query.Params = params
		err := valid(func(c *Config) { c.Queries = []Query{query} }).Validate()
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line %s...", err, want)
		}
	}
}

func TestValidateAll(t *testing.T) {
	t.Parallel()
	err := valid(func(c *Config) {
		c.Listen = "x"
		c.Feeds = append(c.Feeds, c.Feeds[0])
		c.Feeds[1].Window = 0
	}).Validate(func(Config) []Mistake { return []Mistake{{Path: "database", Rule: "must be better"}} })
	want := `feeds[1].window: must be from 1 to 100000, not "0"
listen: must be HOST:PORT, :PORT for all addresses of this machine, or unix:PATH, not "x"
feeds[1].path: must differ from feeds[0].path, not "/orders"
database: must be better`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
}

// Every number and duration has bounds. Its default is within them, and values outside are
// refused.
func TestBounds(t *testing.T) {
	t.Parallel()
	c := valid(func(*Config) {})
	n := 0
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			field, tag := v.Field(i), v.Type().Field(i).Tag
			at := yaml.Join(path, tag.Get("yaml"))
			switch field.Kind() {
			case reflect.Struct:
				walk(at, field)
			case reflect.Int, reflect.Int64, reflect.Float64:
				n++
				outside(t, &c, at, tag.Get("range"), field)
			}
		}
	}
	walk("", reflect.ValueOf(&c).Elem())
	walk("feeds[0]", reflect.ValueOf(&c.Feeds[0]).Elem())
	if n < 20 {
		t.Errorf("saw %d bounded fields", n)
	}
}

func outside(t *testing.T, c *Config, path, bounds string, field reflect.Value) {
	t.Helper()
	low, high, _ := strings.Cut(bounds, "..")
	for _, bound := range []string{low, high} {
		_, notNumber := strconv.ParseFloat(bound, 64)
		_, notDuration := time.ParseDuration(bound)
		if isDuration := field.Type() == reflect.TypeFor[time.Duration](); isDuration && notDuration != nil || !isDuration && notNumber != nil {
			t.Errorf("%s: range %q is not of its type", path, bounds)
		}
	}
	before := reflect.ValueOf(field.Interface())
	defer field.Set(before)
	step := 1.0
	if field.Type() == reflect.TypeFor[time.Duration]() {
		step = float64(time.Millisecond) // float64 cannot represent a year in nanoseconds exactly
	}
	for _, x := range []float64{number(low) - step, number(high) + step} {
		field.Set(reflect.ValueOf(x).Convert(field.Type()))
		err := c.Validate()
		if want := fmt.Sprintf("%s: must be from %s to %s", path, low, high); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s = %v: %v, want %q", path, field, err, want)
		}
	}
}

// sharedKey verifies JWTs.
const sharedKey = "0123456789abcdef0123456789abcdef"

// authenticated returns a configuration whose reads and writes need a JWT.
func authenticated(change func(*Config)) Config {
	return valid(func(c *Config) {
		c.Auth.Reads, c.Auth.Keys, c.Auth.JWT.Keys = "jwt", []Secret{"0123456789abcdef"}, []JWTKey{{Algorithm: "HS256", Key: sharedKey}}
		c.Feeds[0].Params = Params{{Name: "claim.sub", Type: "text"}}
		s := Defaults[Stream]()
		s.Path, s.Table, s.Auth, s.Columns = "/positions", "positions", "jwt", Columns{{Name: "courier", Type: "text", Claim: "sub"}}
		c.Streams = []Stream{s}
		change(c)
	})
}

func TestValidateAuth(t *testing.T) {
	t.Parallel()
	const pem = "-----BEGIN PUBLIC KEY-----\n"
	for i, change := range []func(*Config){
		func(*Config) {},
		func(c *Config) { c.Listen = ":8080" }, // streams with JWTs need no keys
		func(c *Config) { c.Auth.Reads = "open"; c.Feeds[0].Auth = "jwt" },
		func(c *Config) { c.Auth.JWT.Keys, c.Auth.JWKS.URL = nil, "https://login.example/keys" },
		func(c *Config) { c.Auth.JWT.Keys, c.Auth.JWKS.URL = nil, "http://[::1]:1/keys" },
	} {
		if err := authenticated(change).Validate(); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	refused := func(want string, change func(*Config)) {
		t.Helper()
		err := authenticated(change).Validate()
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line %s...", err, want)
		}
	}
	refused(`auth.reads: must be open, key, jwt or any, not "none"`, func(c *Config) { c.Feeds[0].Auth, c.Auth.Reads = "jwt", "none" })
	refused(`auth.cookie: must be the name of a cookie: letters, digits and !#$%&'*+-.^_`+"`"+`|~, not "a;b"`, func(c *Config) { c.Auth.Cookie = "a;b" })
	refused("auth.keys[0]: must have at least 16 characters", func(c *Config) { c.Auth.Keys[0] = "short" })
	refused("auth.jwt.keys[0].key: must have at least 32 characters for HS256", func(c *Config) { c.Auth.JWT.Keys[0].Key = "short" })
	refused("auth.jwt.keys[0].key: must be given", func(c *Config) { c.Auth.JWT.Keys[0].Key = "" })
	refused("auth.jwt.keys[0].algorithm: must be RS256, ES256 or EdDSA", func(c *Config) { c.Auth.JWT.Keys[0].Key = pem })
	refused("auth.jwt.keys[0].key: must be a public key in PEM for ES256", func(c *Config) { c.Auth.JWT.Keys[0].Algorithm = "ES256" })
	refused(`auth.jwt.keys[0].algorithm: must be HS256, RS256, ES256 or EdDSA, not "none"`, func(c *Config) { c.Auth.JWT.Keys[0].Algorithm, c.Auth.JWT.Keys[0].Key = "none", pem })
	refused("auth.jwt.keys[0].kid: must be given", func(c *Config) { c.Auth.JWKS.URL = "https://login.example/keys" })
	refused(`auth.jwt.keys[1].kid: must not be repeated, not "a"`, func(c *Config) {
		c.Auth.JWT.Keys = []JWTKey{{"a", "HS256", sharedKey}, {"a", "HS256", sharedKey}}
	})
	for _, link := range []string{"http://login.example/keys", "ftp://localhost/keys", "https://", "login.example", "https://ann:pw@login.example/"} {
		refused("auth.jwks.url: must be https://HOST/PATH", func(c *Config) { c.Auth.JWT.Keys[0].Kid, c.Auth.JWKS.URL = "a", Address(link) })
	}
	refused(`feeds[0].auth: must be jwt, because claim.sub is a claim, not "any"`, func(c *Config) { c.Feeds[0].Auth = "any" })
	refused("queries[0].params.claim.sub: must have neither default nor list_max", func(c *Config) {
		q := Defaults[Query]()
		q.Path, q.SQL, q.Params = "/q", "SELECT :claim.sub", Params{{Name: "claim.sub", Type: "text", Default: Literals{"7"}}}
		c.Queries = []Query{q}
	})
	refused(`feeds[0].auth: must be default, open, key, jwt or any`, func(c *Config) { c.Feeds[0].Auth, c.Feeds[0].Params = "", nil })
	refused(`feeds[0].auth: requires auth.keys, not "key"`, func(c *Config) { c.Auth.Keys, c.Feeds[0].Auth, c.Feeds[0].Params = nil, "key", nil })
	refused(`feeds[0].s_maxage: must be 0s, because the path requires authentication`, func(c *Config) { c.Feeds[0].SMaxAge = time.Minute })
	refused(`queries[0].s_maxage: must be longer than ttl, which is 1m0s`, func(c *Config) {
		q := Defaults[Query]()
		q.Path, q.SQL, q.Auth, q.TTL, q.SMaxAge = "/q", "SELECT 1", "open", time.Minute, time.Minute
		c.Queries = []Query{q}
	})
	refused(`streams[0].auth: requires auth.jwt.keys or auth.jwks.url, not "jwt"`, func(c *Config) { c.Auth.JWT.Keys, c.Feeds[0].Auth, c.Feeds[0].Params = nil, "open", nil })
	refused(`streams[0].auth: requires keys, not "any"`, func(c *Config) { c.Streams[0].Auth, c.Streams[0].Columns[0].Claim = "any", "" })
	refused(`streams[0].auth: must be jwt, because column courier is a claim, not "key"`, func(c *Config) { c.Streams[0].Auth = "key" })
	refused(`streams[0].columns.courier.claim: must be the name of a claim`, func(c *Config) { c.Streams[0].Columns[0].Claim = "a.b" })
	refused("keys: must be given if other hosts can reach streams", func(c *Config) {
		c.Listen, c.Streams[0].Auth, c.Streams[0].Columns[0].Claim = ":8080", "key", ""
	})
}

func TestOpenReads(t *testing.T) {
	t.Parallel()
	c := authenticated(func(c *Config) { c.Auth.Reads = "open"; c.Feeds[0].Auth, c.Listen = "jwt", ":8080" })
	if open := c.OpenReads(); len(open) != 0 {
		t.Errorf("open: %q", open)
	}
	c.Feeds[0].Auth = "default"
	if open := c.OpenReads(); len(open) != 1 || open[0] != "/orders" {
		t.Errorf("open: %q", open)
	}
	for _, own := range []string{"localhost:8080", "unix:/run/spillway.sock"} {
		if c.Listen = own; len(c.OpenReads()) != 0 {
			t.Errorf("open on %s", own)
		}
	}
}
