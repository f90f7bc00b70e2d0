package mysql

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/standby"
)

func TestParsePositions(t *testing.T) {
	t.Parallel()
	const a, b = "3E11FA47-71CA-11E1-9E33-C80AA9429562", "4350f323-7565-4e59-8763-4b1b83a0ce0e"
	type logs = map[string]uint64
	type sets = map[string][]standby.Span
	for _, c := range []struct {
		name  string
		parse func() (standby.Position, error)
		want  standby.Position
		bad   bool
	}{
		{"no GTIDs", func() (standby.Position, error) { return parseGTIDs("") }, standby.Position{Sets: sets{}}, false},
		{
			"GTIDs", func() (standby.Position, error) { return parseGTIDs(a + ":1-3:11,\n" + b + ":7") },
			standby.Position{Sets: sets{a: {{First: 1, Last: 3}, {First: 11, Last: 11}}, b: {{First: 7, Last: 7}}}},
			false,
		},
		{
			"GTIDs with tags", func() (standby.Position, error) { return parseGTIDs(a + ":1-3:blue:4-5:9:red:1") },
			standby.Position{Sets: sets{a: {{First: 1, Last: 3}}, a + ":blue": {{First: 4, Last: 5}, {First: 9, Last: 9}}, a + ":red": {{First: 1, Last: 1}}}},
			false,
		},
		{"GTIDs without numbers", func() (standby.Position, error) { return parseGTIDs(a) }, standby.Position{}, true},
		{"GTIDs with a bad number", func() (standby.Position, error) { return parseGTIDs(a + ":1-x") }, standby.Position{}, true},
		{"too many GTIDs", func() (standby.Position, error) { return parseGTIDs(a + strings.Repeat(":1", spansMax+1)) }, standby.Position{}, true},
		{"no domains", func() (standby.Position, error) { return parseDomains("") }, standby.Position{Logs: logs{}}, false},
		{"domains", func() (standby.Position, error) { return parseDomains("0-1-100,7-2-5") }, standby.Position{Logs: logs{"0": 100, "7": 5}}, false},
		{"a bad domain", func() (standby.Position, error) { return parseDomains("0-1") }, standby.Position{}, true},
		{"a file", func() (standby.Position, error) { return parseEnd("mysql.bin.000007", "154") }, standby.Position{Logs: logs{"mysql.bin": 7<<40 | 154}}, false},
		{"a file without a number", func() (standby.Position, error) { return parseEnd("binlog", "154") }, standby.Position{}, true},
		{"no file", func() (standby.Position, error) { return parseEnd("", "") }, standby.Position{}, true},
	} {
		got, err := c.parse()
		if (err != nil) != c.bad || !c.bad && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

// TestPositions compares the positions of a server and its replica, on MySQL with and without
// GTIDs.
func TestPositions(t *testing.T) {
	t.Parallel()
	modes := map[string][]string{"MariaDB": nil}
	if apptest.KindOfMySQL() == apptest.KindMySQL {
		modes = map[string][]string{"without GTIDs": nil, "with GTIDs": {"--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--log-slave-updates"}}
	}
	for name, settings := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPositions(t, settings)
		})
	}
}

func testPositions(t *testing.T, settings []string) {
	primary := apptest.MySQL(t, append([]string{"--log-bin=binlog", "--server-id=1"}, settings...)...)
	second := apptest.MySQL(t, append([]string{"--log-bin=binlog", "--server-id=2"}, settings...)...)
	source, replica := open(t, primary.URL("test"), database.Pool{}), open(t, second.URL("test"), database.Pool{})
	written := func() standby.Position {
		t.Helper()
		p, err := source.Written(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	replayed := func() standby.Position {
		p, err := replica.Replayed(t.Context())
		if err != nil {
			return standby.Position{} // it does not replicate yet
		}
		return p
	}
	start := "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_USER = 'root', MASTER_PORT = " + primary.Addr()[strings.LastIndexByte(primary.Addr(), ':')+1:]
	switch {
	case apptest.KindOfMySQL() != apptest.KindMySQL:
		start += ", MASTER_USE_GTID = no" // gtid_slave_pos says the position all the same
	case settings != nil:
		start += ", MASTER_AUTO_POSITION = 1"
	}
	mustExecute(t, second.URL("test"), start, "START SLAVE")
	mustExecute(t, primary.URL("test"), "CREATE TABLE written (id bigint PRIMARY KEY)")
	apptest.Await(t, "the replica has replayed everything", func() bool { return replayed().Covers(written()) })

	before := written()
	mustExecute(t, second.URL("test"), "STOP SLAVE")
	mustExecute(t, primary.URL("test"), "INSERT INTO written VALUES (1)")
	if after := written(); !after.Covers(before) || before.Covers(after) || replayed().Covers(after) || !replayed().Covers(before) {
		t.Errorf("written %v, then %v, replayed %v", before, after, replayed())
	}
	mustExecute(t, second.URL("test"), "START SLAVE")
	apptest.Await(t, "the replica has caught up", func() bool { return replayed().Covers(written()) })
	testPositionsRefused(t, primary, settings != nil || apptest.KindOfMySQL() != apptest.KindMySQL)
}

// testPositionsRefused reads the positions of a server with a user who has no privilege.
func testPositionsRefused(t *testing.T, server *apptest.Server, gtids bool) {
	t.Helper()
	mustExecute(t, server.URL("test"), "CREATE USER reader@'%' IDENTIFIED BY 'secret'", "GRANT SELECT ON test.* TO reader@'%'")
	_, err := open(t, "mysql://reader:secret@"+server.Addr()+"/test", database.Pool{}).Written(t.Context())
	var refused *mysql.MySQLError
	if gtids != (err == nil) || err != nil && (!errors.As(err, &refused) || !strings.Contains(err.Error(), "REPLICATION CLIENT")) {
		t.Errorf("without privileges: %v", err)
	}
}
