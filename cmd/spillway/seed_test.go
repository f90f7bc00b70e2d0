package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
)

func TestSeedGames(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "games.db")
	f := func(code int, stdout, stderr string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		got := run(context.Background(), append([]string{"seed", "games", "--database", url}, args...), &out, &errs)
		if got != code || !regexp.MustCompile("^"+stdout+"$").MatchString(out.String()) || !strings.Contains(errs.String(), stderr) {
			t.Errorf("%v: exit %d\nstandard output %q\nstandard error %q", args, got, out.String(), errs.String())
		}
	}
	size := []string{"--records", "200", "--apps", "3"}
	f(exit.OK, `sqlite:\S+ holds 200 records \(--apps 3 --records 200 --random-seed 1 --index none\), made in \S+; the first app is app_id app-1, token [0-9a-f]{32}\n`,
		"game_record: 200 rows in ", size...)
	f(exit.OK, `.* holds this data set already \(--apps 3 --records 200 --random-seed 1 --index none\): nothing to do\n`, "", size...)
	f(exit.OK, `.*; its index is now right, made in \S+\n`, "indexes: done in ", append(size, "--index", "right")...)
	f(exit.Error, "", "the database contains another data set (--apps 3 --records 200 --random-seed 1); --replace drops it", "--records", "200")
	f(exit.Usage, "", "--index must be none, seed or right, not \"best\"", append(size, "--index", "best")...)
	f(exit.Usage, "", "--apps must be 1 to 100000, not 0", "--apps", "0")
	f(exit.Usage, "", "--records must be 1 to 100000000, not -1", "--records=-1")
}

// seedVerb runs `spillway seed freight`.
func seedVerb(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"seed", "freight"}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

func TestSeedFreight(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "freight.db")
	f := func(code int, stdout, stderr string, args ...string) {
		t.Helper()
		out, errs, got := seedVerb(append([]string{"--database", url}, args...)...)
		if got != code || !regexp.MustCompile("^"+stdout+"$").MatchString(out) || !strings.Contains(errs, stderr) {
			t.Errorf("%v: exit %d\nstandard output %q\nstandard error %q", args, got, out, errs)
		}
	}
	size := []string{"--users", "100", "--days", "30", "--per-day", "2"}
	f(exit.OK, `sqlite:\S+ holds 100 users and 48 orders \(--users 100 --days 30 --per-day 2 --random-seed 1\), made in \S+\n`,
		"orders: 48 rows in ", size...)
	f(exit.OK, `sqlite:\S+ holds this data set already \(--users 100 --days 30 --per-day 2 --random-seed 1\): nothing to do\n`,
		"", size...)
	f(exit.Error, "", "the database contains another data set (--users 100 --days 30 --per-day 2 --random-seed 1); --replace drops it",
		append(size, "--random-seed", "2")...)
	f(exit.OK, `.*--random-seed 2.*\n`, "statistics: done in ", append(size, "--random-seed", "2", "--replace")...)
}

func TestSeedFreightUsage(t *testing.T) {
	t.Setenv("SPILLWAY_DATABASE", "") // restored afterwards
	if err := os.Unsetenv("SPILLWAY_DATABASE"); err != nil {
		t.Fatal(err)
	}
	f := func(want string, args ...string) {
		t.Helper()
		stdout, stderr, code := seedVerb(args...)
		if code != exit.Usage || stdout != "" && !strings.Contains(stdout, "Usage:") || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit %d, want %q\n%s%s", args, code, want, stdout, stderr)
		}
		if strings.Contains(stdout+stderr, "s3cret") {
			t.Errorf("%v: the password is shown:\n%s%s", args, stdout, stderr)
		}
	}
	sqlite := "--database=sqlite:" + filepath.Join(t.TempDir(), "never.db")
	f("missing flags: --database=URL")
	f("unknown kind of database", "--database=oracle://app:s3cret@db/app")
	f("--users must be 1 to 100000000, not 0", sqlite, "--users=0")
	f("--users must be 1 to 100000000, not -5", sqlite, "--users=-5")
	f("--users must be 1 to 100000000, not 100000001", sqlite, "--users=100000001")
	f("--users", sqlite, "--users=many")
	f("--days must be 1 to 3660, not 3661", sqlite, "--days=3661")
	f("--per-day must be 0 to the number of users (10), not 11", sqlite, "--users=10", "--per-day=11")
	f("--random-seed must be 0 to 9223372036854775807", sqlite, "--random-seed=18446744073709551615")
	f("--random-seed", sqlite, "--random-seed=-1")
	if found, err := filepath.Glob(strings.TrimPrefix(sqlite, "--database=sqlite:")); err != nil || found != nil {
		t.Errorf("a file was created: %v, %v", found, err)
	}
}

// cancelOn calls cancel when a line that starts with text is written.
type cancelOn struct {
	written bytes.Buffer
	text    string
	cancel  func()
}

func (w *cancelOn) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte(w.text)) {
		w.cancel()
	}
	return w.written.Write(p)
}

func TestSeedFreightInterrupted(t *testing.T) {
	args := []string{"seed", "freight", "--users", "200", "--per-day", "50", "--database", "sqlite:" + filepath.Join(t.TempDir(), "freight.db")}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var stdout bytes.Buffer
	stderr := cancelOn{text: "users:", cancel: cancel}
	code := run(ctx, args, &stdout, &stderr)
	lines := strings.Split(strings.TrimSpace(stderr.written.String()), "\n")
	want := "spillway: seed freight: interrupted: nothing finished has been added to sqlite:"
	if code != exit.Error || stdout.Len() > 0 || len(lines) != 2 || !strings.HasPrefix(lines[1], want) {
		t.Errorf("exit %d\nstandard output %q\nstandard error %q", code, stdout.String(), stderr.written.String())
	}

	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if code := run(ctx, args, &stdout, &bytes.Buffer{}); code != exit.OK || !strings.Contains(stdout.String(), " orders (") {
		t.Errorf("the same command again: exit %d, %s", code, stdout.String())
	}
}
