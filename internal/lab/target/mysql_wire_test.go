package target

import (
	"errors"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// TestMySQLWire runs the lean engine's own MySQL protocol.
func TestMySQLWire(t *testing.T) {
	server := apptest.MariaDB(t)
	url := server.URL("test")
	wire := func(sql string, params map[string]string) *Target {
		tg := open(t, Config{URL: url, SQL: sql, Params: values(t, params), Timeout: 2 * time.Second})
		if err := tg.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !tg.Lean() {
			t.Fatalf("%s: a plain connection is not lean", sql)
		}
		return tg
	}
	expect := func(tg *Target, n int, kind Kind, class result.ErrorClass, failed bool) []Outcome {
		t.Helper()
		outcomes, counters := drive(t, tg, 3, n)
		for _, o := range outcomes {
			if (o.Err != nil) != failed || failed && Classify(o.Err) != class || !failed && o.Kind != kind {
				t.Fatalf("outcome %+v", o)
			}
		}
		if counters.Connects != 3 {
			t.Errorf("%d connections, want 3", counters.Connects)
		}
		return outcomes
	}
	exchangeAll(t, open(t, Config{URL: url, SQL: "CREATE TABLE t (a bigint PRIMARY KEY, b varchar(99), c double)"}), 1)
	expect(wire("INSERT INTO t (a, b) VALUES (:a, :b)", map[string]string{"a": "sequence", "b": "te'xt"}), 100, Write, 0, false)
	outcomes, _ := exchangeAll(t, open(t, Config{URL: url, SQL: "SELECT concat(count(*), ' ', min(b)) FROM t WHERE a BETWEEN 0 AND 200"}), 1)
	if o := outcomes[0]; o.Err != nil || o.BytesReceived != int64(len("100 te'xt")) {
		t.Fatalf("after 100 inserts: %+v", o)
	}
	expect(wire("SELECT * FROM t WHERE a <= :a", map[string]string{"a": "random(90,100)"}), 100, Read, 0, false)
	expect(wire("SELECT * FROM t WHERE a = 12345", nil), 10, Read, 0, false)
	expect(wire("SELECT repeat('x', 10000000)", nil), 6, Read, 0, false)
	for _, o := range expect(wire("INSERT INTO t (a) VALUES (:a)", map[string]string{"a": "random(5,5)"}), 6, Write, result.StatusError, true) {
		if !strings.Contains(o.Err.Error(), "Error 1062 (23000): Duplicate entry '5'") {
			t.Errorf("%v", o.Err)
		}
	}
	exchangeAll(t, open(t, Config{URL: url, SQL: "CREATE PROCEDURE two() BEGIN SELECT 1, 2; SELECT a FROM t; END"}), 1)
	expect(wire("CALL two()", nil), 6, Other, 0, false)

	slow := open(t, Config{URL: url, SQL: "SELECT SLEEP(10)", Timeout: 300 * time.Millisecond})
	if err := slow.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	outcomes, _ = drive(t, slow, 2, 2)
	for _, o := range outcomes {
		if o.Err == nil || Classify(o.Err) != result.Timeout {
			t.Errorf("%v, want a timeout", o.Err)
		}
	}
	compressed := open(t, Config{URL: url + "?compress=true", SQL: "SELECT 1"})
	if err := compressed.Check(t.Context()); err != nil || compressed.Lean() {
		t.Errorf("a compressed connection: %v, lean %v", err, compressed.Lean())
	}
	testConnect(t, wire("SELECT 1", nil), server.Kill)
}

func TestMySQLReply(t *testing.T) {
	packet := func(payload string) string {
		return string([]byte{byte(len(payload)), byte(len(payload) >> 8), byte(len(payload) >> 16), 1}) + payload
	}
	f := func(session mysqlSession, text string, want bool, wantErr error, wantFailure string) {
		t.Helper()
		for cut := 0; cut <= len(text); cut++ {
			var r mysqlReply
			r.reset(&session)
			done, err := false, error(nil)
			for _, piece := range []string{text[:cut], text[cut:]} {
				if piece != "" && err == nil {
					done, err = r.feed([]byte(piece))
				}
			}
			if done != want || !errors.Is(err, wantErr) || r.failure != wantFailure {
				t.Fatalf("%q cut at %d: %v, %v, %+v", text, cut, done, err, r)
			}
		}
	}
	old, modern := mysqlSession{}, mysqlSession{plainEOF: true, cachedColumns: true}
	const ok, eof, end = "\x00\x01\x00\x02\x00\x00\x00", "\xfe\x00\x00\x02\x00", "\xfe\x00\x00\x02\x00\x00\x00"
	f(old, packet(ok), true, nil, "")
	f(old, packet("\xff\x26\x04#23000twice"), true, nil, "Error 1062 (23000): twice")
	f(old, packet("\x02")+packet("column")+packet("column")+packet(eof)+packet("\x00row")+packet(eof), true, nil, "")
	f(old, packet("\x01")+packet("column")+packet(eof)+packet(eof), true, nil, "")
	f(old, packet("\x01")+packet("column")+packet(eof)+packet("\x00row"), false, nil, "")
	f(old, packet("\x01")+packet("column")+packet(eof)+packet("\x00row")+packet("\xff\x25\x05no"), true, nil, "Error 1317: no")
	f(modern, packet("\x01\x01")+packet("column")+packet("\x00row")+packet(end), true, nil, "")
	f(modern, packet("\x01\x00")+packet("\x00row")+packet("\x00row")+packet(end), true, nil, "")
	f(modern, packet("\x01\x00")+packet("\xfe\x00\x00\x0a\x00\x00\x00")+packet(ok), true, nil, "") // another result follows
	f(modern, packet("\x01"), false, errMalformed, "")
	f(modern, packet(ok)+"x", false, errMalformed, "")
	f(modern, packet(""), false, errMalformed, "")
	f(modern, packet("\x00\xfc"), false, errMalformed, "")
	f(modern, packet("\xfb"), false, errMalformed, "")

	long := strings.Repeat("r", mysqlPacketMax)
	var r mysqlReply
	r.reset(&modern)
	done, err := r.feed([]byte(packet("\x01\x00") + packet(long) + packet("\xfe is the row's last byte") + packet(end)))
	if !done || err != nil {
		t.Errorf("a row of two packets: %v, %v", done, err)
	}
}

func FuzzMySQLReply(f *testing.F) {
	f.Add([]byte("\x07\x00\x00\x01\x00\x01\x00\x02\x00\x00\x00"), uint(3), true)
	f.Add([]byte("\x01\x00\x00\x01\x01\x01\x00\x00\x02c\x05\x00\x00\x03\xfe\x00\x00\x02\x00\x05\x00\x00\x04\xfe\x00\x00\x02\x00"), uint(9), false)
	f.Fuzz(func(t *testing.T, b []byte, cut uint, modern bool) {
		if len(b) == 0 {
			return
		}
		session := mysqlSession{plainEOF: modern, cachedColumns: modern}
		var whole, pieces mysqlReply
		whole.reset(&session)
		pieces.reset(&session)
		done, err := whole.feed(b)
		at := int(cut % uint(len(b)))
		cutDone, cutErr := pieces.feed(b[:at])
		if cutErr == nil {
			cutDone, cutErr = pieces.feed(b[at:])
		}
		if done != cutDone || (err == nil) != (cutErr == nil) || err == nil && whole.failure != pieces.failure {
			t.Fatalf("whole %v %v %+v, cut %v %v %+v", done, err, whole, cutDone, cutErr, pieces)
		}
	})
}
