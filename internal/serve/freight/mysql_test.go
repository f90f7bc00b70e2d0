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
	t.Run("engines", func(t *testing.T) {
		url := fresh(t)
		p.seed(t, url, small, false, true)
		if got := p.value(t, url, "SELECT GROUP_CONCAT(DISTINCT ENGINE) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"); got != "InnoDB" {
			t.Errorf("engines %s", got)
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
