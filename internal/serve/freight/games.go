package freight

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"spillway/internal/database"
	"spillway/internal/progress"
)

// Bounds of Games.
const (
	MaxApps    = 100_000
	MaxRecords = 100_000_000
)

// Games identifies one data set of the table game_record: results of matches, with which
// the indexes of a query are compared. Equal values give equal rows on every database.
type Games struct {
	Apps    int    // 1 to MaxApps. With one app every column but game_match_id and score holds one value
	Records int    // 1 to MaxRecords
	Seed    uint64 // of the random numbers; at most 1<<63-1
}

// Validate returns an error that names the first parameter out of bounds by its flag.
func (g Games) Validate() error {
	switch {
	case g.Apps < 1 || g.Apps > MaxApps:
		return fmt.Errorf("--apps must be 1 to %d, not %d", MaxApps, g.Apps)
	case g.Records < 1 || g.Records > MaxRecords:
		return fmt.Errorf("--records must be 1 to %d, not %d", MaxRecords, g.Records)
	case g.Seed > 1<<63-1:
		return fmt.Errorf("--random-seed must be 0 to %d, not %d", uint64(1<<63-1), g.Seed)
	}
	return nil
}

// String writes the parameters as flags.
func (g Games) String() string {
	return fmt.Sprintf("--apps %d --records %d --random-seed %d", g.Apps, g.Records, g.Seed)
}

// GameIndex names the one index that game_record has, if any.
type GameIndex string

// The indexes.
const (
	NoIndex    GameIndex = "none"
	SeedIndex  GameIndex = "seed"
	RightIndex GameIndex = "right"
)

var gameIndexes = map[GameIndex]string{
	SeedIndex:  "prize_grade, score",                // in the order asked for
	RightIndex: "app_id, token, prize_grade, score", // what is compared, then the order
}

// Validate returns an error unless the index is one of those.
func (i GameIndex) Validate() error {
	if gameIndexes[i] == "" && i != NoIndex {
		return fmt.Errorf("--index must be none, seed or right, not %q", string(i))
	}
	return nil
}

// name returns the index's name, "" for none.
func (i GameIndex) name() string {
	if i == NoIndex {
		return ""
	}
	return "game_record_" + string(i) + "_idx"
}

// create returns the statement that builds the index, none for NoIndex.
func (i GameIndex) create() []string {
	if i == NoIndex {
		return nil
	}
	return []string{fmt.Sprintf("CREATE INDEX %s ON %s (%s)", i.name(), gameTable, gameIndexes[i])}
}

const gameTable = "game_record"

func gameColumns() []string {
	return []string{"app_id", "token", "game_match_id", "user_id", "nickname", "device_id", "prize_grade", "start_time", "score"}
}

// record is one row of game_record.
type record struct {
	texts [6]string // app_id to device_id
	grade int
	start int64 // Unix seconds
	score int   // -1: not finished
}

// The ranges over which the rows of a data set with several apps are spread.
const (
	gamesEpoch  = 1_543_622_400 // 2018-12-01, in Unix seconds
	gameGrades  = 5
	gamePlayers = 100_000
	gameScores  = 1_000_000
	unfinished  = 20 // one match in so many
)

// records returns the rows in the order of game_match_id.
func (g Games) records() iter.Seq[record] {
	return func(yield func(record) bool) {
		random := stream(g.Seed, 0)
		for i := 1; i <= g.Records; i++ {
			r := record{
				texts: [6]string{"app-1", gameToken(1), "match-" + strconv.Itoa(i), "player-1", "nickname-1", "device-1"},
				grade: 2, start: gamesEpoch, score: i,
			}
			if g.Apps > 1 {
				app := 1 + int(below(random, uint64(g.Apps)))
				player := strconv.Itoa(1 + int(below(random, gamePlayers)))
				r.texts = [6]string{
					"app-" + strconv.Itoa(app), gameToken(app), r.texts[2], "player-" + player, "nickname-" + player,
					"device-" + player,
				}
				r.grade = 1 + int(below(random, gameGrades))
				r.start += int64(below(random, 365*daySeconds))
				if r.score = int(below(random, gameScores)); below(random, unfinished) == 0 {
					r.score = -1
				}
			}
			if !yield(r) {
				return
			}
		}
	}
}

// gameToken returns an app's token, which is the same in every data set.
func gameToken(app int) string {
	var digits [32]byte
	putHex(digits[:16], mix(uint64(app)))
	putHex(digits[16:], mix(^uint64(app)))
	return string(digits[:])
}

// GameApp returns the app_id and the token of an app by its number, from 1.
func GameApp(number int) (appID, token string) {
	return "app-" + strconv.Itoa(number), gameToken(number)
}

func (g Games) table() table {
	return table{
		name: gameTable, columns: gameColumns(), total: g.Records,
		lines: func() iter.Seq[chunk] { return chunks(g.records(), lineOfRecord) },
	}
}

func lineOfRecord(dst []byte, r record) []byte {
	for _, text := range r.texts {
		dst = append(append(dst, text...), '\t')
	}
	dst = append(appendInt(dst, int64(r.grade)), '\t')
	dst = append(appendInt(dst, r.start), '\t')
	return append(appendInt(dst, int64(r.score)), '\n')
}

// SeedGames creates the data set in the database with one index or none. Both must be valid. It
// keeps Seed's promises. If the same data set exists, it changes only the index.
func SeedGames(ctx context.Context, url database.URL, games Games, index GameIndex, replace bool, meter *progress.Meter) (Outcome,
	error,
) {
	start, d := time.Now(), dialectOf(url.Driver)
	made, err := d.seed(ctx, url, job{
		app: gamesApp(), dataset: games.String(), replace: replace,
		tables:  func() []table { return []table{games.table()} },
		indexes: index.create(),
	}, meter)
	if err != nil {
		return Outcome{}, err
	}
	outcome := Outcome{Made: made, Indexed: made && index != NoIndex}
	if !made {
		outcome.Indexed, err = d.reindex(ctx, url, index, meter)
	}
	outcome.Took = time.Since(start)
	return outcome, err
}

// reindex builds one index of game_record and drops the others.
func (d dialect) reindex(ctx context.Context, url database.URL, index GameIndex, meter *progress.Meter) (changed bool, err error) {
	err = d.within(ctx, url, func(tx transaction) error {
		rows, err := tx.query(ctx, fmt.Sprintf(d.indexes, gameTable))
		if err != nil {
			return fmt.Errorf("list indexes: %w", err)
		}
		there := func(i GameIndex) bool {
			return slices.ContainsFunc(rows, func(row []string) bool { return row[0] == i.name() })
		}
		var statements []string
		if !there(index) {
			statements = append(statements, index.create()...)
		}
		for other := range gameIndexes {
			if other != index && there(other) {
				statements = append(statements, d.dropIndex(gameTable, other.name()))
			}
		}
		if changed = len(statements) > 0; !changed {
			return nil
		}
		return execMetered(ctx, tx, "indexes", append(statements, d.finish(gameTable, false)...), meter)
	})
	if err != nil {
		return false, d.explain(ctx, url, err)
	}
	return changed, nil
}
