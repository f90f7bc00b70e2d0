//go:build linux && !portable

package mysql

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/storetest"
)

var wide = feed.Limit{Rows: 1000, Bytes: 1 << 20}

// inLoop reads in a loop, and outside of it while the loop cannot, which opens connections.
func inLoop(t *testing.T, loop *front.Loop, s *source, limit feed.Limit, args ...string) (string, error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		r := storetest.BeginReads(t, loop, s, nil, limit, args)[0]
		err := apptest.Receive(t, "the rows", r.Ended)
		if !errors.Is(err, feed.ErrElsewhere) {
			return string(r.Rows.Data), err
		}
		if time.Now().After(deadline) {
			t.Fatalf("the loop cannot read %.60q", args)
		}
		_ = s.Read(t.Context(), feed.Range{Args: args}, &feed.Rows{Limit: limit}) // learns of other columns
		if err := s.db.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func loopSource(t *testing.T, db *DB, sql string, params ...param.Param) *source {
	t.Helper()
	s, err := db.source(feed.Definition{Name: "/q", SQL: sql, Params: params})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return s
}

var number1 = param.Param{Name: "a", Type: param.Integer}

// TestLaneReadsAsRead: an event loop reads the same rows and the same errors as Read, whatever their types, sizes and numbers.
func TestLaneReadsAsRead(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, hostileServer(t))
	mustExecute(t, url, "CREATE TABLE n (n int PRIMARY KEY) SELECT seq AS n FROM seq_1_to_3000")
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	var params []param.Param
	for _, p := range []param.Type{param.Text, param.Integer, param.Real, param.Boolean, param.Timestamp, param.Decimal, param.Date, param.Bytes} {
		params = append(params, param.Param{Name: string(p), Type: p})
	}
	s := loopSource(t, db, `SELECT n, CONCAT(:text) AS a, n + :integer AS i, n / :real AS f, n > :boolean AS b, :timestamp AS t, :decimal AS d, :date AS day,
		:bytes AS raw, NULL AS nothing, REPEAT(:text, 30) AS pad, n * 0.1e0 AS x FROM n WHERE n <= :integer`, params...)
	for i := range 60 {
		args := []string{
			strings.Repeat(`ä'\`, i%20), strconv.Itoa(i - 3), fmt.Sprint(float64(i) / 7), strconv.FormatBool(i%2 == 0), "2026-01-02T03:04:05.678901Z",
			"1.50", "2026-02-03", "AP8=",
		}
		if i%5 == 0 {
			args[i/5%len(args)] = param.Absent
		}
		rows := feed.Rows{Limit: feed.Limit{Rows: 50, Bytes: 8 << 20}}
		wanted := s.Read(t.Context(), feed.Range{Args: args}, &rows)
		got, err := inLoop(t, loop, s, rows.Limit, args...)
		if fmt.Sprint(err) != fmt.Sprint(wanted) || wanted == nil && got != string(rows.Data) {
			t.Fatalf("%.100q: %.300s, %v; want %.300s, %v", args, got, err, rows.Data, wanted)
		}
		if errors.Is(wanted, feed.ErrTooLarge) != errors.Is(err, feed.ErrTooLarge) {
			t.Fatalf("%.100q: %v, want %v", args, err, wanted)
		}
	}
}

// TestPagesInLane: an event loop reads the pages of feeds as Read does.
func TestPagesInLane(t *testing.T) {
	t.Parallel()
	storetest.FeedInLoops(t, backend(hostileServer(t)))
}

// TestLaneTLS: a loop reads over TLS and compressed, also rows that come in several parts.
func TestLaneTLS(t *testing.T) {
	t.Parallel()
	certificate, key := apptest.Certificate(t, "db")
	dir := apptest.Directory(t)
	for name, data := range map[string][]byte{"cert.pem": certificate, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil { // the server has a user of its own
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	server := apptest.MySQL(t, "--ssl-cert="+filepath.Join(dir, "cert.pem"), "--ssl-key="+filepath.Join(dir, "key.pem"))
	db, loop := open(t, freshDatabase(t, server)+"?tls=skip-verify&compress=true", database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT REPEAT('x', :a) AS x", number1)
	for _, n := range []int{1, 900_000, 3, 70_000} {
		want := `{"x":"` + strings.Repeat("x", n) + `"}`
		if got, err := inLoop(t, loop, s, wide, strconv.Itoa(n)); got != want || err != nil {
			t.Fatalf("%d: %.100s, %v", len(got), got, err)
		}
	}
}

// TestLaneAnswersAll: whatever is refused or dropped meanwhile, every read is answered once, with its own rows.
func TestLaneAnswersAll(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	db, loop := open(t, url, database.Pool{Max: 6}), storetest.StartLoop(t)
	queries := []*source{loopSource(t, db, "SELECT :a AS x", number1), loopSource(t, db, "SELECT :a REGEXP IF(:a % 89 = 0, '(', 'x') AS x", number1)}
	elsewhere := 0
	for wave := range 20 {
		s := queries[wave%2]
		var all [][]string
		for i := range 150 {
			all = append(all, []string{strconv.Itoa(wave + i)})
		}
		for i, r := range storetest.BeginReads(t, loop, s, nil, wide, all...) {
			a, want := wave+i, fmt.Sprintf(`{"x":%d}`, wave+i)
			if wave%2 == 1 {
				want = `{"x":0}`
			}
			if i%13 == 0 {
				storetest.OnLoop(t, loop, func() {
					if len(r.Ended) == 0 {
						s.Drop(loop, &r.LoopRead)
						r.Ended <- nil
					}
				})
				continue
			}
			err := apptest.Receive(t, "an answer", r.Ended)
			switch rejected := wave%2 == 1 && a%89 == 0; {
			case errors.Is(err, feed.ErrElsewhere):
				elsewhere++
				_ = s.Read(t.Context(), feed.Range{Args: []string{"1"}}, &feed.Rows{Limit: wide})
			case rejected != errors.Is(err, param.ErrValue) || !rejected && string(r.Rows.Data) != want:
				t.Fatalf("%d: %s, %v", a, r.Rows.Data, err)
			}
		}
	}
	if elsewhere > 2500 {
		t.Errorf("%d of 3000 reads could not be in the loop", elsewhere)
	}
}

// running counts the statements that contain a comment.
func running(t *testing.T, url, comment string) string {
	return value(t, url, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%/* "+comment+" */%' AND id <> CONNECTION_ID()")
}

// TestLaneSlowRead: others do not wait for a slow read. It is killed when nobody waits for it, and its connection is replaced.
func TestLaneSlowRead(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT /* slow */ :a + SLEEP(IF(:a = 7, 600, 0)) AS x", number1)
	for round := range 3 {
		if got, err := inLoop(t, loop, s, wide, "1"); got != `{"x":1}` || err != nil {
			t.Fatal(got, err)
		}
		slow := storetest.BeginReads(t, loop, s, nil, wide, []string{"7"})[0]
		apptest.AwaitState(t, "it runs", func() (string, bool) {
			n := running(t, url, "slow")
			return n, n == "1" || len(slow.Ended) > 0
		})
		if got, err := inLoop(t, loop, s, wide, "2"); got != `{"x":2}` || err != nil {
			t.Fatal(got, err)
		}
		storetest.OnLoop(t, loop, func() {
			switch {
			case len(slow.Ended) > 0: // there was no connection
			case round == 0:
				slow.Unwanted = true
			default:
				s.Drop(loop, &slow.LoopRead)
			}
		})
		apptest.AwaitState(t, "it is killed", func() (string, bool) {
			n := running(t, url, "slow")
			return n, n == "0"
		})
	}
}

// TestLaneLosesConnections: reads under way on a connection that ends are to be read elsewhere, and later ones in the loop again.
func TestLaneLosesConnections(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	db, loop := open(t, url, database.Pool{Max: 4}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT /* lost */ :a + SLEEP(IF(:a = 7, 600, 0)) AS x", number1)
	for range 3 {
		if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
			t.Fatal(err)
		}
		r := storetest.BeginReads(t, loop, s, nil, wide, []string{"7"})[0]
		apptest.AwaitState(t, "it is killed", func() (string, bool) {
			for _, row := range sessions(t, url, "SELECT id FROM information_schema.processlist WHERE info LIKE '%/* lost */%' AND id <> CONNECTION_ID()") {
				_ = execute(t.Context(), url, "KILL "+row[0])
			}
			return "", len(r.Ended) > 0
		})
		if err := <-r.Ended; !errors.Is(err, feed.ErrElsewhere) {
			t.Fatal(err)
		}
	}
}

// sessions returns the rows of a query on a new connection.
func sessions(t *testing.T, url, sql string) [][]string {
	t.Helper()
	s := connect(t, url)
	defer s.Close()
	rows, err := s.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestLaneYields: connections of a loop are there for others who need them, and for the end of the pool.
func TestLaneYields(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, plainServer(t))
	db, loop := open(t, url, database.Pool{Max: 3}), storetest.StartLoop(t)
	s := loopSource(t, db, "SELECT :a AS x", number1)
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		for !stop.Load() {
			if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for range 5 {
		apptest.Await(t, "the loop has a connection", func() bool { return db.Stats().InUse > 0 })
		var give []func()
		for range 3 {
			conn, err := db.acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			give = append(give, func() { conn.Close(); db.slots.Release() })
		}
		for _, f := range give {
			f()
		}
	}
	stop.Store(true)
	if err := apptest.Receive(t, "the end", ended); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	r := storetest.BeginReads(t, loop, s, nil, wide, []string{"1"})[0]
	if err := apptest.Receive(t, "an answer", r.Ended); !errors.Is(err, feed.ErrElsewhere) {
		t.Error(err)
	}
}

// TestLaneTakesTurns: a query whose reads wait in great number does not hold up those of another one.
func TestLaneTakesTurns(t *testing.T) {
	t.Parallel()
	db, loop := open(t, freshDatabase(t, plainServer(t)), database.Pool{Max: 2}), storetest.StartLoop(t)
	many, one := loopSource(t, db, "SELECT :a AS x", number1), loopSource(t, db, "SELECT :a AS y", number1)
	for _, s := range []*source{many, one} {
		if _, err := inLoop(t, loop, s, wide, "1"); err != nil {
			t.Fatal(err)
		}
	}
	var order []string
	storetest.OnLoop(t, loop, func() {
		for i := range 100 {
			s, name := many, "many"
			if i == 99 {
				s, name = one, "one"
			}
			r := &feed.LoopRead{Range: feed.Range{Args: []string{"1"}}, Within: time.Hour, Rows: feed.Rows{Limit: wide}}
			r.Done = func(err error) { order = append(order, name) }
			if err := s.Begin(loop, r); err != nil {
				t.Error(err)
			}
		}
	})
	apptest.Await(t, "all are answered", func() bool {
		n := 0
		storetest.OnLoop(t, loop, func() { n = len(order) })
		return n == 100
	})
	if order[0] != "one" && order[1] != "one" && order[2] != "one" {
		t.Errorf("%v", order[:10])
	}
}
