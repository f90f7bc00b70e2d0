package main

import (
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"spillway"
	"spillway/internal/apptest"
)

var binary apptest.Binary // the tests share the program

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &binary)) }

func TestUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"version", 0, "spillway " + spillway.Version() + " (revision "},
		{"--version", 0, "spillway " + spillway.Version() + " (revision "},
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
		stdout, stderr, code := binary.Run(t, strings.Fields(c.args)...)
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

// A result file that version 0.1.0 has written is read.
func TestResultOfVersion010(t *testing.T) {
	t.Parallel()
	file, err := filepath.Abs(filepath.Join("testdata", "0.1.0", "load.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{"report": "Holds 200/s: 200/s answered", "diagnose": "No step failed"} {
		if stdout, stderr, code := binary.Run(t, command, file); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, without %q\n%s%s", command, code, want, stdout, stderr)
		}
	}
}
