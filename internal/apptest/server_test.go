package apptest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func queryText(t *testing.T, url, sql string) (string, error) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var text string
	err = conn.QueryRow(ctx, sql).Scan(&text)
	return text, err
}

func TestPostgres(t *testing.T) {
	pg := Postgres(t, "work_mem=5MB")
	url := pg.CreateDatabase(t)
	if other := pg.CreateDatabase(t); other == url {
		t.Fatalf("two databases share the URL %s", url)
	}
	if got, err := queryText(t, url, "SELECT current_setting('work_mem')"); err != nil || got != "5MB" {
		t.Fatalf("work_mem = %q, %v", got, err)
	}
	if got, err := queryText(t, pg.SocketURL("postgres"), "SELECT coalesce(inet_client_addr()::text, 'socket')"); err != nil || got != "socket" {
		t.Fatalf("by socket: %q, %v", got, err)
	}
	steps := []struct {
		name string
		do   func() error
		runs bool
	}{
		{"restart", pg.Restart, true},
		{"kill", func() error { pg.Kill(); return nil }, false},
		{"start after kill", pg.Start, true},
		{"start again", pg.Start, true},
		{"stop", pg.Stop, false},
		{"stop again", pg.Stop, false},
		{"start", pg.Start, true},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if runs := pg.PID() != 0; runs != step.runs {
			t.Fatalf("%s: runs = %v", step.name, runs)
		}
		_, err := queryText(t, url, "SELECT 'x'")
		if (err == nil) != step.runs {
			t.Fatalf("%s: SELECT: %v", step.name, err)
		}
	}
	dir, pid := pg.Dir(), pg.PID()
	if err := pg.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory after Close: %v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process after Close: %v", err)
	}
}

func TestPgBouncer(t *testing.T) {
	pg := Postgres(t)
	pool := PgBouncer(t, pg, "transaction")
	if got, err := queryText(t, pool.URL("postgres")+"&default_query_exec_mode=exec", "SELECT current_database()::text"); err != nil || got != "postgres" {
		t.Fatalf("through the pooler: %q, %v", got, err)
	}
}

func TestNginx(t *testing.T) {
	s := Nginx(t, `server { listen {addr}; location /hello { return 200 "hello"; } }`)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(s.URL("hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || string(body) != "hello" {
		t.Fatalf("body %q, %v", body, err)
	}
}

// Of a PostgreSQL that was killed and is closed, the kernel keeps no shared memory.
func TestPostgresKilledForGood(t *testing.T) {
	pg, err := StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(pg.Dir(), "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	memory := strings.Fields(strings.Split(string(text), "\n")[6])
	known := func() bool {
		text, err := os.ReadFile("/proc/sysvipc/shm")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			fields := strings.Fields(line)
			return len(fields) > 1 && fields[0] == memory[0] && fields[1] == memory[1]
		})
	}
	if pg.Kill(); !known() {
		t.Errorf("shared memory %v is gone after the kill: the test proves nothing", memory)
	}
	if err := pg.Close(); err != nil {
		t.Fatal(err)
	}
	if known() {
		t.Errorf("shared memory %v is left", memory)
	}
}

func TestRedis(t *testing.T) {
	s := Redis(t, "--maxmemory", "1mb")
	if err := s.pingRedis(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := s.pingRedis(t.Context()); err == nil {
		t.Fatal("Redis answers after Kill")
	}
}

func TestStartErrors(t *testing.T) {
	if _, err := findBinary("no-such-program", "some-package"); err == nil || !strings.Contains(err.Error(), "apt-get install some-package") {
		t.Errorf("missing program: %v", err)
	}
	if _, err := StartPostgres("no_such_setting=1"); err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("bad setting: %v", err)
	}
	if _, err := StartNginx("nonsense;"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("bad configuration: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(parentDirectory(nil), directoryPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range left {
		if strings.HasPrefix(filepath.Base(dir), fmt.Sprintf("%s%d-", directoryPrefix, os.Getpid())) {
			t.Errorf("left behind: %s", dir)
		}
	}
}

// No two servers of a test get one port, even if neither listens yet.
func TestFreeAddr(t *testing.T) {
	seen := make(map[string]bool)
	for range 500 {
		addr, err := FreeAddr()
		if err != nil || seen[addr] {
			t.Fatalf("%s is given twice, or %v", addr, err)
		}
		seen[addr] = true
	}
}

// The servers of a test process that is killed end with it. The next test process removes
// their directory.
func TestServersDieWithTheTest(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), childVariable+"=1")
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var addr, dir string
	if _, err := fmt.Fscanln(output, &addr, &dir); err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	orphan := &Server{addr: addr}
	Await(t, "the server of a killed test process has ended", func() bool { return orphan.dial(t.Context()) != nil })
	removeOrphans(parentDirectory(nil))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory of a killed test: %v", err)
	}
}

// childVariable is an environment variable. If it is set, the test binary starts a server,
// prints its address and directory, and waits to be killed.
const childVariable = "APPTEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	s, err := StartRedis()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.Addr(), s.Dir())
	select {}
}
