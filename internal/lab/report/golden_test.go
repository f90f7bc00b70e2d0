package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/lab/result"
)

// go test ./internal/lab/report -update writes the golden files anew.
func updateGolden() bool { return flag.Lookup("update").Value.String() == "true" }

var _ = flag.Bool("update", false, "write the golden files anew")

func written(t testing.TB, format Format, runs ...*result.Run) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, format, runs); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if updateGolden() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestGolden(t *testing.T) {
	staged, compare, sweep, single := stagedRun(t), compareRuns(t), sweepRun(t), singleRun(t)
	golden(t, "staged.txt", written(t, Text, staged))
	golden(t, "staged.md", written(t, Markdown, staged))
	golden(t, "staged.json", written(t, JSON, staged))
	golden(t, "staged.csv", written(t, CSV, staged))
	golden(t, "staged.seconds.csv", written(t, CSVSeconds, staged))
	golden(t, "staged.bench", written(t, Bench, staged))
	golden(t, "compare.txt", written(t, Text, compare...))
	golden(t, "compare.json", written(t, JSON, compare...))
	golden(t, "sweep.txt", written(t, Text, sweep))
	golden(t, "single.txt", written(t, Text, single))
}
