package config

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"spillway/internal/yaml"
)

func TestAddressBlock(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DB_USER": "ann", "DB_PASSWORD": "p@ss:w/rd%"}
	read := func(block string) (Address, error) {
		c, err := readText("database: {"+block+"}\n", env)
		return c.Database, err
	}
	good := func(block string, want Address) {
		t.Helper()
		if got, err := read(block); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", block, got.Reveal(), err, want.Reveal())
		}
	}
	bad := func(block, says string) {
		t.Helper()
		if got, err := read(block); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %q, %v; want %s", block, got.Reveal(), err, says)
		}
	}
	good(`url: "postgres://db/app"`, "postgres://db/app")
	good(`url: "postgres://db/app", user: "${DB_USER}", password: "${DB_PASSWORD}"`, "postgres://ann:p%40ss%3Aw%2Frd%25@db/app")
	good(`url: "postgres://ann@db/app?sslmode=disable", password: "ü"`, "postgres://ann:%C3%BC@db/app?sslmode=disable")
	good(`url: "postgres:///app?host=/run", user: ann`, "postgres://ann@/app?host=/run")
	good(`url: "mysql:///app?socket=/a@b", user: "a b", password: "-._~"`, "mysql://a%20b:-._~@/app?socket=/a@b")
	good(`url: "sqlite:app.db"`, "sqlite:app.db")
	bad(`user: ann`, "must have a url")
	bad(`url: "postgres://ann@db/app", user: ann`, "a user in url and in user")
	bad(`url: "postgres:///app?user=ann", user: ann`, "a user in url and in user")
	bad(`url: "postgres://ann:s3cret@db/app", password: x`, "a password in url and in password")
	bad(`url: "postgres://ann@db/app?p%61ssword=s3cret", password: x`, "a password in url and in password")
	bad(`url: "postgres://db/app", password: s3cret`, "must have a user")
	bad(`url: "sqlite:app.db", user: ann, password: s3cret`, "SQLite has neither")
	bad(`url: "postgres://db/app", usr: ann`, "unknown key; did you mean user?")
	bad(`url: "postgres://***@db/app"`, "holds ***")
}

// The URL has the user and the password that were given, and shows no password.
func TestAddressEncoding(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`.{1,12}`)
		user, password := text.Draw(t, "user"), "Zq7"+text.Draw(t, "password")+"9Xz"
		a, problem := credentials{URL: "postgres://db/app", User: source(user), Password: source(password)}.address()
		if problem != "" {
			t.Fatal(problem)
		}
		u, err := url.Parse(a.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := u.User.Password(); got != password || u.User.Username() != user || u.Host != "db" {
			t.Fatalf("%q: user %q, password %q", a.Reveal(), u.User.Username(), got)
		}
		for _, shown := range []string{fmt.Sprintf("%v %+v %#v %q", a, a, a, a), slog.AnyValue(a).String()} {
			if strings.Contains(shown, encode(password)) || strings.Contains(shown, password) {
				t.Fatalf("shows %s", shown)
			}
		}
	})
}

// A value that is not known breaks no rule; the others are checked.
func TestPartial(t *testing.T) {
	t.Parallel()
	text := `listen: ${HOST}:8080
database: {url: "postgres://db/app", user: "${USER_NAME}", password: "file:/no/such"}
replica: ${REPLICA}
admin: {listen: "0.0.0.0:9090", token: "${TOKEN}"}
keys: ["${KEY}"]
pool: {max: "${MAX}", connect_timeout: "${WAIT}"}
feeds:
  - path: ${PATH_NAME}
    sql: SELECT id FROM ${TABLE_NAME}
    key: ${KEY_NAME} other words
    database: file:/no/such
  - path: bad
    sql: SELECT 1
    key: id
`
	_, err := readPartial(text, nil)
	if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "feeds[1].path: must start with /") {
		t.Errorf("%v", err)
	}
	if c, err := readPartial(strings.Replace(text, "path: bad", "path: /good", 1), map[string]string{"MAX": "7", "REPLICA": "postgres://b/app"}); err != nil || c.Pool.Max != 7 || c.Replica != "postgres://b/app" || !c.Feeds[0].Database.IsUnknown() || !c.Database.IsUnknown() || c.Replica.IsUnknown() {
		t.Errorf("%+v, %v", c, err)
	}
	for block, unknown := range map[string]bool{
		`{url: "postgres://db/app", user: "${A}"}`:                           true,
		`{url: "postgres://u@db/app", password: "file:/no/such"}`:            true,
		`{url: "postgres://u@db/app", password: "${PASSWORD}"}`:              false,
		`{url: "postgres://db/app?x=file:y", user: file, password: "a:b@c"}`: false,
	} {
		c, err := readPartial("database: "+block+"\n", map[string]string{"PASSWORD": "p@${"})
		if err != nil || c.Database.IsUnknown() != unknown {
			t.Errorf("%s: %v, %v", block, c.Database.IsUnknown(), err)
		}
	}
	if _, err := readPartial("listen: ${}\n", nil); err == nil {
		t.Error("a variable without a name is accepted")
	}
}

// readText reads a configuration in which only these variables are set, and no file exists.
func readText(text string, env map[string]string) (Config, error) { return readWith(text, env, false) }

func readPartial(text string, env map[string]string) (Config, error) {
	return readWith(text, env, true)
}

func readWith(text string, env map[string]string, partial bool) (Config, error) {
	return decode("spillway.yaml", []byte(text), Default(), yaml.Options{
		Env:      func(name string) (string, bool) { value, set := env[name]; return value, set },
		ReadFile: testFile, Partial: partial,
	}, nil)
}

// The files of an address are read when it is used.
func TestAddressFiles(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole := Address("file:" + file)
	beside, problem := credentials{URL: "redis://h/1", User: source("file:" + file), Password: source("file:" + file)}.address()
	if problem != "" {
		t.Fatal(problem)
	}
	for _, secret := range []string{"one", "t@w:o/%", "postgres://ann:x@db/app"} {
		write(secret + "\n")
		if got, err := whole.Read(); err != nil || got != secret {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := beside.Read(); err != nil || got != "redis://"+encode(secret)+":"+encode(secret)+"@h/1" {
			t.Errorf("%q, %v", got, err)
		}
	}
	for _, refused := range []string{" \n", ""} {
		write(refused)
		if refused == "" {
			_ = os.Remove(file)
		}
		if got, err := beside.Read(); err == nil || !beside.IsUnknown() {
			t.Errorf("%q", got)
		}
	}
}
