package servetest

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
)

type gameRecord struct {
	Grade int64 `json:"prize_grade"`
	Score int64 `json:"score"`
}

// TestGames runs the documented commands on every database and checks the list that is served.
func TestGames(t *testing.T) {
	t.Parallel()
	file, err := filepath.Abs("../../../deploy/games.yaml")
	if err != nil {
		t.Fatal(err)
	}
	createMariaDB(t, "games")
	for name, url := range map[string]string{
		"postgres": postgres.Get(t).CreateDatabase(t),
		"mariadb":  mariadb.Get(t).URL("games"),
		"sqlite":   "sqlite:" + filepath.Join(t.TempDir(), "games.db"),
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, code := binary.Run(t, "seed", "games", "--database", url, "--records", "2000", "--apps", "10", "--index", "right")
			if code != exit.OK {
				t.Fatalf("exit %d: %s", code, errs)
			}
			token := regexp.MustCompile("app_id app-1, token ([0-9a-f]{32})").FindStringSubmatch(out)
			if token == nil {
				t.Fatalf("no token in %q", out)
			}
			s := apptest.Serve(t, binary.Path(t), "--database", url, file)
			s.WaitReady(t)
			list := func(token string) []gameRecord {
				var answer struct{ Data []gameRecord }
				a := apptest.Fetch(t, s.URL("game_record?app_id=app-1&token="+token))
				if err := json.Unmarshal(a.Body, &answer); a.Status != 200 || err != nil {
					t.Fatalf("%d %s, %v", a.Status, a.Body, err)
				}
				return answer.Data
			}
			rows := list(token[1])
			if len(rows) != 50 {
				t.Errorf("%d rows, want 50", len(rows))
			}
			for i := 1; i < len(rows); i++ {
				if a, b := rows[i-1], rows[i]; a.Grade > b.Grade || a.Grade == b.Grade && a.Score > b.Score || b.Score == -1 {
					t.Errorf("rows %d and %d: %+v, %+v", i-1, i, a, b)
				}
			}
			if rows := list("another"); len(rows) != 0 {
				t.Errorf("%d rows with another app's token", len(rows))
			}
		})
	}
}
