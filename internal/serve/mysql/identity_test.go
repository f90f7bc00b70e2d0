package mysql

import (
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// A restart gives the same identity; another database and another server do not.
func TestIdentity(t *testing.T) {
	t.Parallel()
	server := apptest.MySQL(t)
	first, second, other := freshDatabase(t, server), freshDatabase(t, server), freshDatabase(t, plainServer(t))
	identity := func(url string) string {
		t.Helper()
		id, err := open(t, url, database.Pool{}).Identity(t.Context())
		if err != nil || len(id) < 10 {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	known := identity(first)
	if id := identity(first); id != known {
		t.Errorf("twice: %s and %s", known, id)
	}
	for name, url := range map[string]string{"another database": second, "another server": other} {
		if id := identity(url); id == known {
			t.Errorf("%s: %s too", name, id)
		}
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if id := identity(first); id != known {
		t.Errorf("after a restart: %s, before %s", id, known)
	}
}
