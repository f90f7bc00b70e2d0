package watch

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strings"
	"testing"

	"spillway/internal/apptest"
)

// redisSession returns a session that is closed when the test ends.
func redisSession(t testing.TB, addr string) *bufio.ReadWriter {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
}

// redisSend sends commands and reads one line per answer.
func redisSend(t testing.TB, conn *bufio.ReadWriter, commands ...string) {
	t.Helper()
	for _, command := range commands {
		fmt.Fprintf(conn, "%s\r\n", command)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	for range commands {
		if line, err := conn.ReadString('\n'); err != nil || line[0] == '-' {
			t.Fatalf("answer %q, %v", line, err)
		}
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t, "--maxclients", "77")
	s := openDatabase(t, server.URL("0"))
	before := databaseValues(t, s)
	databaseNames(t, before, `connections connections_limit commands_total cpu_user_seconds_total cpu_system_seconds_total
main_thread_user_seconds_total main_thread_system_seconds_total memory_bytes`)
	if before["connections"] != 0 || before["connections_limit"] != 77 {
		t.Errorf("at the start: %v", before)
	}
	for range 20 { // the watch does not count its own commands
		databaseValues(t, s)
	}
	worker, blocked := redisSession(t, server.Addr()), redisSession(t, server.Addr())
	redisSend(t, worker, "SET k v")
	for range 100 {
		redisSend(t, worker, "EXISTS k", "EXISTS nothing")
	}
	fmt.Fprint(blocked, "BLPOP list 0\r\n")
	if err := blocked.Flush(); err != nil {
		t.Fatal(err)
	}
	after := awaitDatabase(t, s, "both are connected", func(v map[string]float64) bool { return v["connections"] == 2 })
	for name, want := range map[string]float64{"commands_total": 202, "connections": 2} {
		got := after[name] - before[name]
		t.Logf("%s grew by %g, %g were made", name, got, want)
		if got < want-1 || got > want*1.05+1 {
			t.Errorf("%s grew by %g, want %g", name, got, want)
		}
	}
	databaseOutage(t, s, server)
}

func TestRedisPassword(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	redisSend(t, redisSession(t, server.Addr()), "CONFIG SET requirepass s3cret")
	databaseValues(t, openDatabase(t, "redis://:s3cret@"+server.Addr()))
	for _, url := range []string{"redis://:s3cretly@" + server.Addr(), "redis://" + server.Addr()} {
		_, err := openDatabase(t, url).Read(t.Context())
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("refused login: %v", err)
		}
	}
}

func FuzzRedisInfo(f *testing.F) {
	f.Add([]byte("# Clients\r\nconnected_clients:1\r\nmaxclients:10000\r\n\r\nused_cpu_sys:0.5\r\n"))
	f.Add([]byte("connected_clients:NaN\nused_memory:-1\nmaxmemory:1e999\n:\n\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for name, value := range parseRedisInfo(text) {
			if name == "" || !(value >= 0) || value > 1<<63 {
				t.Errorf("%q = %v", name, value)
			}
		}
	})
}

func FuzzRedisText(f *testing.F) {
	for _, seed := range []string{"+OK\r\n", "-ERR x\r\n", "$3\r\nabc\r\n", "$-1\r\n", "$99999999999\r\n", "$5\r\nab", "\r\n", "*2\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		text, err := readRedisText(bufio.NewReader(bytes.NewReader(answer)))
		if err == nil && !bytes.Contains(answer, text) {
			t.Errorf("%q is not in %q", text, answer)
		}
	})
}

// benchRedis starts a server with 50 idle clients.
func benchRedis(t testing.TB) (string, int, func()) {
	server := apptest.Redis(t)
	return server.URL("0"), server.PID(), func() {
		for range 50 {
			redisSession(t, server.Addr())
		}
	}
}
