package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/queue"
	"spillway/internal/serve/redis"
)

// What anybody may read of an error has no text of a database.
func TestPublicReason(t *testing.T) {
	t.Parallel()
	unready := func(why string, cause error) error { return &queue.Unready{Why: errors.New(why), Cause: cause} }
	refused := &pgconn.PgError{Code: "42P01", Message: `relation "salaries" does not exist`}
	for _, test := range []struct {
		err  error
		want string
	}{
		{unready("stopping", nil), "stopping"},
		{&queue.Unready{Why: fmt.Errorf("%w: 600 records wait (queue_rows 1000)", queue.ErrNearlyFull)}, "nearly full: 600 records wait (queue_rows 1000)"},
		{unready("the last batch was not stored", fmt.Errorf("insert: %w", refused)), "the last batch was not stored: SQLSTATE 42P01"},
		{unready("the last batch was not stored", &mysql.MySQLError{Number: 1146, Message: "Table 'pay.salaries' doesn't exist"}), "the last batch was not stored: the log says why"},
		{unready("the drain of /a is held up at group 7", fmt.Errorf("%w: %w", queue.ErrHeld, refused)), "the drain of /a is held up at group 7: " + queue.ErrHeld.Error()},
		{unready("window is 41s old, bound 30s", fmt.Errorf("dial: %w", syscall.ECONNREFUSED)), "window is 41s old, bound 30s: connection refused"},
		{unready("the database does not answer", context.DeadlineExceeded), "the database does not answer: timeout"},
		{fmt.Errorf("feed /a: %w", unready("the database does not answer", io.ErrUnexpectedEOF)), "the database does not answer: the log says why"},
		{fmt.Errorf("%w; run spillway seed", fmt.Errorf("prepare SELECT pay: %w", io.ErrUnexpectedEOF)), "the log says why"},
		{fmt.Errorf("%w: %w", queue.ErrClosed, errors.New("SELECT pay")), "the queue is closing"},
		{fmt.Errorf("%w; run spillway seed", refused), "SQLSTATE 42P01"},
		{refused, "SQLSTATE 42P01"},
		{unready("cannot start", fmt.Errorf("use redis h:1: %w: %w", redis.ErrPopupServer, new(redis.DeniedError))), "cannot start: "}, // names the command
	} {
		if got := publicReason(test.err); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}

// A part's reason has the time when it began, until it ends.
func TestReadinessSince(t *testing.T) {
	t.Parallel()
	var r readiness
	var err error
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(second int) []admin.Part {
		return r.look(start.Add(time.Duration(second)*time.Second), []readyCheck{{Part: admin.Part{Name: "/a", Group: admin.Reads}, state: func(time.Time) (bool, error) { return err == nil, err }}})
	}
	want := func(got []admin.Part, reason string, second int) {
		t.Helper()
		part := admin.Part{Name: "/a", Group: admin.Reads, Serves: reason == "", Reason: reason, Detail: reason}
		if reason != "" {
			part.Since = start.Add(time.Duration(second) * time.Second)
		}
		if diff := cmp.Diff([]admin.Part{part}, got); diff != "" {
			t.Error(diff)
		}
	}
	want(at(0), "", 0)
	err = &queue.Unready{Why: errors.New("down")}
	want(at(1), "down", 1)
	err = &queue.Unready{Why: errors.New("still down")}
	want(at(2), "still down", 1)
	err = nil
	want(at(3), "", 0)
	err = &queue.Unready{Why: errors.New("down again")}
	want(at(4), "down again", 4)
}
