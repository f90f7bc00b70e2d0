package config

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"spillway/internal/serve/param"
	"spillway/internal/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// orders is a minimal feed.
const orders = "feeds:\n  - path: /orders\n    sql: SELECT id FROM orders\n    key: id\n"

func testEnv(name string) (string, bool) {
	values := map[string]string{"PASSWORD": "q7s3cr3t", "WINDOW": "321", "EMPTY": "", "SECRET_FILE": "file:/run/token", "LEVEL": "q7s3cr3t"}
	value, ok := values[name]
	return value, ok
}

func testFile(path string) ([]byte, error) {
	switch path {
	case "/run/token":
		return []byte("  a-token-of-24-characters\n"), nil
	case "/run/empty":
		return []byte(" \n"), nil
	case "/run/denied":
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	}
	return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

func read(src string, checks ...Check) (Config, error) {
	return Read("spillway.yaml", []byte(src), testEnv, testFile, checks...)
}

func TestReadDefaults(t *testing.T) {
	t.Parallel()
	got, err := read(orders)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	feed := Defaults[Feed]()
	feed.Path, feed.SQL, feed.Key = "/orders", "SELECT id FROM orders", Keys{{Name: "id"}}
	want.Feeds = []Feed{feed}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadEverything(t *testing.T) {
	t.Parallel()
	got, err := read(`
listen: ":80"
admin: {listen: "0.0.0.0:90", token: "${SECRET_FILE}"}
data: /var/lib/spillway
database: postgres://ann:${PASSWORD}@db/app
redis: redis://cache
pool:
  min: 2
  max: 20
log: {level: debug, format: json, access: true}
http:
  body_bytes: 0x1000
  cors_origins: ["https://a.example:8443", "*"]
  trusted_proxies: [10.0.0.0/8, ::1]
  read_timeout: 1m30s
feeds:
  - path: /a
    aliases:
      - /b
      - /c
    sql: |
      SELECT '$${x}', id  -- a comment
      FROM t
    key: [createtime Desc, id ASC]
    params: {city: text, since: timestamp}
    window: ${WINDOW}
    sweep_share: 0.5
  - {path: /d, sql: "SELECT 1 AS a", key: a asc, database: "sqlite:d.db"}
queries:
  - path: /e
    sql: SELECT 1
    params: {a: text, n: {type: integer, default: null}, b: {type: integer, default: 5}, c: {type: text, default: [x, "7"], list_max: 3}}
    one: true
`)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Listen = ":80"
	want.Admin = Admin{Listen: "0.0.0.0:90", Token: "a-token-of-24-characters"}
	want.Data = "/var/lib/spillway"
	want.Database = "postgres://ann:q7s3cr3t@db/app"
	want.Redis = "redis://cache"
	want.Pool.Min, want.Pool.Max = 2, 20
	want.Log = Log{Level: "debug", Format: "json", Access: true}
	want.HTTP.BodyBytes = 4096
	want.HTTP.CORSOrigins = []string{"https://a.example:8443", "*"}
	want.HTTP.TrustedProxies = []string{"10.0.0.0/8", "::1"}
	want.HTTP.ReadTimeout = 90 * time.Second
	a, b := Defaults[Feed](), Defaults[Feed]()
	a.Path, a.Aliases, a.SQL = "/a", []string{"/b", "/c"}, "SELECT '${x}', id  -- a comment\nFROM t\n"
	a.Key = Keys{{Name: "createtime"}, {Name: "id", Ascending: true}}
	a.Params = Params{{Name: "city", Type: "text"}, {Name: "since", Type: "timestamp"}}
	a.Window, a.SweepShare = 321, 0.5
	b.Path, b.SQL, b.Key, b.Database = "/d", "SELECT 1 AS a", Keys{{Name: "a", Ascending: true}}, "sqlite:d.db"
	want.Feeds = []Feed{a, b}
	q := Defaults[Query]()
	q.Path, q.SQL, q.One = "/e", "SELECT 1", true
	q.Params = Params{{Name: "a", Type: "text"}, {Name: "n", Type: "integer", Default: Literals{param.Absent}}, {Name: "b", Type: "integer", Default: Literals{"5"}}, {Name: "c", Type: "text", Default: Literals{"x", "7"}, ListMax: 3}}
	want.Queries = []Query{q}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// bad reads src and expects exactly these errors, one line each.
func bad(t *testing.T, src string, want ...string) {
	t.Helper()
	_, err := read(src)
	if err == nil {
		t.Errorf("%q: no error, want %q", src, want)
		return
	}
	var errs yaml.Errors
	if !errors.As(err, &errs) {
		t.Errorf("%q: error of type %T", src, err)
	}
	got := strings.Split(err.Error(), "\n")
	for i := range want {
		want[i] = "spillway.yaml:" + want[i]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%q:\n%s", src, diff)
	}
}

func TestReadForm(t *testing.T) {
	t.Parallel()
	const empty = "1:1: the file is empty; for the built-in configuration give no file"
	bad(t, "", empty)
	bad(t, "# nothing\n\n", empty)
	bad(t, "---\n", empty)
	bad(t, "listen: 127.0.0.1:1\n---\ndata: x\n", "3:1: a second document; the file must hold one")
	bad(t, "just text", "1:1: must be a block of keys and values, not text")
	bad(t, "[1, 2]", "1:1: must be a block of keys and values, not a list")
	bad(t, "pool:\n\tmax: 3\n", "2:1: a tab in the indentation; YAML requires spaces")
	bad(t, "data: \xff\n", "1:7: not valid UTF-8")
	bad(t, "data: a\x00\n", "1:8: a control character")
	bad(t, "data: [a\n", "1:7: cannot be read as YAML: sequence end token ']' not found")
	bad(t, "data: 'a\n", "1:7: cannot be read as YAML: could not find end character of single-quoted text")
	bad(t, "data: a: b\n", "1:7: cannot be read as YAML: mapping value is not allowed in this context")
	bad(t, "data: &a x\nlisten: *a\n",
		"1:1: data: YAML anchors and aliases are not supported; write the value out",
		"2:1: listen: YAML anchors and aliases are not supported; write the value out")
	bad(t, "data: !!str x\n", "1:1: data: YAML tags are not supported; write the value alone")
	bad(t, "? [a]\n: b\n", "2:1: cannot be read as YAML: found an invalid key for this map")
	const bytesMax, indentMax = 256 << 10, 200
	const deep = "nested too deeply: at most 100 brackets and 200 columns of indentation"
	bad(t, "a: "+strings.Repeat("[", bytesMax/2), "1:104: "+deep)
	bad(t, strings.Repeat("- ", bytesMax/2), "1:201: "+deep)
	bad(t, "a:\n"+strings.Repeat(" ", indentMax)+"b:\n", "2:201: "+deep)
	bad(t, "data:"+strings.Repeat(" ", bytesMax), "1:1: the file is larger than 262144 bytes")
}

func TestReadKeys(t *testing.T) {
	t.Parallel()
	bad(t, "\n\nlitsen: a\n", "3:1: litsen: unknown key; did you mean listen?")
	bad(t, "zzz: 1\n", "1:1: zzz: unknown key; the keys here are listen, admin, data, database, replica, replica_lag_max, redis, redis_prefix, keys, auth, pool, http, probes, demo, log, feeds, queries, streams, spool, popups")
	bad(t, orders+"    refesh: 1s\n    widow: 3\n",
		"5:5: feeds[0].refesh: unknown key; did you mean refresh?",
		"6:5: feeds[0].widow: unknown key; did you mean window?")
	bad(t, "pool: {mix: 1}\n", "1:8: pool.mix: unknown key; did you mean min?")
	bad(t, "data: a\ndata: b\n", "2:1: data: duplicate key, first in line 1")
	bad(t, orders+"    params: {a: text, a: uuid}\n", "5:23: feeds[0].params.a: duplicate key, first in line 5")
	bad(t, "a password: x\n", "1:1: ?: unknown key; the keys here are listen, admin, data, database, replica, replica_lag_max, redis, redis_prefix, keys, auth, pool, http, probes, demo, log, feeds, queries, streams, spool, popups")
	bad(t, "1: x\n", "1:1: ?: unknown key; the keys here are listen, admin, data, database, replica, replica_lag_max, redis, redis_prefix, keys, auth, pool, http, probes, demo, log, feeds, queries, streams, spool, popups")
}

func TestReadTypes(t *testing.T) {
	t.Parallel()
	bad(t, "listen: 8080\n", "1:9: listen: must be text, not a number; put it in quotes")
	bad(t, "listen: [a]\n", "1:9: listen: must be one value, not a list")
	bad(t, "listen:\ndata: x\n", "1:1: listen: has no value; leave the key out for its default")
	bad(t, "listen: ~\n", "1:1: listen: has no value; leave the key out for its default")
	bad(t, "redis: 12345\n", "1:8: redis: must be secret text, not a number; put it in quotes")
	bad(t, "pool: 3\n", "1:7: pool: must be a block of keys and values, not a number")
	bad(t, "pool: {max: \"3\"}\n", "1:13: pool.max: must be a whole number, not text; write it without quotes")
	bad(t, "pool: {max: 3.5}\n", "1:13: pool.max: must be a whole number, not \"3.5\"")
	bad(t, "pool: {max: true}\n", "1:13: pool.max: must be a whole number, not \"true\"")
	bad(t, "pool: {max: many}\n", "1:13: pool.max: must be a whole number, not \"many\"")
	bad(t, "pool:\n  max: |\n    3\n", "2:8: pool.max: must be a whole number, not text; write it without quotes")
	bad(t, "pool: {max: 99999999999999999999}\n", "1:13: pool.max: must be a whole number, not \"99999999999999999999\"")
	bad(t, "pool: {max_lifetime: 30}\n", "1:22: pool.max_lifetime: must be a duration, not a number; write its unit, as 100ms, 2s or 5m")
	bad(t, "pool: {max_lifetime: half an hour}\n", "1:22: pool.max_lifetime: must be a duration with its unit, as 100ms, 2s or 5m, not \"half an hour\"")
	bad(t, "log: {access: yes}\n", "1:15: log.access: must be true or false, not \"yes\"")
	bad(t, "feeds: {path: /a}\n", "1:8: feeds: must be a list, not a block of keys and values")
	bad(t, "feeds: [a]\n", "1:9: feeds[0]: must be a block of keys and values, not text")
	bad(t, "feeds:\n  -\n", "2:3: feeds[0]: has no value; leave the key out for its default")
	bad(t, orders+"    sweep_share: .nan\n", "5:18: feeds[0].sweep_share: must be a number, not \".nan\"")
	bad(t, orders+"    params: [a]\n", "5:13: feeds[0].params: must be a block of keys and values, not a list")
	bad(t, orders+"    params: {a: 3}\n", "5:17: feeds[0].params.a: must be text, not a number; put it in quotes")
	bad(t, "feeds:\n- path: /a\n  sql: SELECT 1\n  key: [a, b up, {}, c d e]\n",
		"4:12: feeds[0].key[1]: must be a column's name, alone or followed by asc or desc, not \"b up\"",
		"4:18: feeds[0].key[2]: must be one value, not a block of keys and values",
		"4:22: feeds[0].key[3]: must be a column's name, alone or followed by asc or desc, not \"c d e\"")
}

func TestReadSecrets(t *testing.T) {
	t.Parallel()
	bad(t, "database: ${NOT_SET}\n", "1:11: database: the environment variable NOT_SET is not set")
	bad(t, "data: a\nlisten: ${9}\n", "2:9: listen: ${ begins the name of an environment variable, as ${NAME}; write $${ for ${ itself")
	bad(t, "data: ${A\n", "1:7: data: ${ begins the name of an environment variable, as ${NAME}; write $${ for ${ itself")
	bad(t, "database: file:/run/none\n", "1:11: database: cannot read the file that file: names: file does not exist")
	bad(t, "database: file:/run/denied\n", "1:11: database: cannot read the file that file: names: permission denied")
	bad(t, "database: file:/run/empty\n", "1:11: database: the file that file: names is empty")
	bad(t, "database: postgres://ann:***@db\n", "1:11: database: holds ***, which stands for a secret that was left out; write the secret, ${NAME} or file:PATH")
	bad(t, "log: {level: '${LEVEL}'}\n", "1:14: log.level: must be debug, info, warn or error, not \"${LEVEL}\"")
	bad(t, "pool: {max: '${PASSWORD}'}\n", "1:13: pool.max: must be a whole number, not \"${PASSWORD}\"")
	bad(t, "redis: '${PASSWORD}'\n", "1:8: redis: must be redis://[USER:PASSWORD@]HOST:PORT[/NUMBER], rediss://... or unix://PATH")
	bad(t, "admin:\n  listen: :90\n  token: file:/run/none\n", "3:10: admin.token: cannot read the file that file: names: file does not exist")
	bad(t, "admin:\n  listen: :90\n", "2:3: admin.token: must be set, unless admin.listen is a loopback address such as 127.0.0.1:9090")
	bad(t, "admin: {token: short}\n", "1:16: admin.token: must have at least 16 characters: letters, digits and signs without spaces")

	c, err := read("data: x${EMPTY}y$${z} $ {a}\ndatabase: file:/run/token\n")
	if err != nil {
		t.Fatal(err)
	}
	if c.Data != "xy${z} $ {a}" || c.Database != "file:/run/token" {
		t.Errorf("data %q, database %q", c.Data, c.Database.Reveal())
	}
}

// The number of reported mistakes is limited.
func TestReadManyMistakes(t *testing.T) {
	t.Parallel()
	_, err := read("feeds:\n" + strings.Repeat("  - path: a\n", 1000))
	lines := strings.Split(err.Error(), "\n")
	if want := "100 mistakes or more; no more are reported"; len(lines) != 101 || !strings.HasSuffix(lines[100], want) {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

// Values from the environment are plain text and cannot add keys.
func TestReadExpandsAfterParsing(t *testing.T) {
	t.Parallel()
	env := func(string) (string, bool) { return "x\nlisten: 0.0.0.0:1\n${AGAIN}", true }
	c, err := Read("f", []byte("data: ${A}\n"), env, testFile)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != Default().Listen || c.Data != "x\nlisten: 0.0.0.0:1\n${AGAIN}" {
		t.Errorf("listen %q, data %q", c.Listen, c.Data)
	}
}

func TestReadChecks(t *testing.T) {
	t.Parallel()
	check := func(c Config) []Mistake {
		return []Mistake{{Path: "feeds[0].sql", Rule: "1:8: what is this", Value: c.Feeds[0].Path}, {Path: "feeds[0].key[0]", Rule: "must not be"}}
	}
	_, err := read(orders, check)
	want := "spillway.yaml:3:10: feeds[0].sql: 1:8: what is this, not \"/orders\"\nspillway.yaml:4:10: feeds[0].key[0]: must not be"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestLoad(t *testing.T) {
	path := t.TempDir() + "/f.yaml"
	if _, err := Load(path, Default(), false); !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "read configuration: ") {
		t.Errorf("missing file: %v", err)
	}
	t.Setenv("SPILLWAY_TEST_DATA", "from the environment")
	if err := os.WriteFile(path, []byte("data: ${SPILLWAY_TEST_DATA}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(path, Default(), false); err != nil || c.Data != "from the environment" {
		t.Errorf("data %q, %v", c.Data, err)
	}
}
