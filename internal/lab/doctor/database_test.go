package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/plans"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gameRecord = "SELECT * FROM game_record WHERE app_id=? AND token=? AND score != -1 ORDER BY prize_grade, score LIMIT 50"

// The rows of game_record for measuring, and where nothing depends on how fast an index is.
const (
	gameRows = 50_000
	fewRows  = 4_000
)

// createGames makes game_record with that many rows and apps: with one app, app_id and
// token hold one value each, and so does prize_grade.
func createGames(t *testing.T, url database.URL, rows, apps int) {
	t.Helper()
	s := connect(t, url)
	defer s.close()
	grade := "i % 5"
	if apps == 1 {
		grade = "1"
	}
	series := fmt.Sprintf("generate_series(1, %d) AS g(i)", rows)
	name := func(prefix string) string { return fmt.Sprintf("concat('%s-', i %% %d)", prefix, apps) }
	if url.Driver == database.MySQL {
		series = fmt.Sprintf("(SELECT seq AS i FROM seq_1_to_%d) g", rows)
	}
	err := run(t.Context(), s,
		`CREATE TABLE game_record (id INTEGER NOT NULL PRIMARY KEY, app_id VARCHAR(64), token VARCHAR(64), user_id INTEGER, nickname VARCHAR(64), prize_grade INTEGER, start_time TIMESTAMP NULL, score INTEGER)`,
		fmt.Sprintf("INSERT INTO game_record SELECT i, %s, %s, i, 'somebody', %s, NULL, CASE WHEN i %% 1000 = 0 THEN -1 ELSE i %% 1000 * 7919 %% 1000 END FROM %s", name("app"), name("token"), grade, series))
	if err == nil {
		err = run(t.Context(), s, map[database.Driver]string{database.Postgres: "ANALYZE", database.MySQL: "ANALYZE TABLE game_record"}[url.Driver])
	}
	if err != nil {
		t.Fatal(err)
	}
}

// connect opens a session that may write.
func connect(t *testing.T, url database.URL) session {
	t.Helper()
	s, err := open(t.Context(), url)
	if err == nil {
		err = run(t.Context(), s, dialectOf(url.Driver).readWrite)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parseURL(t *testing.T, text string) database.URL {
	t.Helper()
	url, err := database.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// servers are an empty database of each kind for each name asked for.
func servers(t *testing.T) map[string]func() database.URL {
	pg := apptest.Postgres(t, "autovacuum=on")
	maria := apptest.MariaDB(t)
	made := 0
	return map[string]func() database.URL{
		"postgres": func() database.URL { return parseURL(t, pg.CreateDatabase(t)) },
		"mariadb": func() database.URL {
			made++
			s, err := open(t.Context(), parseURL(t, maria.URL("test")))
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			name := fmt.Sprintf("games_%d", made)
			if err := run(t.Context(), s, mysqlDialect().readWrite, "CREATE DATABASE "+name); err != nil {
				t.Fatal(err)
			}
			return parseURL(t, maria.URL(name))
		},
	}
}

func TestRealServers(t *testing.T) {
	t.Parallel()
	for name, create := range servers(t) {
		t.Run(name+" game_record", func(t *testing.T) {
			apptest.Long(t)
			testGameRecord(t, create)
		})
		t.Run(name+" together", func(t *testing.T) {
			apptest.Long(t)
			testTogether(t, create)
		})
		t.Run(name+" plans", func(t *testing.T) { testPlans(t, create) })
		if name == "postgres" {
			t.Run("postgres, a role that may only read", func(t *testing.T) { testMayOnlyRead(t, create()) })
			t.Run("postgres, mistakes", func(t *testing.T) { testMistakes(t, create()) })
		}
		t.Run(name+" interrupted", func(t *testing.T) { testInterrupted(t, create) })
		t.Run(name+" settings", func(t *testing.T) { testReadServer(t, name, create) })
	}
}

// testMayOnlyRead: what a role may do is done, and the error says what it may not.
func testMayOnlyRead(t *testing.T, url database.URL) {
	createGames(t, url, fewRows, 3)
	s := connect(t, url)
	defer s.close()
	const role = "shop_reader"
	database := regexp.MustCompile(`/([^/?]+)(\?|$)`).FindStringSubmatch(url.Raw())[1]
	err := run(t.Context(), s, "CREATE ROLE "+role+" LOGIN", "GRANT SELECT ON game_record TO "+role, "REVOKE TEMP ON DATABASE "+database+" FROM PUBLIC")
	if err != nil {
		t.Fatal(err)
	}
	reader := parseURL(t, regexp.MustCompile(`//[^@/]*@`).ReplaceAllString(url.Raw(), "//"+role+"@"))
	q, err := Analyze(t.Context(), reader, Options{Query: gameRecord, Measure: true, CopyRows: 10, Timeout: time.Minute}, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "permission denied to create temporary tables") || q == nil || len(q.Candidates) == 0 || len(q.Plan.Lines) == 0 {
		t.Errorf("%v: %+v", err, q)
	}
}

// With one app, the index needs no columns that hold one value. With many, the
// columns that equal a value belong first.
func testGameRecord(t *testing.T, create func() database.URL) {
	for apps, want := range map[int]string{1: "prize_grade, score", 100: "app_id, token, prize_grade, score"} {
		url := create()
		createGames(t, url, gameRows, apps)
		want = "game_record (" + want + ")"
		q := analyze(t, url, Options{Query: gameRecord, Measure: true}, want)
		text := &strings.Builder{}
		if err := (&Report{Query: q}).WriteText(text); err != nil {
			t.Fatal(err)
		}
		if got := winners(q); !slices.Equal(got, []string{want}) || q.Winner == nil {
			t.Errorf("%d apps: %v win, want %s\n%s", apps, got, want, text)
		}
		if len(q.Candidates) != 2 || len(q.Measured) != 4 || q.Plan.ExecutionSeconds == nil || len(q.Plan.Costs) == 0 {
			t.Errorf("%d apps: %d candidates, %d variants, plan %+v", apps, len(q.Candidates), len(q.Measured), q.Plan)
		}
		if strings.Contains(text.String(), "app-") || strings.Contains(text.String(), "token-") {
			t.Error("a parameter's value is shown")
		}
		leavesNothing(t, url)
	}
}

// analyze runs doctor, again while the machine was disturbed in the middle of it and other indexes than these won.
func analyze(t *testing.T, url database.URL, o Options, want ...string) *Query {
	t.Helper()
	o.CopyRows, o.Timeout = 1_000_000, 10*time.Minute
	for again := 0; ; again++ {
		q, err := Analyze(t.Context(), url, o, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		disturbed := slices.ContainsFunc(q.Measured, func(m Measurement) bool { return m.UpperSeconds > 2*m.LowerSeconds })
		if again == 20 || !disturbed || len(want) == 0 || slices.Equal(winners(q), want) {
			return q
		}
	}
}

// winners are the recommended indexes, each as "table (columns)", sorted.
func winners(q *Query) []string {
	var names []string
	for _, c := range q.Winners {
		names = append(names, c.Table+" ("+plans.ColumnList(c.Columns)+")")
	}
	slices.Sort(names)
	return names
}

// createShop makes 20,000 users, a few of each city, and 40,000 orders.
func createShop(t *testing.T, url database.URL) {
	t.Helper()
	s := connect(t, url)
	defer s.close()
	const users, orders = 20_000, 40_000
	series := func(rows int) string {
		if url.Driver == database.MySQL {
			return fmt.Sprintf("(SELECT seq AS i FROM seq_1_to_%d) g", rows)
		}
		return fmt.Sprintf("generate_series(1, %d) AS g(i)", rows)
	}
	analyze := map[database.Driver]string{database.Postgres: "ANALYZE", database.MySQL: "ANALYZE TABLE users, orders"}[url.Driver]
	if err := run(
		t.Context(), s,
		"CREATE TABLE users (id INTEGER NOT NULL PRIMARY KEY, city INTEGER, name VARCHAR(64))",
		"CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, users_id INTEGER, goods INTEGER, weight INTEGER, price INTEGER)",
		fmt.Sprintf("INSERT INTO users SELECT i, i %% 5000, 'somebody' FROM %s", series(users)),
		fmt.Sprintf("INSERT INTO orders SELECT i, i * 7919 %% %d, i * 31 %% 9973, i * 17 %% 1009, i * 13 %% 997 FROM %s", users, series(orders)),
		analyze,
	); err != nil {
		t.Fatal(err)
	}
}

// A join gets both of its indexes, and OR one for each branch: each of them alone leaves a scan of a table.
func testTogether(t *testing.T, create func() database.URL) {
	url := create()
	createShop(t, url)
	for statement, want := range map[string][]string{
		"SELECT o.id FROM orders o JOIN users u ON u.id = o.users_id WHERE u.city = 77": {"orders (users_id)", "users (city)"},
		"SELECT count(*) FROM orders WHERE goods = 7 OR weight = 9":                     {"orders (goods)", "orders (weight)"},
	} {
		q := analyze(t, url, Options{Query: statement, Measure: true}, want...)
		if got := winners(q); !slices.Equal(got, want) || q.Winner == nil {
			text := &strings.Builder{}
			_ = (&Report{Query: q}).WriteText(text)
			t.Errorf("%v win, want %v\n%s", got, want, text)
		}
	}
	q := analyze(t, url, Options{Query: "SELECT id FROM orders WHERE weight > 990 AND price > 980", Measure: true})
	both := slices.IndexFunc(q.Measured, func(m Measurement) bool { return m.Variant == "(weight) + (price)" })
	if both < 0 || !q.Measured[both].IndexesUsed {
		t.Errorf("two ranges: %+v", q.Measured)
	}
}

// leavesNothing fails when a copy or an index is left behind.
func leavesNothing(t *testing.T, url database.URL) {
	t.Helper()
	s, err := open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	list := map[database.Driver]string{
		database.Postgres: "SELECT relname FROM pg_class WHERE relname LIKE 'spillway%' OR relname LIKE '%prize_grade%'",
		database.MySQL:    "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'spillway%' UNION SELECT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'game_record' AND INDEX_NAME <> 'PRIMARY'",
	}[url.Driver]
	// A session that was cut off ends when the server finds out.
	apptest.AwaitState(t, "no copy and no index is left", func() (string, bool) {
		rows, err := s.query(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(rows), len(rows) == 0
	})
}

// What is interrupted in the middle of building leaves nothing either.
func testInterrupted(t *testing.T, create func() database.URL) {
	url := create()
	createGames(t, url, fewRows, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Analyze(ctx, url, Options{Query: gameRecord, Measure: true, CopyRows: 1000, Timeout: time.Minute}, func(step string) {
		if strings.HasPrefix(step, "building") {
			cancel()
		}
	})
	if err == nil {
		t.Error("an interrupted analysis says nothing")
	}
	leavesNothing(t, url)
}

// Without --measure nothing is written; what is there already is no candidate;
// a join has candidates for each table.
func testPlans(t *testing.T, create func() database.URL) {
	url := create()
	createGames(t, url, fewRows, 100)
	s := connect(t, url)
	defer s.close()
	if err := run(t.Context(), s, "CREATE INDEX seed ON game_record (prize_grade, score)",
		"CREATE TABLE apps (app_id VARCHAR(64) NOT NULL, owner VARCHAR(64))", "INSERT INTO apps VALUES ('app-1', 'x')"); err != nil {
		t.Fatal(err)
	}
	q := analyze(t, url, Options{Query: gameRecord, Param: map[string]string{"app_id": "app-1", "token": "token-1"}})
	if len(q.Candidates) != 1 || len(q.Covered) != 1 || q.Measured != nil || !strings.Contains(q.Verdict, "--measure") {
		t.Errorf("%+v", q)
	}
	q = analyze(t, url, Options{Query: "SELECT g.score FROM game_record g JOIN apps a ON a.app_id = g.app_id WHERE a.owner = :who AND g.score > :least", Param: map[string]string{"least": "990"}, Measure: true})
	var tables []string
	for _, c := range q.Candidates {
		tables = append(tables, c.Table)
	}
	alone := slices.DeleteFunc(slices.Clone(q.Measured), func(m Measurement) bool { return len(m.candidates) > 1 })
	if !slices.Contains(tables, "apps") || !slices.Contains(tables, "game_record") || len(alone) != 2+len(q.Candidates) {
		t.Errorf("candidates for %v, %d measured: %+v", tables, len(q.Measured), q.Verdict)
	}
}

// testMistakes: what is wrong with a statement or its parameters is a mistake of the user.
func testMistakes(t *testing.T, url database.URL) {
	s := connect(t, url)
	defer s.close()
	if err := run(t.Context(), s, "CREATE TABLE t (a INTEGER, b TEXT)"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sql    string
		params map[string]string
		says   string
	}{
		{"DELETE FROM t", nil, "one plain SELECT"},
		{"SELECT a FROM nowhere", nil, "there is no table nowhere"},
		{"SELECT a FROM t WHERE c = 1", nil, "column c is in no table"},
		{"SELECT x.a FROM t x JOIN t y ON x.a = y.a WHERE b = 1", nil, "column b is in several tables"},
		{"SELECT a FROM t WHERE a > ?", nil, "--param a=…"},
		{"SELECT a FROM t WHERE a = ?", nil, "no row to take values from"},
		{"SELECT a FROM t LIMIT ?", nil, "--param 1=…"},
		{"SELECT a FROM t WHERE a = ?", map[string]string{"z": "1"}, "there is no parameter z; the statement has: a"},
	} {
		_, err := Analyze(t.Context(), url, Options{Query: c.sql, Param: c.params, CopyRows: 10, Timeout: time.Minute}, func(string) {})
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), ErrStatement.Error()) {
			t.Errorf("%s: %v; want %q", c.sql, err, c.says)
		}
	}
}

// What ReadServer reads of servers that do not fsync, as those of the tests.
func testReadServer(t *testing.T, name string, create func() database.URL) {
	server, err := ReadServer(t.Context(), create())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Status{}
	for _, f := range serverFindings(t, server, &Facts{Cores: 2, MemoryBytes: 8 << 30}) {
		found[f.Name] = f.Status
		if f.Why == "" || f.Observed == "" || f.Source == "" || f.Group != "database" {
			t.Errorf("%s: unfinished finding %+v", name, f)
		}
	}
	want := map[string]map[string]Status{
		"postgres": {"fsync": Fail, "synchronous_commit": Warn, "full_page_writes": Fail, "shared_buffers": Note, "autovacuum": OK, "wal_level": Note, "max_connections": OK, "statement_timeout": Note},
		"mariadb":  {"sql_mode": OK, "default_storage_engine": OK, "innodb_flush_log_at_trx_commit": Warn, "innodb_doublewrite": OK, "innodb_buffer_pool_size": Note, "max_connections": OK, "skip_name_resolve": OK},
	}[name]
	for setting, status := range want {
		if found[setting] != status {
			t.Errorf("%s: %s is %q, want %q (%s)", name, setting, found[setting], status, server.Settings[setting])
		}
	}
	if !server.Local || server.Version == "" {
		t.Errorf("%s: %+v", name, server)
	}
}
