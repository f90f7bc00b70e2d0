package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/stream"
)

// sendBack reads the table by feeds, in every format and time zone, and sends the rows to a stream into another table
// with the same columns. Both tables must be equal.
func (c ExactColumn) sendBack(t *testing.T, db StreamDB, b StreamBackend, table string, kind stream.Type, random *rand.Rand) {
	exact := slices.IndexFunc(c.Types, func(t stream.Type) bool { return t != stream.Integer })
	if kind == c.Types[max(0, exact)] {
		for i, literal := range c.Literals {
			db.exec(t, fmt.Sprintf("INSERT INTO %s VALUES (%d, %s)", table, 1_000_000+i, literal))
		}
	}
	other := table + "r"
	if kind == c.Types[0] {
		db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL, v %s NOT NULL)%s", other, b.Types[stream.Integer], c.SQL, c.Table))
	}
	if returned, ok := c.Returns[kind]; ok && returned == "" {
		return // no stream does
	} else if ok {
		kind = returned
	}
	to := b.pairDefinition(other, kind)
	if err := db.check(t, to); err != nil {
		to.Columns[1].Round = true
	}
	s := db.stream(t, to, nil)
	def := definition("SELECT id, v FROM "+table, "id")
	want := c.contents(t, db, table, kind)
	for zone, open := range db.Feeds {
		for format := range 4 {
			if testing.Short() && len(c.Literals) == 0 && random.IntN(6) > 0 {
				continue // the long test tries each
			}
			def.RFC3339, def.NumbersAsText = format&1 != 0, format&2 != 0
			source, err := open(def)
			if err != nil {
				t.Fatal(err)
			}
			rows := read(t, source, feed.Range{Limit: 100_000})
			db.exec(t, "DELETE FROM "+other)
			body := "[" + string(rows.Data) + "]"
			limits := stream.Limits{Bytes: 64 << 20, Records: 100_000, Depth: 32, Fields: 1000}
			records, refused, err := s.Schema().Parse([]byte(body), stream.FormJSON, time.Now(), limits)
			if err != nil {
				t.Fatal(err)
			}
			outcome, err := store(t.Context(), s, stream.Request{Records: records, Refused: refused})
			if err != nil {
				t.Fatal(err)
			}
			what := fmt.Sprintf("%s, rfc3339 %v, text %v, zone %d", kind, def.RFC3339, def.NumbersAsText, zone)
			for i, r := range outcome.Refused {
				if i < 3 {
					t.Errorf("%s: %s is refused: %s", what, rows.Slice(r.Index, r.Index+1), r.Reason)
				}
			}
			got := c.contents(t, db, other, kind)
			for i, n := 0, 0; i < len(want) && i < len(got) && len(outcome.Refused) == 0 && n < 3; i++ {
				if want[i] != got[i] {
					n++
					t.Errorf("%s: %s became %s", what, want[i], got[i])
				}
			}
		}
	}
}

// contents returns the rows of a table as text.
func (c ExactColumn) contents(t *testing.T, db StreamDB, table string, kind stream.Type) []string {
	read := "v"
	if c.Read != "" {
		read = c.Read
	}
	if c.Hex != "" {
		read = c.Hex
	}
	var list []string
	for _, row := range db.rows(t, "SELECT id, "+read+" FROM "+table+" ORDER BY id") {
		if kind == stream.JSON { // white space around it does not matter
			row[1] = strings.TrimSpace(row[1])
		}
		list = append(list, strings.Join(row, " "))
	}
	return list
}
