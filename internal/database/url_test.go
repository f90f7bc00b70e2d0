package database

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	good := func(s string, driver Driver, shown string) {
		t.Helper()
		u, err := Parse(s)
		if err != nil {
			t.Errorf("Parse(%q): %v", s, err)
			return
		}
		if u.Driver != driver || u.Raw() != s || u.String() != shown || fmt.Sprintf("%#v", u) != shown {
			t.Errorf("Parse(%q) = %s %q, %q as %%#v; want %s %q", s, u.Driver, u, fmt.Sprintf("%#v", u), driver, shown)
		}
	}
	good("postgres://ann:s3cret@db:5432/app", Postgres, "postgres://ann:***@db:5432/app")
	good("postgresql://ann@db/app", Postgres, "postgresql://ann@db/app")
	good("postgresql://ann:@db/app", Postgres, "postgresql://ann:***@db/app")
	good("postgres://ann:a:b@[::1]:5432/app?sslmode=disable", Postgres, "postgres://ann:***@[::1]:5432/app?sslmode=disable")
	good("postgres://ann:p%40ss@a:1,b:2/app", Postgres, "postgres://ann:***@a:1,b:2/app")
	good("postgres:///app?host=/run/postgresql&user=ann&password=s3cret", Postgres, "postgres:///app?host=/run/postgresql&user=ann&password=***")
	good("postgres://ann@/app?host=/run/postgresql", Postgres, "postgres://ann@/app?host=/run/postgresql")
	good("postgres://db/app?p%61ssword=x&sslpassword=y", Postgres, "postgres://db/app?p%61ssword=***&sslpassword=***")
	good("mysql://ann:s3cret@db:3306/app", MySQL, "mysql://ann:***@db:3306/app")
	good("mysql://ann:s3cret@/app?socket=/run/mysqld/mysqld.sock", MySQL, "mysql://ann:***@/app?socket=/run/mysqld/mysqld.sock")
	good("mysql://ann@/app?loc=UTC&socket=%2Frun%2Fm.sock", MySQL, "mysql://ann@/app?loc=UTC&socket=%2Frun%2Fm.sock")
	good("sqlite:data/app.db", SQLite, "sqlite:data/app.db")
	good("sqlite:/var/lib/a@b.db", SQLite, "sqlite:/var/lib/a@b.db")
}

func TestParseErrors(t *testing.T) {
	bad := func(s, says string) {
		t.Helper()
		u, err := Parse(s)
		if err == nil {
			t.Errorf("Parse(%q) = %v, want an error", s, u)
			return
		}
		if !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q): %q, want one line with %q", s, err, says)
		}
	}
	bad("", "it is empty")
	bad("db.example", "write postgres://")
	bad("oracle://ann:s3cret@db/app", "unknown kind")
	bad("mariadb://db/app", "write mysql://")
	bad("sqlite3:app.db", "write sqlite:PATH")
	bad("postgres:db/app", "followed by //")
	bad("postgres://ann:a@b@db/app", "%40")
	bad("postgres://ann:12/34@db/app", "%2F")
	bad("postgres://ann:12?34@db/app", "%3F")
	bad("postgres://ann:12#34@db/app", "%23")
	bad("postgres://ann:pa/ss", "port is not a number")
	bad("postgres://ann:s%zz@db/app", "%25")
	bad("postgres://ann:s3%00@db/app", "%25")
	bad("postgres://ann:s 3@db/app", "%20")
	bad("postgres://db:0/app", "from 1 to 65535")
	bad("postgres://db:65536/app", "from 1 to 65535")
	bad("postgres://db:/app", "from 1 to 65535")
	bad("postgres://::1/app", "IPv6")
	bad("postgres://[::1/app", "IPv6")
	bad("postgres://ann@:5432/app", "host is missing")
	bad("postgres://db/app/more", "more than one /")
	bad("mysql://a,b/app", "one host")
	bad("mysql://ann@unix(/run/m.sock)/app", "more than one /")
	bad("mysql://ann@db/app?socket=/run/m.sock", "in place of the host")
	bad("mysql://ann@/app?socket=m.sock", "absolute path")
	bad("mysql://ann@/app?socket=/a)b", "absolute path")
	bad("mysql://a%3Ab:pw@db/app", "a : in its name")
	bad("sqlite:", "without a path")
	bad("sqlite::memory:", "refused")
	bad("sqlite:///abs.db", "sqlite:/PATH")
	bad("sqlite:app.db?mode=ro", "no ?")
	bad("sqlite:file:app.db", "no file:")
	bad("sqlite:dir/", "a directory")
	bad("sqlite:a\x00b", "control character")
}

func TestPath(t *testing.T) {
	for s, want := range map[string]string{"sqlite:a/b.db": "a/b.db", "sqlite:/b.db": "/b.db", "postgres://db/app": ""} {
		u, err := Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if u.Path() != want {
			t.Errorf("Path of %s = %q, want %q", s, u.Path(), want)
		}
	}
}

// What go-sql-driver reads from the DSN is what the address said.
func TestDSNMySQL(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		user := rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "user")
		password := rapid.StringMatching(`[!-~]{0,12}`).Draw(t, "password")
		name := rapid.StringMatching(`[a-z_]{1,8}`).Draw(t, "name")
		where := rapid.SampledFrom([][4]string{
			{"db", "tcp", "db:3306"},
			{"db:33", "tcp", "db:33"},
			{"[::1]", "tcp", "[::1]:3306"},
			{"", "unix", "/run/m.sock", "&socket=/run/m.sock"},
		}).Draw(t, "where")
		u, err := Parse("mysql://" + user + ":" + url.QueryEscape(password) + "@" + where[0] + "/" + name + "?loc=Asia/Shanghai" + where[3])
		if err != nil {
			t.Fatal(err)
		}
		got, err := mysql.ParseDSN(u.DSN())
		if err != nil {
			t.Fatal(err)
		}
		if got.User != user || got.Passwd != password || got.Net != where[1] || got.Addr != where[2] || got.DBName != name || got.Loc.String() != "Asia/Shanghai" {
			t.Fatalf("the driver reads user %q password %q %s(%s) name %q", got.User, got.Passwd, got.Net, got.Addr, got.DBName)
		}
	})
}

// A password is hidden, even if the rest of the address is malformed.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"postgres://ann:", "mysql://ann:", "postgres://", "postgresql:", "postgres://ann:x@", "x", "mysql://a/b?password=", "postgres://a/?p%61ss=", "sqlite://u:", ":", "postgres://h:",
	} {
		for _, after := range []string{"@db/app", "", "/@db", "?@db", "#@db", "@@db", "@db:port/x", ":@[::1", "@unix(/x)/y", "&a=b"} {
			f.Add(s, "q7s3cr3t9z", after)
		}
	}
	f.Fuzz(func(t *testing.T, before, password, after string) {
		// A short password occurs in the messages themselves; a recognizable one does not.
		password = "Zq7" + password + "9Xz"
		s := before + password + after
		u, err := Parse(s)
		shown := u.String() + fmt.Sprintf("%v %+v %#v %v", u, u, u, err)
		if strings.Contains(shown, password) && isPassword(s, password) {
			t.Errorf("Parse(%q) shows the password: %s", s, shown)
		}
	})
}

// isPassword says whether some reading of s as an address has a password in
// that place: between a colon and an @, or as a parameter of that name. A
// SQLite path has none.
func isPassword(s, password string) bool {
	before, after, _ := strings.Cut(s, password)
	if strings.HasPrefix(s, "sqlite:") {
		return false
	}
	_, userinfo, _ := strings.Cut(before, "://")
	if strings.Contains(userinfo, ":") && strings.Contains(after, "@") {
		return true
	}
	pairs := strings.Split(before[strings.LastIndexByte(before, '?')+1:], "&")
	name, value, found := strings.Cut(pairs[len(pairs)-1], "=")
	return found && !strings.Contains(value, "@") && strings.Contains(strings.ToLower(name), "pass")
}
