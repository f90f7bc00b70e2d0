package freight

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// freshMySQL returns a function that creates an empty database and returns its URL.
func freshMySQL(server *apptest.Server) func(t *testing.T) database.URL {
	var made atomic.Int64
	return func(t *testing.T) database.URL {
		t.Helper()
		name := fmt.Sprintf("fresh_%d", made.Add(1))
		mysqlPlace(t).exec(t, parse(t, server.URL("mysql")), "CREATE DATABASE "+name)
		return parse(t, server.URL(name))
	}
}

func mysqlPlace(t *testing.T) place {
	t.Helper()
	return place{dialect: dialectOf(database.MySQL)}
}

// leftovers counts tables with temporary names.
func leftovers(t *testing.T, url database.URL) string {
	t.Helper()
	return mysqlPlace(t).value(t, url, "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND (TABLE_NAME LIKE 'spillway\\_new\\_%' ESCAPE '\\' OR TABLE_NAME LIKE 'spillway\\_old\\_%' ESCAPE '\\')")
}

func TestMySQL(t *testing.T) {
	t.Parallel()
	server := apptest.MariaDB(t, "--sql-mode=", "--character-set-server=latin1", "--default-storage-engine=Aria")
	fresh := freshMySQL(server)
	p := mysqlPlace(t)
	t.Run("other defaults", func(t *testing.T) {
		url := fresh(t)
		p.seed(t, url, medium, false, true)
		p.complete(t, url, medium)
		other := small
		other.Users = 2_000
		p.seed(t, url, other, true, true)
		p.complete(t, url, other)
	})
	t.Run("nothing is left", func(t *testing.T) {
		url := fresh(t)
		p.seed(t, url, small, false, true)
		p.exec(t, url, "CREATE TABLE spillway_new_orders (left_by_a_crash int)", "CREATE TABLE spillway_old_users (left_by_a_crash int)")
		p.seed(t, url, medium, true, true)
		if n := leftovers(t, url); n != "0" {
			t.Errorf("%s tables are left", n)
		}
		interrupt(t, url, small, "orders")
		if n := leftovers(t, url); n != "0" {
			t.Errorf("%s tables are left by an interruption", n)
		}
		engines := p.value(t, url, "SELECT GROUP_CONCAT(DISTINCT ENGINE) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()")
		if engines != "InnoDB" {
			t.Errorf("engines %s", engines)
		}
	})
	t.Run("grants", func(t *testing.T) {
		url := fresh(t)
		name := url.String()[strings.LastIndexByte(url.String(), '/')+1:]
		p.exec(t, url, "GRANT SELECT ON "+name+".* TO loader@'127.0.0.1' IDENTIFIED BY 'pw'")
		loader := parse(t, strings.Replace(url.Raw(), "root@", "loader:pw@", 1))
		refused(t, loader, false, "grant the user SELECT, INSERT")
		p.exec(t, url, "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX ON "+name+".* TO loader@'127.0.0.1'")
		p.seed(t, loader, small, false, true)
		p.complete(t, loader, small)
		refused(t, parse(t, server.URL("nowhere")), false, "create it: CREATE DATABASE")
	})
	t.Run("busy", func(t *testing.T) {
		url := fresh(t)
		err := p.dialect.within(context.Background(), url, func(transaction) error {
			ctx, cancel := context.WithTimeout(context.Background(), lockWait/20)
			defer cancel()
			_, err := Seed(ctx, url, small, false, quiet())
			if err == nil || !strings.Contains(err.Error(), "interrupted") {
				t.Errorf("beside another load: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
