package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/serve/app"
	"spillway/internal/serve/config"
)

// password is the value of SPILLWAY_TEST_PASSWORD in these tests.
const password = "q7s3cr3t"

// configVerb runs `spillway config` in testdata/config and returns its output.
func configVerb(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Setenv("SPILLWAY_TEST_PASSWORD", password)
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"config"}, args...), &out, &errs)
	if strings.Contains(out.String()+errs.String(), password) {
		t.Errorf("config %v shows the password:\n%s%s", args, out.String(), errs.String())
	}
	return out.String(), errs.String(), code
}

func TestConfigCheck(t *testing.T) {
	t.Chdir(filepath.Join("testdata", "config"))
	stdout, stderr, code := configVerb(t, "check", "good.yaml")
	if stdout != "good.yaml: ok\n" || stderr != "" || code != exit.OK {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}

	want, err := os.ReadFile("mistakes.stderr")
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code = configVerb(t, "check", "mistakes.yaml")
	if diff := cmp.Diff(string(want), stderr); diff != "" || stdout != "" || code != exit.Usage {
		t.Errorf("exit %d, standard output %q, standard error\n%s", code, stdout, diff)
	}

	stdout, stderr, code = configVerb(t, "check", "missing.yaml")
	if stdout != "" || stderr != "spillway: read configuration: open missing.yaml: no such file or directory\n" || code != exit.Usage {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// Without variables and files of secrets, everything else is checked.
func TestConfigCheckNoEnv(t *testing.T) {
	t.Chdir(filepath.Join("testdata", "config"))
	stdout, stderr, code := configVerb(t, "check", "secrets.yaml")
	if stdout != "" || !strings.Contains(stderr, "SPILLWAY_TEST_MISSING is not set") || !strings.HasSuffix(stderr, "secrets.yaml: 4 mistakes\n") || code != exit.Usage {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	stdout, stderr, code = configVerb(t, "check", "--no-env", "secrets.yaml")
	if stdout != "secrets.yaml: ok\n" || stderr != "" || code != exit.OK {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	stdout, stderr, code = configVerb(t, "check", "--no-env", "mistakes.yaml")
	if stdout != "" || !strings.HasSuffix(stderr, " mistakes\n") || code != exit.Usage {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestConfigPrint(t *testing.T) {
	t.Chdir(filepath.Join("testdata", "config"))
	stdout, stderr, code := configVerb(t, "print", "good.yaml")
	if !strings.Contains(stdout, `database: "postgres://app:***@db.example/app"`) || stderr != "" || code != exit.OK {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	stdout, stderr, code = configVerb(t, "print", "mistakes.yaml")
	if stdout != "" || !strings.Contains(stderr, "mistakes.yaml:1:9: listen:") || code != exit.Usage {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// The printed built-in configuration passes the check.
func TestConfigPrintBuiltIn(t *testing.T) {
	stdout, _, code := configVerb(t, "print")
	path := filepath.Join(t.TempDir(), "spillway.yaml")
	if err := os.WriteFile(path, []byte(stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := app.LoadConfig(path)
	if code != exit.OK || err != nil {
		t.Fatalf("exit %d, %v in\n%s", code, err, stdout)
	}
	if diff := cmp.Diff(app.BuiltIn(), cfg); diff != "" {
		t.Error(diff)
	}
}

func TestConfigSchema(t *testing.T) {
	stdout, _, code := configVerb(t, "schema")
	if !json.Valid([]byte(stdout)) || code != exit.OK {
		t.Errorf("exit %d\n%s", code, stdout)
	}
}

// The configuration and package database have the same pool defaults.
func TestConfigPoolDefaults(t *testing.T) {
	pool := database.Pool(config.Default().Pool)
	if diff := cmp.Diff(database.Pool{}.WithDefaults((pool.Max-1)/2), pool); diff != "" {
		t.Error(diff)
	}
}
