package freight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/progress"
)

// childURL is the environment variable with the URL of the database that a child process fills
// until it is killed.
const childURL = "FREIGHT_TEST_CHILD_URL"

func TestMain(m *testing.M) {
	if text := os.Getenv(childURL); text != "" {
		url, err := database.Parse(text)
		if err == nil {
			_, err = Seed(context.Background(), url, endless, true, progress.New(os.Stdout))
		}
		fmt.Println("child ended:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(apptest.Closing(m, &shared))
}

var (
	small  = Dataset{Users: 500, Days: 40, PerDay: 30, Seed: 7}
	medium = Dataset{Users: 3_000, Days: 25, PerDay: 200, Seed: 3}
	// endless has more orders than any machine loads within minutes.
	endless = Dataset{Users: 20_000, Days: 3_660, PerDay: 20_000, Seed: 5}
)

// shared is the PostgreSQL server of this package's tests.
var shared = apptest.Shared[*apptest.PostgresServer]{Start: func() (*apptest.PostgresServer, error) { return apptest.StartPostgres() }}

// place is one kind of database to test on.
type place struct {
	dialect  dialect
	fresh    func(t *testing.T) database.URL // an empty database
	midnight string                          // SQL: the midnight before the time %s
	stepwise bool                            // each statement is committed
	indexes  string                          // SQL: the names of the indexes
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	maria := apptest.MariaDB(t)
	places := map[database.Driver]place{
		database.MySQL: {
			fresh:    freshMySQL(maria),
			midnight: "DATE(%s)",
			stepwise: true,
			indexes:  "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND INDEX_NAME <> 'PRIMARY' ORDER BY 1",
		},
		database.Postgres: {
			fresh:    freshPostgres(t, server),
			midnight: "date_trunc('day', %s)",
			indexes:  "SELECT indexname FROM pg_indexes WHERE schemaname = 'public' AND indexname NOT LIKE '%_pkey' ORDER BY 1",
		},
		database.SQLite: {
			fresh: func(t *testing.T) database.URL {
				return parse(t, "sqlite:"+filepath.Join(t.TempDir(), "test.db"))
			},
			midnight: "datetime(%s, 'start of day')",
			indexes:  "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY 1",
		},
	}
	for driver, p := range places {
		p.dialect = dialectOf(driver)
		t.Run(string(driver), func(t *testing.T) {
			t.Parallel()
			t.Run("rows", p.testRows)
			t.Run("again", p.testAgain)
			t.Run("replace", p.testReplace)
			t.Run("foreign", p.testForeign)
			t.Run("interrupted", p.testInterrupted)
			t.Run("interrupted at any time", p.testInterruptedAnyTime)
			t.Run("killed", p.testKilled)
			t.Run("two at once", p.testTwoAtOnce)
			t.Run("ensure", p.testEnsure)
			t.Run("newer", p.testNewer)
			t.Run("positions", p.testPositions)
			t.Run("games", p.testGames)
			t.Run("games' foreign table", p.testGamesForeign)
			t.Run("games interrupted", p.testGamesInterrupted)
		})
	}
}

func parse(t *testing.T, text string) database.URL {
	t.Helper()
	url, err := database.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func quiet() *progress.Meter { return progress.New(io.Discard) }

func (p place) exec(t *testing.T, url database.URL, statements ...string) {
	t.Helper()
	err := p.dialect.within(context.Background(), url, func(tx transaction) error {
		return execAll(context.Background(), tx, statements...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (p place) rows(t *testing.T, url database.URL, sql string) (rows [][]string) {
	t.Helper()
	err := p.dialect.within(context.Background(), url, func(tx transaction) (err error) {
		rows, err = tx.query(context.Background(), sql)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// value returns the one value that the query selects.
func (p place) value(t *testing.T, url database.URL, sql string) string {
	t.Helper()
	rows := p.rows(t, url, sql)
	if len(rows) != 1 || len(rows[0]) != 1 {
		t.Fatalf("%s: %v", sql, rows)
	}
	return rows[0][0]
}

// tables returns which of the app's tables exist.
func (p place) tables(t *testing.T, url database.URL) string {
	t.Helper()
	var names []string
	for _, row := range p.rows(t, url, fmt.Sprintf(p.dialect.relations, "'spillway_schema', 'users', 'orders', 'game_record'")+" ORDER BY 1") {
		names = append(names, row[0])
	}
	return strings.Join(names, " ")
}

func (p place) seed(t *testing.T, url database.URL, dataset Dataset, replace, made bool) {
	t.Helper()
	outcome, err := Seed(context.Background(), url, dataset, replace, quiet())
	if err != nil {
		t.Fatal(err)
	}
	orders := 0
	if made {
		orders = NewGenerator(dataset).OrderCount()
	}
	if outcome.Made != made || outcome.Orders != orders {
		t.Fatalf("outcome %+v, want made %t of %s with %d orders", outcome, made, dataset, orders)
	}
}

// complete checks that the database holds exactly the data set.
func (p place) complete(t *testing.T, url database.URL, dataset Dataset) {
	t.Helper()
	g := NewGenerator(dataset)
	users := p.rows(t, url, "SELECT id, nickname, mobileno, createtime FROM users ORDER BY id")
	wantRows(t, "users", userRows(g), users)
	orders := p.rows(t, url, "SELECT id, createtime, users_id, goods_name FROM orders ORDER BY id")
	wantRows(t, "orders", orderRows(g), orders)
	want := fmt.Sprintf("1|--users %d --days %d --per-day %d --random-seed %d", dataset.Users, dataset.Days, dataset.PerDay, dataset.Seed)
	rows := p.rows(t, url, "SELECT version, dataset FROM spillway_schema WHERE name = 'freight'")
	if len(rows) != 1 || strings.Join(rows[0], "|") != want {
		t.Fatalf("spillway_schema %v, want %s", rows, want)
	}
}

// wantRows compares rows. cmp.Diff of equal ones takes longer than most tests here.
func wantRows(t *testing.T, what string, want, got [][]string) {
	t.Helper()
	if !slices.EqualFunc(want, got, slices.Equal) {
		t.Fatalf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}

func (p place) testRows(t *testing.T) {
	url := p.fresh(t)
	p.seed(t, url, small, false, true)
	p.complete(t, url, small)

	// The same rules in SQL.
	broken := "SELECT count(*) FROM orders JOIN users ON users.id = users_id WHERE users.createtime >= " + fmt.Sprintf(p.midnight, "orders.createtime")
	if got := p.value(t, url, broken); got != "0" {
		t.Errorf("%s orders by users who were not registered before that day", got)
	}
	twice := "SELECT count(*) FROM (SELECT 1 FROM orders GROUP BY users_id, " + fmt.Sprintf(p.midnight, "createtime") + " HAVING count(*) > 1) AS t"
	if got := p.value(t, url, twice); got != "0" {
		t.Errorf("%s users ordered twice on a day", got)
	}

	// New rows get the next ids.
	last := NewGenerator(small).OrderCount()
	p.exec(t, url, "INSERT INTO orders (users_id, goods_name) VALUES (1, 'new')",
		"INSERT INTO users (nickname, mobileno) VALUES ('new', 'new')")
	if got := p.value(t, url, "SELECT id FROM orders WHERE goods_name = 'new' AND createtime IS NOT NULL"); got != fmt.Sprint(last+1) {
		t.Errorf("a new order has id %s, want %d", got, last+1)
	}
	if got := p.value(t, url, "SELECT id FROM users WHERE nickname = 'new'"); got != fmt.Sprint(small.Users+1) {
		t.Errorf("a new user has id %s, want %d", got, small.Users+1)
	}
	for _, sql := range []string{
		"INSERT INTO orders (id, users_id, goods_name) VALUES (1, 1, 'x')",
		"INSERT INTO users (nickname, mobileno) VALUES ('x', '13800000001')",
		"INSERT INTO orders (users_id) VALUES (1)",
	} {
		err := p.dialect.within(context.Background(), url, func(tx transaction) error { return tx.exec(context.Background(), sql) })
		if err == nil {
			t.Errorf("%s: accepted", sql)
		}
	}
	want := [][]string{{"orders_createtime_idx"}, {"orders_users_id_idx"}, {"users_createtime_idx"}, {"users_mobileno_key"}}
	if diff := cmp.Diff(want, p.rows(t, url, p.indexes)); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
}

func (p place) testAgain(t *testing.T) {
	url := p.fresh(t)
	p.seed(t, url, small, false, true)
	p.seed(t, url, small, false, false)
	p.complete(t, url, small)
	p.exec(t, url, "INSERT INTO orders (users_id, goods_name) VALUES (1, 'new')")
	p.seed(t, url, small, false, false)
	if got := p.value(t, url, "SELECT count(*) FROM orders WHERE goods_name = 'new'"); got != "1" {
		t.Errorf("the new order is there %s times", got)
	}
}

func (p place) testReplace(t *testing.T) {
	url := p.fresh(t)
	p.seed(t, url, small, false, true)
	other := small
	other.Seed++
	_, err := Seed(context.Background(), url, other, false, quiet())
	if err == nil || !strings.Contains(err.Error(), "the database contains another data set (--users 500 --days 40 --per-day 30 --random-seed 7); --replace") {
		t.Fatal(err)
	}
	p.complete(t, url, small)
	p.seed(t, url, other, true, true)
	p.complete(t, url, other)
	p.exec(t, url, "DELETE FROM orders WHERE id < 100")
	p.seed(t, url, other, true, true)
	p.complete(t, url, other)
	p.exec(t, url, "DROP TABLE users", "DROP TABLE orders", "DROP TABLE positions")
	p.seed(t, url, other, false, true)
	p.complete(t, url, other)
	none := Dataset{Users: 3, Days: 1, Seed: 1}
	p.seed(t, url, none, true, true)
	p.exec(t, url, "INSERT INTO orders (users_id, goods_name) VALUES (1, 'first')")
	if got := p.value(t, url, "SELECT max(id) FROM orders"); got != "1" {
		t.Errorf("the first order has id %s", got)
	}
}

func (p place) testForeign(t *testing.T) {
	columns := strings.Join(freightApp().columns["users"], " text, ") + " text"
	for name, make := range map[string]string{
		"users":           "CREATE TABLE users (id integer, email text)",
		"orders":          "CREATE TABLE orders (total integer)",
		"spillway_schema": "CREATE TABLE spillway_schema (version integer)",
		"view":            "CREATE VIEW orders AS SELECT 1 AS id",
		"our columns":     "CREATE TABLE users (" + columns + ")",
	} {
		url := p.fresh(t)
		p.exec(t, url, make)
		before := p.tables(t, url)
		for _, replace := range []bool{false, true} {
			_, err := Seed(context.Background(), url, small, replace, quiet())
			if err == nil || !strings.Contains(err.Error(), "that Spillway did not create; use another") {
				t.Errorf("%s, replace %t: %v", name, replace, err)
			}
		}
		if after := p.tables(t, url); after != before {
			t.Errorf("%s: tables before %q, after %q", name, before, after)
		}
		if _, err := Ensure(context.Background(), url, quiet()); err == nil {
			t.Errorf("%s: Ensure agreed", name)
		}
	}
}

func (p place) testTwoAtOnce(t *testing.T) {
	url := p.fresh(t)
	made := make(chan bool, 2)
	for range 2 {
		go func() {
			outcome, err := Seed(context.Background(), url, small, false, quiet())
			if err != nil {
				t.Error(err)
			}
			made <- outcome.Made
		}()
	}
	if first, second := <-made, <-made; first == second {
		t.Errorf("made %t and %t", first, second)
	}
	p.complete(t, url, small)
}

func (p place) testEnsure(t *testing.T) {
	url := p.fresh(t)
	if url.Driver == database.SQLite {
		url = parse(t, "sqlite:"+filepath.Join(t.TempDir(), "new", "directory", "test.db"))
	}
	other := small
	other.Seed++
	for _, made := range []bool{true, false} {
		outcome, err := p.dialect.ensure(context.Background(), url, other, quiet())
		if err != nil || outcome.Made != made {
			t.Fatalf("outcome %+v, %v", outcome, err)
		}
		p.complete(t, url, other)
	}
	url = p.fresh(t)
	p.seed(t, url, small, false, true)
	outcome, err := Ensure(context.Background(), url, quiet())
	if err != nil || outcome.Made {
		t.Fatalf("outcome %+v, %v", outcome, err)
	}
	p.complete(t, url, small)
}

// testNewer: the tables of a newer version stay as they are.
func (p place) testNewer(t *testing.T) {
	url := p.fresh(t)
	p.seed(t, url, small, false, true)
	p.exec(t, url, "UPDATE spillway_schema SET version = 2 WHERE name = 'freight'")
	for _, replace := range []bool{false, true} {
		if _, err := Seed(context.Background(), url, small, replace, quiet()); !errors.Is(err, errNewer) {
			t.Errorf("seed, replace %t: %v", replace, err)
		}
	}
	if _, err := Ensure(context.Background(), url, quiet()); !errors.Is(err, errNewer) {
		t.Errorf("ensure: %v", err)
	}
}

// testPositions: the table is empty, and another application's is never dropped.
func (p place) testPositions(t *testing.T) {
	url := p.fresh(t)
	p.seed(t, url, small, false, true)
	p.exec(t, url, "INSERT INTO positions (device_id, speed) VALUES (7, 61.5)")
	if got := p.value(t, url, "SELECT count(*) FROM positions WHERE id = 1 AND recorded_at IS NOT NULL"); got != "1" {
		t.Errorf("%s positions", got)
	}
	p.seed(t, url, small, true, true)
	if got := p.value(t, url, "SELECT count(*) FROM positions"); got != "0" {
		t.Errorf("%s positions after --replace", got)
	}
	p.exec(t, url, "DROP TABLE positions", "CREATE TABLE positions (id integer)")
	_, err := Seed(context.Background(), url, small, true, quiet())
	if err == nil || !strings.Contains(err.Error(), `"positions" belongs to a table that Spillway did not create`) {
		t.Error(err)
	}
}
