package freight

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway/internal/database"
	"spillway/internal/progress"
)

func gameRows(g Games) [][]string {
	var rows [][]string
	for r := range g.records() {
		rows = append(rows, append(append([]string(nil), r.texts[:]...), fmt.Sprint(r.grade), fmt.Sprint(r.start), fmt.Sprint(r.score)))
	}
	return rows
}

// TestGamesGolden pins the rows.
func TestGamesGolden(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		games Games
		want  string
	}{
		{Games{Apps: 1, Records: 1000, Seed: 1}, "130765385741ebe6d1f08ab39f3bbf109c5f12010d3c66236061b6cb538d61e3"},
		{Games{Apps: 20, Records: 1000, Seed: 1}, "53bfe9e047feaad07349b368f0c1b9bbf2fecef59db86296523b16e57ceaa3da"},
	} {
		hash := sha256.New()
		writeRows(hash, gameRows(test.games))
		if got := fmt.Sprintf("%x", hash.Sum(nil)); got != test.want {
			t.Errorf("%s: hash of the rows is %s, want %s", test.games, got, test.want)
		}
	}
}

func TestGamesRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := Games{Apps: rapid.IntRange(1, 30).Draw(t, "apps"), Records: rapid.IntRange(1, 300).Draw(t, "records"), Seed: rapid.Uint64Max(1<<63-1).Draw(t, "seed")}
		if err := g.Validate(); err != nil {
			t.Fatal(err)
		}
		tokens := map[string]string{}
		n := 0
		for r := range g.records() {
			n++
			if known, ok := tokens[r.texts[0]]; ok && known != r.texts[1] || len(r.texts[1]) != 32 {
				t.Fatalf("app %s has the tokens %s and %s", r.texts[0], known, r.texts[1])
			}
			tokens[r.texts[0]] = r.texts[1]
			if r.texts[2] != fmt.Sprintf("match-%d", n) || r.grade < 1 || r.grade > gameGrades || r.score < -1 {
				t.Fatalf("record %d: %+v", n, r)
			}
			if g.Apps == 1 && (r.grade != 2 || r.score != n) {
				t.Fatalf("record %d of one app: %+v", n, r)
			}
		}
		if n != g.Records || len(tokens) > g.Apps {
			t.Fatalf("%d records of %d apps", n, len(tokens))
		}
		appID, token := GameApp(1)
		if known, ok := tokens[appID]; ok && known != token {
			t.Fatalf("the first app's token is %s, want %s", known, token)
		}
	})
}

func TestGamesValidate(t *testing.T) {
	t.Parallel()
	for text, g := range map[string]Games{
		"--apps must be 1 to 100000, not 0":          {Apps: 0, Records: 1},
		"--records must be 1 to 100000000, not 0":    {Apps: 1},
		"--random-seed must be":                      {Apps: 1, Records: 1, Seed: 1 << 63},
		"--apps must be 1 to 100000, not 100001":     {Apps: 100_001, Records: 1},
		"--records must be 1 to 100000000, not 1000": {Apps: 1, Records: 1_000_000_000},
	} {
		if err := g.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want %s", g, err, text)
		}
	}
	if err := GameIndex("best").Validate(); err == nil {
		t.Error("an index named best is there")
	}
}

func (p place) seedGames(t *testing.T, url database.URL, g Games, index GameIndex, want Outcome) {
	t.Helper()
	got, err := SeedGames(context.Background(), url, g, index, false, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if got.Made != want.Made || got.Indexed != want.Indexed {
		t.Errorf("%s --index %s: %+v, want %+v", g, index, got, want)
	}
	rows := p.rows(t, url, "SELECT app_id, token, game_match_id, user_id, nickname, device_id, prize_grade, start_time, score FROM game_record")
	byMatch := map[string][]string{}
	for _, row := range rows {
		byMatch[row[2]] = row
	}
	expected := map[string][]string{}
	for _, row := range gameRows(g) {
		expected[row[2]] = row
	}
	if len(rows) != g.Records || !maps.EqualFunc(expected, byMatch, slices.Equal) {
		t.Fatalf("%d rows (-want +got):\n%s", len(rows), cmp.Diff(expected, byMatch))
	}
	var names []string
	for _, row := range p.rows(t, url, fmt.Sprintf(p.dialect.indexes, gameTable)) {
		names = append(names, row[0])
	}
	if got := strings.Join(names, " "); got != index.name() {
		t.Errorf("--index %s: indexes %q", index, got)
	}
}

func (p place) testGames(t *testing.T) {
	url := p.fresh(t)
	p.seed(t, url, small, false, true) // next to the freight app, which is kept
	g := Games{Apps: 20, Records: 3000, Seed: 5}
	p.seedGames(t, url, g, NoIndex, Outcome{Made: true})
	p.seedGames(t, url, g, NoIndex, Outcome{})
	p.seedGames(t, url, g, SeedIndex, Outcome{Indexed: true})
	p.seedGames(t, url, g, RightIndex, Outcome{Indexed: true})
	p.seedGames(t, url, g, RightIndex, Outcome{})
	other := g
	other.Apps = 1
	if _, err := SeedGames(context.Background(), url, other, SeedIndex, false, quiet()); err == nil || !strings.Contains(err.Error(), "the database contains another data set (--apps 20 --records 3000 --random-seed 5); --replace") {
		t.Errorf("another data set: %v", err)
	}
	if outcome, err := SeedGames(context.Background(), url, other, SeedIndex, true, quiet()); err != nil || !outcome.Made || !outcome.Indexed {
		t.Errorf("another data set, replaced: %+v, %v", outcome, err)
	}
	p.seedGames(t, url, other, SeedIndex, Outcome{})
	p.complete(t, url, small)
	p.seed(t, url, medium, true, true)
	p.complete(t, url, medium)
	p.seedGames(t, url, other, SeedIndex, Outcome{})
}

func (p place) testGamesForeign(t *testing.T) {
	url := p.fresh(t)
	p.exec(t, url, "CREATE TABLE game_record (app_id varchar(9))")
	for _, replace := range []bool{false, true} {
		_, err := SeedGames(context.Background(), url, Games{Apps: 1, Records: 10}, NoIndex, replace, quiet())
		if err == nil || !strings.Contains(err.Error(), `"game_record" belongs to a table that Spillway did not create; use another`) {
			t.Errorf("replace %t: %v", replace, err)
		}
	}
	if got := p.tables(t, url); got != "game_record" {
		t.Errorf("tables %q", got)
	}
}

func (p place) testGamesInterrupted(t *testing.T) {
	url := p.fresh(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	meter := progress.New(trigger{text: "game_record:", do: cancel})
	_, err := SeedGames(ctx, url, Games{Apps: 3, Records: 5000, Seed: 1}, RightIndex, false, meter)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if got := p.tables(t, url); got != "" && !p.stepwise {
		t.Errorf("tables %q are left", got)
	}
}
