package storetest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"spillway/internal/serve/stream"
)

var update = flag.Bool("update", false, "write the tables of the documents anew")

// PairsDocument compares the table of a database's pairs in docs/columns.md, which begins with a comment
// that names the database.
func PairsDocument(t *testing.T, database string, pairs []stream.Pair) {
	t.Helper()
	const file = "../../../docs/columns.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| stream | column of the table | values that are accepted | in `key` | with `round: true` |\n|---|---|---|---|---|\n")
	for _, p := range pairs {
		cells := []string{"`" + string(p.Type) + "`", p.Column, p.When, "yes", p.Round}
		if p.When == "" {
			cells[2] = "all"
		}
		if !p.Key {
			cells[3] = "no"
		}
		fmt.Fprintf(&table, "| %s |\n", strings.Join(cells, " | "))
	}
	start := "<!-- " + database + ": written by go test ./internal/serve/" + database + " -run TestPairsDocument -update -->\n\n"
	before, rest, found := strings.Cut(string(text), start)
	old, after, _ := strings.Cut(rest, "\n\n")
	switch {
	case !found:
		t.Fatalf("%s has no line %s", file, start)
	case strings.TrimRight(old, "\n")+"\n" == table.String():
	case *update:
		if after != "" {
			after = "\n" + after
		}
		if err := os.WriteFile(file, []byte(before+start+table.String()+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the table of the code; run go test with -update:\n%s", file, table.String())
	}
}
