package watch

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestMeasureClocks checks that the error of an offset is within its bound, however long each way takes.
func TestMeasureClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, name))
		}
		ahead := time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "ahead"))
		asked := time.Unix(1_800_000_000, 0)
		var seen offsets
		shortest := time.Hour
		for range rapid.IntRange(1, exchanges).Draw(t, "exchanges") {
			there, back := span("there"), span("back")
			seen.add(measure(asked, asked.Add(there+back), asked.Add(there+ahead)))
			shortest = min(shortest, there+back)
		}
		got, uncertainty := seen.best()
		if off := (got - ahead).Abs(); off > uncertainty+1 || uncertainty != shortest/2 {
			t.Fatalf("%v ± %v, in truth %v; shortest trip %v", got, uncertainty, ahead, shortest)
		}
	})
}
