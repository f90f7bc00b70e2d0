package target

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
	"spillway/internal/plans"
)

func TestParseSQL(t *testing.T) {
	f := func(text, want string, wantNames ...string) {
		t.Helper()
		params := map[string]Value{}
		for _, name := range wantNames {
			params[name] = Value{source: fromSequence}
		}
		s, err := parseSQL(text, plans.Postgres, params)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.render(func(i int) string { return "$" + strconv.Itoa(i) }); got != want || !slices.Equal(s.names, wantNames) {
			t.Errorf("%s: got %q with %q, want %q with %q", text, got, s.names, want, wantNames)
		}
	}
	f("SELECT 1", "SELECT 1")
	f("SELECT * FROM t WHERE a = :a AND b > :b_2;", "SELECT * FROM t WHERE a = $1 AND b > $2;", "a", "b_2")
	f("SELECT ':a', \":b\", `:c`, x::text, y[1:2], @v := 3 -- :d\n, /* :e */ :f", "SELECT ':a', \":b\", `:c`, x::text, y[1:2], @v := 3 -- :d\n, /* :e */ $1", "f")
	f("SELECT 'it''s :a' || :z", "SELECT 'it''s :a' || $1", "z")
	f("SELECT '12:30:00'", "SELECT '12:30:00'")

	for text, want := range map[string]string{
		"":                  "empty",
		"SELECT :missing":   "no --param missing=",
		"SELECT 1 /* :x */": "has no :x",
		"SELECT 1 /* :x *":  "this /* is not closed",
	} {
		params := map[string]Value{}
		if strings.Contains(want, ":x") {
			params["x"] = Value{}
		}
		if _, err := parseSQL(text, plans.Postgres, params); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseSQL(f *testing.F) {
	f.Add("SELECT ':x', :a /* :b */ -- :c")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSQL(text, plans.Postgres, map[string]Value{"a": {text: "1"}})
		if err != nil {
			return
		}
		i := 0
		if got := s.render(func(int) string { i++; return ":" + s.names[i-1] }); got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

func TestStatementKind(t *testing.T) {
	for text, want := range map[string]Kind{
		"select 1": Read, " (SELECT 1)": Read, "WITH x AS (SELECT 1) SELECT 1": Read, "insert into t values (1)": Write,
		"UPDATE t SET a=1": Write, "CALL f()": Other, "BEGIN": Other,
	} {
		tokens, err := plans.Lex(text, plans.Postgres)
		if err != nil {
			t.Fatal(err)
		}
		if got := statementKind(tokens); got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
}

// exchangeAll sends n requests over one session.
func exchangeAll(t testing.TB, tg *Target, n int) ([]Outcome, Counters) {
	t.Helper()
	s := tg.NewSession(0, 1)
	defer s.Close()
	var outcomes []Outcome
	for range n {
		o := s.Do(t.Context(), tg.config.Clock.Now())
		checkTimes(t, &o)
		outcomes = append(outcomes, o)
	}
	return outcomes, s.Counters()
}

func values(t testing.TB, texts map[string]string) map[string]Value {
	t.Helper()
	params := map[string]Value{}
	for name, text := range texts {
		v, err := ParseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		params[name] = v
	}
	return params
}

// testDatabase runs the statements of a load against a database with the table t
// (a integer primary key, b text). bytes is the size of an answer with a value of
// five letters.
func testDatabase(t *testing.T, url string, bytes int64) {
	insert := open(t, Config{URL: url, SQL: "INSERT INTO t (a, b) VALUES (:a, :b)", Params: values(t, map[string]string{"a": "sequence", "b": "te'xt"}), PerConnection: 7})
	outcomes, counters := exchangeAll(t, insert, 20)
	for _, o := range outcomes {
		if o.Err != nil || o.Kind != Write {
			t.Fatalf("outcome %+v", o)
		}
	}
	if counters.Connects != 3 || counters.Reconnects != 0 {
		t.Errorf("%+v, want 3 connections", counters)
	}
	read := open(t, Config{URL: url, SQL: "SELECT b FROM t WHERE a = :a AND b = 'te''xt'", Params: values(t, map[string]string{"a": "random(1,20)"})})
	outcomes, counters = exchangeAll(t, read, 50)
	for _, o := range outcomes {
		if o.Err != nil || o.Kind != Read || o.BytesReceived != bytes {
			t.Fatalf("outcome %+v", o)
		}
	}
	if counters.Connects != 1 {
		t.Errorf("%+v, want 1 connection", counters)
	}
	again := open(t, Config{URL: url, SQL: "INSERT INTO t (a) VALUES (1)"})
	outcomes, counters = exchangeAll(t, again, 3)
	for _, o := range outcomes {
		if o.Err == nil || Classify(o.Err) != result.StatusError {
			t.Fatalf("%v is %v, want a status error", o.Err, Classify(o.Err))
		}
	}
	if counters.Connects != 1 {
		t.Errorf("%+v: an SQL error cost the connection", counters)
	}
	wrong := open(t, Config{URL: url, SQL: "SELECT nothing FROM nowhere"})
	if err := wrong.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("check of a wrong statement: %v", err)
	}
}

func TestPostgresReply(t *testing.T) {
	message := func(kind byte, payload string) string {
		return string(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)+4))) + payload
	}
	f := func(text string, want bool, wantErr error, wantFailure string, wantWrote bool) {
		t.Helper()
		for cut := 0; cut <= len(text); cut++ {
			var r postgresReply
			done, err := false, error(nil)
			for _, piece := range []string{text[:cut], text[cut:]} {
				if piece != "" && err == nil {
					done, err = r.feed([]byte(piece))
				}
			}
			if done != want || !errors.Is(err, wantErr) || r.failure != wantFailure || r.wrote != wantWrote {
				t.Fatalf("%q cut at %d: %v, %v, %+v", text, cut, done, err, r)
			}
		}
	}
	ready := message('Z', "I")
	f(message('2', "")+message('D', "row")+message('C', "SELECT 1\x00")+ready, true, nil, "", false)
	f(message('2', "")+message('n', "")+message('C', "UPDATE 1\x00")+ready, true, nil, "", true)
	f(message('E', "SERROR\x00VERROR\x00C22012\x00Mno\x00\x00")+ready, true, nil, "ERROR: no (SQLSTATE 22012)", false)
	f(message('D', "row"), false, nil, "", false)
	f(ready+"x", false, errMalformed, "", false)
	f("Z\x00\x00\x00\x03", false, errMalformed, "", false)
	f("Z\xff\x00\x00\x03", false, errMalformed, "", false)
}

func FuzzPostgresReply(f *testing.F) {
	f.Add([]byte("2\x00\x00\x00\x04Z\x00\x00\x00\x05I"), uint(3))
	f.Add([]byte("E\x00\x00\x00\x09Mno\x00\x00"), uint(5))
	f.Fuzz(func(t *testing.T, b []byte, cut uint) {
		if len(b) == 0 {
			return
		}
		var whole, pieces postgresReply
		done, err := whole.feed(b)
		at := int(cut % uint(len(b)))
		cutDone, cutErr := pieces.feed(b[:at])
		if cutErr == nil {
			cutDone, cutErr = pieces.feed(b[at:])
		}
		if done != cutDone || (err == nil) != (cutErr == nil) || err == nil && (whole.failure != pieces.failure || whole.wrote != pieces.wrote) {
			t.Fatalf("whole %v %v %+v, cut %v %v %+v", done, err, whole, cutDone, cutErr, pieces)
		}
	})
}

func TestMySQL(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t)
	for _, sql := range []string{"CREATE DATABASE app", "CREATE TABLE app.t (a bigint PRIMARY KEY, b varchar(99))"} {
		outcomes, _ := exchangeAll(t, open(t, Config{URL: server.URL(""), SQL: sql}), 1)
		if outcomes[0].Err != nil || outcomes[0].Kind != Other {
			t.Fatalf("%s: %+v", sql, outcomes[0])
		}
	}
	testDatabase(t, server.URL("app"), 5)

	slow := open(t, Config{URL: server.URL("app"), SQL: "SELECT SLEEP(3600)", Timeout: 500 * time.Millisecond})
	outcomes, _ := exchangeAll(t, slow, 1)
	if err := outcomes[0].Err; err == nil || Classify(err) != result.Timeout {
		t.Errorf("%v, want a timeout", err)
	}
	compressed := open(t, Config{URL: server.URL("app") + "?compress=true", SQL: "SELECT 1"})
	if err := compressed.Check(t.Context()); err != nil || compressed.EventLoop() {
		t.Errorf("a compressed connection: %v, event loop %v", err, compressed.EventLoop())
	}
	killed := open(t, Config{URL: server.URL("app"), SQL: "SELECT 1"})
	s := killed.NewSession(0, 1)
	defer s.Close()
	if o := s.Do(t.Context(), killed.config.Clock.Now()); o.Err != nil {
		t.Fatal(o.Err)
	}
	server.Kill()
	if o := s.Do(t.Context(), killed.config.Clock.Now()); o.Err == nil || Classify(o.Err) != result.Reset {
		t.Errorf("with the server killed: %v, want a reset", o.Err)
	}
	if o := s.Do(t.Context(), killed.config.Clock.Now()); o.Err == nil || Classify(o.Err) != result.Refused {
		t.Errorf("with the server gone: %v, want a refusal", o.Err)
	}
	if _, ok := s.Connect(t.Context()); ok {
		t.Error("connected with the server gone")
	}
	if o := s.Do(t.Context(), killed.config.Clock.Now()); o.Err == nil || Classify(o.Err) != result.Refused || o.Connected != 0 {
		t.Errorf("the request after a failed Connect: %+v, want a refusal", o)
	}
}

// TestMySQLStatements runs statements of every kind through the driver.
func TestMySQLStatements(t *testing.T) {
	t.Parallel()
	url := sharedMariaDB.Get(t).URL("test")
	f := func(sql string, params map[string]string, n int, kind Kind, wantErr string) []Outcome {
		t.Helper()
		outcomes, counters := exchangeAll(t, open(t, Config{URL: url, SQL: sql, Params: values(t, params), Timeout: time.Minute}), n)
		for _, o := range outcomes {
			switch {
			case wantErr == "" && (o.Err != nil || o.Kind != kind):
				t.Fatalf("%s: outcome %+v", sql, o)
			case wantErr != "" && (o.Err == nil || Classify(o.Err) != result.StatusError || !strings.Contains(o.Err.Error(), wantErr)):
				t.Fatalf("%s: %v, want %s", sql, o.Err, wantErr)
			}
		}
		if counters.Connects != 1 {
			t.Errorf("%s: %d connections, want 1", sql, counters.Connects)
		}
		return outcomes
	}
	f("CREATE TABLE t (a bigint PRIMARY KEY, b varchar(99), c double)", nil, 1, Other, "")
	f("INSERT INTO t (a, b) VALUES (:a, :b)", map[string]string{"a": "sequence", "b": "te'xt"}, 100, Write, "")
	count := f("SELECT concat(count(*), ' ', min(b)) FROM t WHERE a BETWEEN 0 AND 200", nil, 1, Read, "")
	if o := count[0]; o.BytesReceived != int64(len("100 te'xt")) {
		t.Fatalf("after 100 inserts: %+v", o)
	}
	f("SELECT * FROM t WHERE a <= :a", map[string]string{"a": "random(90,100)"}, 100, Read, "")
	f("SELECT * FROM t WHERE a = 12345", nil, 10, Read, "")
	f("SELECT repeat('x', 10000000)", nil, 6, Read, "")
	f("INSERT INTO t (a) VALUES (:a)", map[string]string{"a": "random(5,5)"}, 6, Write, "Error 1062 (23000): Duplicate entry '5'")
	f("CREATE PROCEDURE two() BEGIN SELECT 1, 2; SELECT a FROM t; END", nil, 1, Other, "")
	f("CALL two()", nil, 6, Other, "")
	f("CREATE PROCEDURE failing() BEGIN SELECT 1; SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'late'; END", nil, 1, Other, "")
	f("CALL failing()", nil, 3, Other, "late")
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	server := sharedPostgres.Get(t)
	url := server.CreateDatabase(t)
	for _, sql := range []string{"DROP TABLE IF EXISTS t", "CREATE TABLE t (a bigint PRIMARY KEY, b text)"} {
		outcomes, _ := exchangeAll(t, open(t, Config{URL: url, SQL: sql}), 1)
		if outcomes[0].Err != nil || outcomes[0].Kind != Other {
			t.Fatalf("outcome %+v", outcomes[0])
		}
	}
	testDatabase(t, url, 68) // on the wire, with the description of the row

	slow := open(t, Config{URL: url, SQL: "SELECT pg_sleep(3600)", Timeout: 200e6})
	outcomes, _ := exchangeAll(t, slow, 1)
	if err := outcomes[0].Err; err == nil || Classify(err) != result.Timeout {
		t.Errorf("%v, want a timeout", err)
	}
	with := open(t, Config{URL: url, SQL: "WITH x AS (DELETE FROM t RETURNING a) DELETE FROM t WHERE a IN (SELECT a FROM x)"})
	outcomes, _ = exchangeAll(t, with, 1)
	if outcomes[0].Err != nil || outcomes[0].Kind != Write {
		t.Errorf("outcome %+v, want a write", outcomes[0])
	}
}
