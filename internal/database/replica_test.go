package database

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestJudgeReplica(t *testing.T) {
	state := func(code string) error { return fmt.Errorf("query: %w", &pgconn.PgError{Code: code}) }
	number := func(n uint16) error { return fmt.Errorf("query: %w", &mysql.MySQLError{Number: n}) }
	for _, c := range []struct {
		name            string
		err             error
		down, elsewhere bool
	}{
		{"division by zero", state("22012"), false, false},
		{"statement timeout", state("57014"), false, false},
		{"given up, and confirmed", fmt.Errorf("%w: %w", context.DeadlineExceeded, state("57014")), false, false},
		{"given up", fmt.Errorf("%w: %w", context.DeadlineExceeded, os.ErrDeadlineExceeded), true, false},
		{"the caller left, and confirmed", fmt.Errorf("%w: %w", context.Canceled, state("57014")), false, false},
		{"the caller left", context.Canceled, false, false},
		{"the caller left a server that hangs", fmt.Errorf("%w: %w", context.Canceled, os.ErrDeadlineExceeded), true, false},
		{"recovery conflict", state("40001"), false, true},
		{"deadlock with recovery", state("40P01"), false, true},
		{"it writes", state("25006"), false, true},
		{"shutdown", state("57P01"), true, false},
		{"it starts", state("57P03"), true, false},
		{"too many clients", state("53300"), true, false},
		{"connection lost", fmt.Errorf("connection lost: %w", io.ErrUnexpectedEOF), true, false},
		{"no connection free", fmt.Errorf("wait: %w", ErrBusy), false, true},
		{"MySQL: statement timeout", number(3024), false, false},
		{"MySQL: given up, and confirmed", fmt.Errorf("%w: %w", context.DeadlineExceeded, ErrEnded), false, false},
		{"MySQL: shutdown", number(1053), true, false},
		{"MySQL: connection lost", mysql.ErrInvalidConn, true, false},
	} {
		if down, elsewhere := JudgeReplica(c.err); down != c.down || elsewhere != c.elsewhere {
			t.Errorf("%s: down %v, elsewhere %v", c.name, down, elsewhere)
		}
	}
}

// Only an address that means another server on another host names this one.
func TestIdentity(t *testing.T) {
	here := " on " + machine()
	for _, c := range []struct{ url, want string }{
		{"postgres://app:secret@db:5432/one", "postgres://app@db:5432/one"},
		{"postgres://other@db:5432/one", "postgres://other@db:5432/one"},
		{"postgresql://db:5432/one", "postgres://db:5432/one"},
		{"mysql://app:secret@db/one?password=x", "mysql://app@db/one?password=***"},
		{"postgres://app@10.0.0.1,db2:5433/one", "postgres://app@10.0.0.1,db2:5433/one"},
		{"postgres://app@10.0.0.1,127.0.0.1:5433/one", "postgres://app@10.0.0.1,127.0.0.1:5433/one" + here},
		{"postgres://app@LocalHost/one", "postgres://app@LocalHost/one" + here},
		{"postgres://app@[::1]:5432/one", "postgres://app@[::1]:5432/one" + here},
		{"postgres://app@[fd00::1]:5432/one", "postgres://app@[fd00::1]:5432/one"},
		{"postgres://app@/one", "postgres://app@/one" + here},
		{"postgres:///one?host=/run/postgresql", "postgres:///one?host=/run/postgresql" + here},
		{"postgres:///one?host=db", "postgres:///one?host=db"},
		{"mysql://app@/one?socket=/run/mysqld.sock", "mysql://app@/one?socket=/run/mysqld.sock" + here},
		{"mysql://app@0.0.0.0/one", "mysql://app@0.0.0.0/one" + here},
		{"sqlite:/data/one.db", "sqlite:" + machine() + ":/data/one.db"},
	} {
		u, err := Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if got := u.Identity(); got != c.want {
			t.Errorf("%s: %s, want %s", c.url, got, c.want)
		}
		if local := strings.Contains(c.want, machine()); runtime.GOOS == "linux" && (u.Here() != "") != local {
			t.Errorf("%s: here %q", c.url, u.Here())
		}
	}
}
