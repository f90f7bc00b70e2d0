package postgres

import (
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
)

// A standby and a restart give one identity; another database or role does not.
func TestIdentity(t *testing.T) {
	t.Parallel()
	pg := apptest.Postgres(t, apptest.ReplicaSettings()...)
	first, second := pg.CreateDatabase(t), pg.CreateDatabase(t)
	standby := pg.Replica(t)
	mustExecute(t, first, "CREATE ROLE weak LOGIN PASSWORD 'weak'")
	identity := func(url string) string {
		t.Helper()
		id, err := open(t, url, database.Pool{}).Identity(t.Context())
		if err != nil || len(id) < 5 {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	known := identity(first)
	asWeak := strings.Replace(first, "postgres://", "postgres://weak:weak@", 1)
	if at := strings.Index(first, "@"); at >= 0 {
		asWeak = "postgres://weak:weak" + first[at:]
	}
	for name, c := range map[string]struct {
		url  string
		same bool
	}{
		"again": {first, true}, "another role": {asWeak, false}, "a standby": {strings.Replace(first, pg.Addr(), standby.Addr(), 1), true},
		"another database": {second, false},
	} {
		if id := identity(c.url); (id == known) != c.same {
			t.Errorf("%s: %s beside %s", name, id, known)
		}
	}
	// A server without the function is known until its next start.
	mustExecute(t, second, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	asWeak = strings.Replace(asWeak, apptest.DatabaseName(first), apptest.DatabaseName(second), 1)
	before := identity(asWeak)
	if before == known || before != identity(asWeak) {
		t.Errorf("without the function: %s", before)
	}
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	if id := identity(first); id != known {
		t.Errorf("after a restart: %s, before %s", id, known)
	}
	if id := identity(asWeak); id == before {
		t.Errorf("after a restart without the function: still %s", id)
	}
}
