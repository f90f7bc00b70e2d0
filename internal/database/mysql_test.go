package database

import (
	"strings"
	"testing"
	"time"
)

func TestMySQLServer(t *testing.T) {
	f := func(text string, want MySQLServer, descending bool) {
		t.Helper()
		want.Text = text
		got, err := parseMySQLServer(text)
		if err != nil || got != want || got.DescendingIndexes() != descending {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	f("5.7.44-log", MySQLServer{version: [3]int{5, 7, 44}}, false)
	f("8.0.36", MySQLServer{version: [3]int{8, 0, 36}}, true)
	f("8.4.0-commercial", MySQLServer{version: [3]int{8, 4, 0}}, true)
	f("8.0.11-TiDB-v7.5.0", MySQLServer{version: [3]int{8, 0, 11}}, true)
	f("10.6.16-MariaDB-log", MySQLServer{MariaDB: true, version: [3]int{10, 6, 16}}, false)
	f("10.11.19-MariaDB-0+deb12u1", MySQLServer{MariaDB: true, version: [3]int{10, 11, 19}}, true)
	f("5.5.5-10.6.0-MariaDB", MySQLServer{MariaDB: true, version: [3]int{10, 6, 0}}, false)
	for text, want := range map[string]string{
		"5.6.51": "or later is required", "5.7.7": "or later is required", "10.5.23-MariaDB": "or later is required", "unknown": "cannot be read",
	} {
		if _, err := parseMySQLServer(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	maria, oracle := MySQLServer{MariaDB: true}, MySQLServer{}
	if got := maria.timeoutSetting(1500 * time.Millisecond); got != "max_statement_time = 1.500000" {
		t.Error(got)
	}
	if got := oracle.timeoutSetting(1500 * time.Microsecond); got != "max_execution_time = 1" {
		t.Error(got)
	}
	if got := oracle.timeoutSetting(0); got != "max_execution_time = 0" {
		t.Error(got)
	}
}

func TestPinnedMode(t *testing.T) {
	for mode, want := range map[string]string{
		"":                                       "NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO,STRICT_TRANS_TABLES",
		"STRICT_ALL_TABLES":                      "STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO",
		"ANSI_QUOTES,EMPTY_STRING_IS_NULL":       "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO,STRICT_TRANS_TABLES",
		"NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES": "STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_AUTO_VALUE_ON_ZERO",
	} {
		if got := pinnedMode(mode); got != want {
			t.Errorf("%q: %q, want %q", mode, got, want)
		}
	}
}

// What would let parameters become text, or statements be two, is overruled or refused.
func TestMySQLConnector(t *testing.T) {
	f := func(address, want string) {
		t.Helper()
		u, err := Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewMySQLConnector(u, time.Second, time.Second)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the password is shown: %v", address, err)
		}
	}
	f("mysql://ann:s3cret@db/app", "")
	f("mysql://ann:s3cret@db/app?interpolateParams=true&multiStatements=true&charset=utf8mb4&allowAllFiles=true", "")
	f("mysql://ann:s3cret@db/app?charset=gbk", "charset must be utf8mb4")
	f("mysql://ann:s3cret@db/app?charset=utf8mb4,gbk", "charset must be utf8mb4")
	f("mysql://ann:s3cret@db/app?collation=gbk_chinese_ci", "collation cannot be set")
	f("mysql://ann:s3cret@db/app?timeout=soon", "cannot be read")
	f("mysql://ann:s3cret@db/app?tls=none", "unknown config name: none")
}
