package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spillway/internal/apptest"
)

// fixture is the binary and the database that tests share, because building and starting
// them takes seconds.
type fixture struct {
	binary   string
	postgres *apptest.PostgresServer
}

var shared fixture // set once by TestMain, read by tests

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "spillway-build-")
	if err != nil {
		return complain(err)
	}
	defer os.RemoveAll(dir)
	if shared.binary, err = apptest.Build(dir, "spillway/cmd/spillway"); err != nil {
		return complain(err)
	}
	if shared.postgres, err = apptest.StartPostgres(); err != nil {
		return complain(err)
	}
	code := m.Run()
	if err := shared.postgres.Close(); err != nil {
		return complain(err)
	}
	return code
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// spillway runs the binary and returns its output and exit code.
func spillway(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), shared.binary, args...)
	cmd.Dir = t.TempDir()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestUse(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"version", 0, "spillway "},
		{"--help", 0, "serve"},
		{"serve --help", 0, "spillway serve spillway.yaml"},
		{"seed freight --help", 0, "spillway seed freight --database"},
		{"config check --help", 0, "spillway config check"},
		{"config schema", 0, `"$schema"`},
		{"srve", 2, "srve"},
		{"serve --lsten x", 2, "--lsten"},
		{"serve missing.yaml", 2, "missing.yaml"},
		{"serve --listen nonsense", 2, "nonsense"},
		{"serve --admin 0.0.0.0:9090", 2, "token"},
		{"serve --database oracle://x", 2, "postgres://"},
		{"serve --database mysql://u:s3cr3t@h/d?charset=gbk", 2, "charset"},
		{"seed freight --database postgres://u@127.0.0.1:1/x --users 0", 2, "users"},
		{"seed freight --database postgres://u:s3cr3t@127.0.0.1:1/x --users 10 --per-day 1", 3, "127.0.0.1:1"},
	} {
		stdout, stderr, code := spillway(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("spillway %s: exit %d, want %d with %q\n%s%s", c.args, code, c.code, c.says, stdout, stderr)
		}
		if strings.Contains(stdout+stderr, "s3cr3t") {
			t.Errorf("spillway %s: the password is printed", c.args)
		}
		if code == 2 && strings.Count(strings.TrimSpace(stderr), "\n") > 0 {
			t.Errorf("spillway %s: the error has more than one line:\n%s", c.args, stderr)
		}
	}
}

// TestServePortZero: the log names the addresses that are in use.
func TestServePortZero(t *testing.T) {
	t.Parallel()
	db := sqliteDatabase(t)
	db.query(t, "CREATE TABLE readings (id bigint NOT NULL, device bigint, value double precision, note varchar(20))")
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(file, []byte(readings), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), shared.binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--database", db.url, "--data", t.TempDir(), file)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var log strings.Builder
	for lines := bufio.NewScanner(stderr); !strings.Contains(log.String(), "msg=serving") && lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
	}
	found := regexp.MustCompile(`msg=serving .*admin=(\S+)`).FindStringSubmatch(log.String())
	if found == nil || fetch(t, "http://"+found[1]+"/livez").status != 200 {
		t.Errorf("no admin listener is where the log says:\n%s", log.String())
	}
}
