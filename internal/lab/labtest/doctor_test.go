package labtest

import (
	"encoding/json"
	"strings"
	"testing"

	"spillway/internal/exit"

	"github.com/jackc/pgx/v5"
)

// doctorReport is the part of doctor's JSON that scripts read.
type doctorReport struct {
	Prediction struct {
		Rate   float64  `json:"new_connections_hz"`
		RunOut *float64 `json:"local_ports_run_out_after_seconds"`
	} `json:"prediction"`
	Findings []struct{ Group, Name, Status, Observed, Why, Source string } `json:"findings"`
	Query    struct {
		Candidates []struct {
			Columns []struct{ Name string } `json:"columns"`
		} `json:"candidates"`
		Measured []struct {
			Median float64 `json:"median_seconds"`
		} `json:"measured"`
		Verdict string `json:"verdict"`
	} `json:"query"`
}

func readDoctor(t *testing.T, stdout string) doctorReport {
	t.Helper()
	var r doctorReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	return r
}

func TestDoctorHost(t *testing.T) {
	t.Parallel()
	// More concurrent connections than any port range.
	stdout, stderr, code := spillway(t, "doctor", "--for", "rate=1000000 keep-alive service=10s", "--json")
	r := readDoctor(t, stdout)
	if code != exit.Failed || r.Prediction.RunOut == nil || !strings.Contains(stderr, "a check failed") {
		t.Errorf("exit %d, %+v\n%s", code, r.Prediction, stderr)
	}
	if len(r.Findings) < 10 || r.Findings[0].Group != "prediction" || r.Findings[0].Status != "fail" {
		t.Errorf("findings %+v", r.Findings)
	}
	stdout, stderr, code = spillway(t, "doctor", "--for", "rate=1 short-connections closes=server", "--target", "http://127.0.0.1:1/")
	if code == exit.Usage || code == exit.Error || !strings.Contains(stdout, "outdated advice: set it to 1") || !strings.Contains(stdout, "prediction for rate=1") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestDoctorQuery(t *testing.T) {
	t.Parallel()
	url := postgres.Get(t).CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `CREATE TABLE goods AS SELECT i AS id, i % 500 AS city, i % 7 AS price FROM generate_series(1, 20000) i; ANALYZE`); err != nil {
		t.Fatal(err)
	}
	// The tests' server runs with fsync off, so a check fails. The query is analyzed anyway.
	stdout, stderr, code := spillway(t, "doctor", "--json", "--measure", "--database", url, "--query", "SELECT id FROM goods WHERE city = :city ORDER BY price LIMIT 3")
	r := readDoctor(t, stdout)
	if code != exit.Failed || len(r.Query.Candidates) != 2 || len(r.Query.Measured) != 3 || r.Query.Candidates[0].Columns[1].Name != "price" || r.Query.Measured[0].Median <= 0 {
		t.Errorf("exit %d, %+v\n%s", code, r.Query, stderr)
	}
	stdout, _, code = spillway(t, "doctor", "--database", url, "--query", "SELECT id FROM goods WHERE city = ?", "--param", "city=7")
	for _, want := range []string{"fail  fsync: off", "Seq Scan on goods", "goods (city): city equal", "--measure builds"} {
		if code != exit.Failed || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, stdout)
		}
	}
}

func TestDoctorUse(t *testing.T) {
	t.Parallel()
	url := postgres.Get(t).URL("postgres")
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exit.OK, "--for", []string{"--help"}},
		{exit.Usage, "must be a number of requests", []string{"--for", "rate=many"}},
		{exit.Usage, "repeats or contradicts", []string{"--for", "rate=1 keep-alive short-connections"}},
		{exit.Usage, "--target", []string{"--target", "nowhere"}},
		{exit.Usage, "postgres://", []string{"--database", "oracle://x"}},
		{exit.Usage, "--query requires --database", []string{"--query", "SELECT 1 FROM t"}},
		{exit.Usage, "require --query", []string{"--database", url, "--measure"}},
		{exit.Usage, "one plain SELECT", []string{"--database", url, "--query", "DROP TABLE t"}},
		{exit.Usage, "no table nowhere", []string{"--database", url, "--query", "SELECT 1 FROM nowhere"}},
		{exit.Usage, "--param: expected", []string{"--database", url, "--query", "SELECT 1 FROM t", "--param", "x"}},
		{exit.Usage, "--copy-rows", []string{"--copy-rows", "0"}},
		{exit.Usage, "--timeout", []string{"--timeout", "0s"}},
		{exit.Error, "127.0.0.1:1", []string{"--database", "postgres://u:s3cr3t@127.0.0.1:1/x"}},
		{exit.Error, "connect to mysql://u:***@127.0.0.1:1/x", []string{"--database", "mysql://u:s3cr3t@127.0.0.1:1/x"}},
	} {
		stdout, stderr, code := spillway(t, append([]string{"doctor"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) || strings.Contains(stdout+stderr, "s3cr3t") {
			t.Errorf("doctor %q: exit %d, want %d with %q\n%s%s", c.args, code, c.code, c.says, stdout, stderr)
		}
	}
}
