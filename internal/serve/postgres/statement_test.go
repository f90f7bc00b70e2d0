package postgres

import (
	"math"
	"strings"
	"testing"

	"spillway/internal/serve/feed"
)

func TestWrite(t *testing.T) {
	mixed := []feed.KeyColumn{{Name: "a"}, {Name: "b", Ascending: true}, {Name: "c"}}
	tests := []struct {
		name  string
		key   []feed.KeyColumn
		shape shape
		want  string
	}{
		{"window", keyOf("id"), shape{rows: 256}, `SELECT * FROM (SELECT * FROM (body) AS feed ORDER BY "id" DESC LIMIT 256) AS page ORDER BY "id" DESC LIMIT $2 OFFSET $3`},
		{"after", keyOf("id"), shape{after: true, rows: 16}, `WHERE ("id") < ($2) ORDER BY "id" DESC LIMIT 16) AS page ORDER BY "id" DESC LIMIT $3 OFFSET $4`},
		{"after and until", keyOf("at", "id"), shape{after: true, until: true, rows: 16}, `WHERE ("at", "id") < ($2, $3) AND ("at", "id") >= ($4, $5) ORDER BY "at" DESC, "id" DESC LIMIT 16`},
		{"ascending", []feed.KeyColumn{{Name: "id", Ascending: true}}, shape{after: true, until: true, rows: 16}, `WHERE ("id") > ($2) AND ("id") <= ($3) ORDER BY "id" LIMIT`},
		{"mixed, after", mixed, shape{after: true, rows: 16}, `WHERE "a" <= $2 AND ("a" < $2 OR ("a" = $2 AND ("b" > $3 OR ("b" = $3 AND "c" < $4)))) ORDER BY "a" DESC, "b", "c" DESC LIMIT`},
		{"mixed, until", mixed, shape{until: true, rows: 16}, `WHERE "a" >= $2 AND ("a" > $2 OR ("a" = $2 AND ("b" < $3 OR ("b" = $3 AND "c" >= $4)))) ORDER BY`},
		{"keys only", keyOf("at", `i"d`), shape{keysOnly: true, rows: 16}, `SELECT "at", "i""d" FROM (SELECT "at", "i""d" FROM (body) AS feed ORDER BY "at" DESC, "i""d" DESC LIMIT 16) AS page`},
	}
	for _, test := range tests {
		w := writer{def: feed.Definition{Key: test.key}, body: "body", used: 1}
		if got := w.write(test.shape); !strings.Contains(got, test.want) {
			t.Errorf("%s:\n%s\ndoes not hold\n%s", test.name, got, test.want)
		}
	}
}

func TestPowerOfTwo(t *testing.T) {
	for n, want := range map[int]int{0: 16, 1: 16, 16: 16, 17: 32, 200: 256, 256: 256, 257: 512, 1 << 40: 1 << 40, math.MaxInt: 1 << 62} {
		if got := powerOfTwo(n); got != want {
			t.Errorf("powerOfTwo(%d) = %d, want %d", n, got, want)
		}
	}
}

// Two texts never share a name, and a name is short enough for the server.
func TestStatementName(t *testing.T) {
	a, b := newStatement("SELECT 1", nil), newStatement("SELECT 2", nil)
	if a.name == b.name || a.name != newStatement("SELECT 1", nil).name {
		t.Errorf("names %s and %s", a.name, b.name)
	}
	if len(a.name) > 63 {
		t.Errorf("name %s is too long", a.name)
	}
}
