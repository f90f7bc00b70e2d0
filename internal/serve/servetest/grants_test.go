package servetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/serve/storetest"
)

// grantsPassword has characters that a URL would need encoded.
const grantsPassword = `q7s3cr3t/@:?#%`

// grantsConfig uses everything that needs privileges. The address is HOST:PORT/NAME.
const grantsConfig = `database:
  url: %s
  user: fresh
  password: file:%s
feeds:
  - path: /orders
    sql: SELECT o.id, o.city, u.name FROM orders AS o JOIN users AS u ON u.id = o.user_id WHERE o.city = :city
    key: id
    params: {city: text}
queries:
  - path: /tally
    sql: WITH big AS (SELECT city, n FROM tally) SELECT city, n FROM big WHERE city = :city
    params: {city: text}
streams:
  - path: /readings
    table: readings
    columns: {device: {type: integer, required: true}, value: real}
    key: [device]
  - path: /positions
    table: positions
    columns: {truck: integer}
    ack: spool
popups:
  path: /popup
  user_type: integer
  attributes: {member: boolean}
  attributes_sql: SELECT member FROM members WHERE user_id = :user
  lists: {members: SELECT user_id FROM members WHERE member}
`

const grantsTables = `CREATE TABLE users (id bigint PRIMARY KEY, name varchar(20));
CREATE TABLE orders (id bigint NOT NULL PRIMARY KEY, city varchar(20) NOT NULL, user_id bigint);
CREATE INDEX orders_city ON orders (city, id);
CREATE VIEW tally AS SELECT city, count(*) AS n FROM orders GROUP BY city;
CREATE TABLE readings (device bigint NOT NULL PRIMARY KEY, value double precision);
CREATE TABLE members (user_id bigint PRIMARY KEY, member boolean);
INSERT INTO users VALUES (1, 'ann');
INSERT INTO orders VALUES (1, 'Graz', 1), (2, 'Graz', 1);
INSERT INTO members VALUES (7, true);
`

// grantsCase is a database with the tables, and the configuration of a role that does not
// exist yet.
type grantsCase struct {
	admin storetest.Database
	file  string
}

func newGrantsCase(t *testing.T, admin storetest.Database, address, tables string) grantsCase {
	t.Helper()
	for sql := range strings.SplitSeq(strings.TrimSpace(grantsTables+tables), ";\n") {
		admin.Query(t, strings.TrimSuffix(sql, ";"))
	}
	file, secret := filepath.Join(t.TempDir(), "spillway.yaml"), filepath.Join(t.TempDir(), "password")
	if err := errors.Join(os.WriteFile(secret, []byte(grantsPassword+"\n"), 0o600), os.WriteFile(file, []byte(apptest.Patient(fmt.Sprintf(grantsConfig, address, secret))), 0o600)); err != nil {
		t.Fatal(err)
	}
	return grantsCase{admin, file}
}

// statements returns what spillway grants prints, without comments and semicolons.
func (c grantsCase) statements(t *testing.T) []string {
	t.Helper()
	text, stderr, code := binary.Run(t, "grants", c.file, "--database", c.admin.URL)
	if code != 0 || stderr != "" || strings.Contains(text, "q7s3cr3t") {
		t.Fatalf("exit %d\n%s%s", code, stderr, text)
	}
	var all []string
	for sql := range strings.SplitSeq(strings.TrimSpace(text), ";") {
		lines := strings.Split(strings.TrimSpace(sql), "\n")
		for len(lines) > 0 && strings.HasPrefix(lines[0], "-- ") {
			lines = lines[1:]
		}
		if sql := strings.Join(lines, "\n"); sql != "" {
			all = append(all, sql)
		}
	}
	return all
}

// serve serves the configuration as the role.
func (c grantsCase) serve(t *testing.T) *apptest.Spillway {
	t.Helper()
	s := apptest.Serve(t, binary.Path(t), c.file)
	s.WaitReady(t)
	return s
}

// use asks for everything that the configuration serves.
func (c grantsCase) use(t *testing.T) {
	t.Helper()
	s := c.serve(t)
	want := func(what string, a apptest.Answer, status int) {
		t.Helper()
		if a.Status != status {
			t.Errorf("%s: %d %s", what, a.Status, a.Body)
		}
	}
	want("feed", apptest.Fetch(t, s.URL("orders?city=Graz")), 200)
	want("older page", apptest.Fetch(t, s.URL("orders?city=Graz&limit=1&offset=1")), 200)
	want("query", apptest.Fetch(t, s.URL("tally?city=Graz")), 200)
	for i, body := range []string{`{"device":1}`, `{"device":1}`, `[{"device":2},{"device":2}]`} {
		want("record", apptest.Post(t, s.URL("readings"), body, "Idempotency-Key", fmt.Sprint("key", i)), 200)
	}
	want("same key", apptest.Post(t, s.URL("readings"), `{"device":1}`, "Idempotency-Key", "key1"), 200)
	want("record in the spool", apptest.Post(t, s.URL("positions"), `{"truck":1}`, "Idempotency-Key", "key9"), 202)
	apptest.Await(t, "the spool is drained", func() bool { return c.admin.Query(t, "SELECT count(*) FROM positions")[0][0] == "1" })
	apptest.SendCampaign(t, s, "POST", "/popups/campaigns", `{"name":"one","placement":"home","payload":1,"status":"active","target":"member","order":1}`, 201)
	shown := apptest.ShownPopup{}
	apptest.Await(t, "a popup is due", func() bool {
		var a apptest.Answer
		a, shown = apptest.AskPopup(t, s, "user=7")
		return a.Status == 200
	})
	if status, body := apptest.PostPopup(t, s.URL("popup/click"), apptest.ShowToken(shown.Show)); status != http.StatusNoContent {
		t.Errorf("click: %d %s", status, body)
	}
	apptest.Await(t, "the click is stored", func() bool { return c.admin.Query(t, "SELECT count(*) FROM popup_events")[0][0] == "2" })
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if log := s.Log(t); strings.Contains(log, "denied") || strings.Contains(log, "q7s3cr3t") {
		t.Errorf("log:\n%s", log)
	}
}

// start returns what serve prints until it names a privilege, serves, or ends.
func (c grantsCase) start(t *testing.T) string {
	t.Helper()
	var out apptest.Output
	cmd := exec.CommandContext(t.Context(), binary.Path(t), "serve", "--strict", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", t.TempDir(), c.file)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	apptest.Await(t, "serve says whether it starts", func() bool {
		text := out.String()
		return len(ended) > 0 || strings.Contains(text, "denied") || strings.Contains(text, "privilege") || strings.Contains(text, "msg=serving")
	})
	_ = cmd.Process.Kill() // it may have ended
	<-ended
	return out.String()
}

// test checks that a new role with exactly the printed privileges serves everything, and that
// one of them is missed at startup, of each object another one. With -short, some of the objects are tried.
func (c grantsCase) test(t *testing.T) {
	var revoked [][2]string // REVOKE and GRANT
	for _, sql := range c.statements(t) {
		c.admin.Query(t, sql)
		rest, found := strings.CutPrefix(sql, "GRANT ")
		if !found {
			continue
		}
		privileges, rest, _ := strings.Cut(rest, " ON ")
		object, role, _ := strings.Cut(rest, " TO ")
		list := strings.Split(privileges, ", ")
		privilege := list[len(revoked)%len(list)]
		revoked = append(revoked, [2]string{"REVOKE " + privilege + " ON " + object + " FROM " + role, "GRANT " + privilege + " ON " + object + " TO " + role})
	}
	if len(revoked) < 17 {
		t.Errorf("%d grants: %q", len(revoked), revoked)
	}
	c.use(t)
	turn := rand.IntN(4) // a short run has a quarter of them
	for i, sql := range revoked {
		if testing.Short() && i%4 != turn {
			continue
		}
		c.admin.Query(t, sql[0])
		if text := c.start(t); strings.Contains(text, "msg=serving") {
			t.Errorf("after %s:\n%s", sql[0], text)
		}
		c.admin.Query(t, sql[1])
	}
	if text := c.start(t); !strings.Contains(text, "msg=serving") {
		t.Errorf("with all privileges again:\n%s", text)
	}
}

func TestGrantsOnPostgres(t *testing.T) {
	t.Parallel()
	admin := storetest.PostgresDatabase(t, postgres.Get(t))
	defer admin.Query(t, "DROP OWNED BY fresh; DROP ROLE fresh") // the server's other tests have no such role
	c := newGrantsCase(t, admin, "postgres://"+strings.TrimPrefix(admin.URL, "postgres://postgres@"), `CREATE TABLE positions (id bigserial PRIMARY KEY, truck bigint);
ALTER TABLE users ADD other text;
REVOKE ALL ON SCHEMA public FROM PUBLIC;`)
	c.test(t)
}

func TestGrantsOnMariaDB(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t)
	storetest.MariaDatabase(t, server).Query(t, "CREATE DATABASE app") // everybody may use test
	query := storetest.MariaDBQuery(t, server.URL("app"))
	admin := storetest.Database{URL: server.URL("app"), Query: func(t *testing.T, sql string) [][]string { t.Helper(); return query(sql) }}
	admin.Query(t, "DROP USER IF EXISTS ''@localhost") // it comes before fresh@'%'
	c := newGrantsCase(t, admin, "mysql:///app?socket="+server.Dir()+"/socket", "CREATE TABLE positions (id bigint AUTO_INCREMENT PRIMARY KEY, truck bigint);")
	admin.Query(t, "CREATE USER fresh@'%' IDENTIFIED BY '"+grantsPassword+"'")
	file := filepath.Join(t.TempDir(), "list.yaml")
	const list = "feeds: [{path: /some, sql: SELECT id FROM orders WHERE city IN (:cities), key: id, params: {cities: {type: text, list_max: 9}}}]\n"
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := binary.Run(t, "grants", file, "--database", admin.URL); code != exit.OK || !strings.Contains(stdout, "GRANT SELECT") || !strings.Contains(stdout, "-- feed /some") {
		t.Errorf("a feed with a list: exit %d\n%s%s", code, stdout, stderr)
	}
	c.test(t)
}

func TestGrantsUse(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	for _, c := range []struct {
		database, args string
		code           int
		says           string
	}{
		{"sqlite:app.db", "", exit.OK, "SQLite has no roles"},
		{"${SPILLWAY_TEST_MISSING}", "", exit.Usage, "give --database URL"},
		{"${SPILLWAY_TEST_MISSING}", "--database nonsense", exit.Usage, "unknown kind of database"},
		{"postgres://ann:s3cret@127.0.0.1:1/app", "", exit.Error, "postgres://ann:***@127.0.0.1:1/app"},
	} {
		text := "database: " + c.database + "\nfeeds: [{path: /orders, sql: SELECT id FROM orders, key: id}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := binary.Run(t, append([]string{"grants", file}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) || strings.Contains(stdout+stderr, "s3cret") {
			t.Errorf("%s %s: exit %d\n%s%s", c.database, c.args, code, stdout, stderr)
		}
	}
}
