package storetest

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/stream"
)

// PairsDocumented compares the table of a database's pairs in docs/reference/columns.md with the pairs, or writes
// it.
func PairsDocumented(t *testing.T, database string, pairs []stream.Pair, update bool) {
	t.Helper()
	var table strings.Builder
	table.WriteString("| type | column | values | in `key` | `round: true` |\n|---|---|---|---|---|\n")
	for _, p := range pairs {
		key := "no"
		if p.Key {
			key = "yes"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", p.Type, p.Column, cmp.Or(p.When, "all"), key, cmp.Or(p.Round, "no effect"))
	}
	apptest.Generated(t, "../../../docs/reference/columns.md", "pairs of "+database, table.String(), update)
}
