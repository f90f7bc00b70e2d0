package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func printed(c Config) string {
	var b bytes.Buffer
	if err := c.Print(&b); err != nil {
		panic(err) // a bytes.Buffer accepts all writes
	}
	return b.String()
}

// printedWhole is the output for a complete configuration.
const printedWhole = `listen: 127.0.0.1:8080
admin:
  listen: 127.0.0.1:9090
  token: ""
  tokens: []
  links: []
data: spillway-data
database: "postgres://ann:***@db/app"
replica: ""
replica_lag_max: 10s
redis: ""
redis_prefix: ""
keys: []
auth:
  reads: open
  keys: []
  cookie: ""
  jwt:
    keys: []
    issuer: ""
    audience: ""
    exp: required
    nbf: optional
    clock_skew: 30s
  jwks:
    url: ""
    refresh: 5m
    pause: 10s
    timeout: 5s
pool:
  min: 1
  max: 9
  max_lifetime: 30m
  max_idle_time: 5m
  connect_timeout: 5s
  acquire_timeout: 2s
  statement_timeout: 5s
http:
  connections: 65536
  loops: 0
  header_bytes: 16384
  body_bytes: 4194304
  bodies_bytes: 268435456
  compress_bytes: 67108864
  read_timeout: 10s
  write_timeout: 10s
  idle_timeout: 1m
  stop_delay: auto
  drain_timeout: 10s
  tls_cert: ""
  tls_key: ""
  hosts: []
  cors_origins: []
  unknown_params: ignore
  openapi: true
  trusted_proxies: []
  rate_per_minute: 0
  rate_burst: 100
  rate_clients: 100000
probes: false
demo: false
log:
  level: info
  format: text
  access: false
feeds:
  - path: /orders
    aliases: []
    database: ""
    sql: |-
      SELECT '$${x}'
      FROM t
    key: [id, day asc]
    envelope: data
    params: {city: text, "no": integer}
    unknown_params: default
    filters: {}
    timestamps: database
    numbers: json
    plan: check
    auth: default
    window: 200
    refresh: 100ms
    idle_after: 2s
    stale_max: 30s
    s_maxage: 0s
    stale_while_revalidate: 0s
    timeout: 2s
    limit: 10
    limit_max: 100
    offset_max: 100000000
    waiters_max: 1000
    windows_max: 100
    windows_bytes: 0
    live_max: 0
    sweep_share: 0.02
    sweep_bytes: 67108864
queries: []
streams: []
spool:
  bytes: 1073741824
  queue_bytes: 67108864
  group_bytes: 1048576
  max_age: 168h
popups:
  path: ""
  database: ""
  store: memory
  memory_users: 4000000
  spool_bytes: 1073741824
  redis_prefix: spillway
  cache_users: 1000000
  state_ttl: 720h
  backlog_max: 4000000
  timeout: 5s
  placements: []
  user_type: text
  attributes: {}
  unknown_params: default
  attributes_sql: ""
  attributes_ttl: 1m
  attributes_bytes: 67108864
  attributes_timeout: 1s
  lists: {}
  lists_refresh: 1m
  repeat_after: 24h
  quiet_after: 24h
  max_per: {}
  on_unavailable: nothing
  keys: []
  token_ttl: 24h
  convert_within: 168h
  events_days: 0
  identity:
    trust: query
    header: Authorization
    claim: sub
`

func TestPrint(t *testing.T) {
	t.Parallel()
	c := valid(func(c *Config) {
		c.Pool.Max = 9
		c.Database = "postgres://ann:q7s3cr3t@db/app"
		c.Feeds[0].SQL = "SELECT '${x}'\nFROM t"
		c.Feeds[0].Key = append(c.Feeds[0].Key, KeyColumn{Name: "day", Ascending: true})
		c.Feeds[0].Params = Params{{Name: "city", Type: "text"}, {Name: "no", Type: "integer"}}
	})
	want := printedWhole
	got := printed(c)
	got = strings.ReplaceAll(got, `"no"`, "no") // both are correct
	if diff := cmp.Diff(strings.ReplaceAll(want, `"no"`, "no"), got); diff != "" {
		t.Error(diff)
	}
	bad(t, printed(c), "8:11: database: holds ***, which stands for a secret that was left out; write the secret, ${NAME} or file:PATH")
}

func TestPrintQueryParams(t *testing.T) {
	t.Parallel()
	c := valid(withQueryParams)
	out := printed(c)
	got, err := Read("printed", []byte(out), testEnv, testFile)
	if err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if diff := cmp.Diff(c.Queries, got.Queries); diff != "" {
		t.Errorf("%s\nin\n%s", diff, out)
	}
}

func TestPrintError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken pipe")
	if err := Default().Print(brokenWriter{broken}); !errors.Is(err, broken) {
		t.Errorf("Print = %v, want %v", err, broken)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// Read returns the configuration that Print has written.
func TestPrintReadsBack(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(
		rapid.StringMatching(`[ -~]{1,20}`),
		rapid.StringMatching(`[ -~\n]{1,30}`),
		rapid.StringMatching(`[a-c](\n{1,2} {0,3}[#a-c:|-]{1,3} ?){1,4}\n?`),
		rapid.StringOfN(rapid.RuneFrom([]rune("aä\u2028 \n\t:#'\"\\-$${}[],&*!|>%@`~é日\U0001F600")), 1, 12, -1),
		rapid.SampledFrom([]string{"null", "true", "~", "1", "0x1", "1e3", "yes", "a: b", "- a", "a #b", "${X}", "$${X}", "$$${", "2001-01-01", " a", "a ", "a\n", "\na", "|", "---", "1:30", ".inf", "<<", "=", "a\r\nb"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		c := valid(func(*Config) {})
		fill(t, reflect.ValueOf(&c.Pool).Elem())
		fill(t, reflect.ValueOf(&c.HTTP).Elem())
		fill(t, reflect.ValueOf(&c.Feeds[0]).Elem())
		c.Data = "/" + text.Draw(t, "data")
		c.HTTP.TLSCert, c.HTTP.TLSKey = text.Draw(t, "certificate"), text.Draw(t, "key")
		f := &c.Feeds[0]
		f.SQL = "S" + text.Draw(t, "sql")
		c.Redis = Address("redis://:" + rapid.StringMatching(`[!-~]{1,10}`).Draw(t, "password") + "@h")
		f.Database = Address("sqlite:" + strings.ReplaceAll(text.Draw(t, "file"), "***", ""))
		if rapid.Bool().Draw(t, "wide") {
			f.Key = Keys{{Name: "no", Ascending: true}, {Name: "NULL"}, {Name: "größe"}}
			f.Params = Params{{Name: "y", Type: "text"}, {Name: "null", Type: "uuid"}}
			f.Aliases = []string{"/a", "/~"}
		}
		f.SMaxAge, f.Revalidate = 2*time.Hour, 3*time.Second
		f.LiveMax = min(f.LiveMax, f.WindowsMax-1)
		f.LimitMax, f.StaleMax, f.IdleAfter, c.Pool.Max = 100000, 24*time.Hour, 24*time.Hour, 10000
		c.HTTP.BodiesBytes = max(c.HTTP.BodiesBytes, c.HTTP.BodyBytes)
		if err := c.Validate(); err != nil {
			t.Fatalf("the test's own configuration: %v", err)
		}
		out := printed(c)
		again := strings.Replace(out, "redis: "+scalar(c.Redis.String())+"\n", "redis: "+scalar(c.Redis.Reveal())+"\n", 1)
		got, err := Read("printed", []byte(again), testEnv, testFile)
		if c.Redis.Reveal() != "" && strings.Contains(c.Redis.Reveal(), hidden) {
			return // Read treats it as a hidden secret
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, again)
		}
		if diff := cmp.Diff(fmt.Sprintf("%#v", c), fmt.Sprintf("%#v", got)); diff != "" || c.Redis != got.Redis || c.Feeds[0].Database != got.Feeds[0].Database {
			t.Fatalf("%s\nin\n%s", diff, again)
		}
	})
}

// fill sets every bounded field to a value within its bounds.
func fill(t *rapid.T, v reflect.Value) {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		low, high, found := strings.Cut(tag.Get("range"), "..")
		if !found {
			continue
		}
		switch field := v.Field(i); field.Kind() {
		case reflect.Int, reflect.Int64:
			field.SetInt(rapid.Int64Range(int64(number(low)), int64(number(high))).Draw(t, tag.Get("yaml")))
		case reflect.Float64:
			field.SetFloat(rapid.Float64Range(number(low), number(high)).Draw(t, tag.Get("yaml")))
		}
	}
}
