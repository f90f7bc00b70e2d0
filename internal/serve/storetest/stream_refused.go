package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// testStreamNeighbours sends many small requests at once. Some contain records that only
// the database can refuse: an existing id, a failed check, a missing parent.
func testStreamNeighbours(t *testing.T, b StreamBackend) {
	db := b.open(t)
	db.exec(t, "INSERT INTO readings (id, device, note) VALUES (1000000, 1, 'taken')")
	s := db.stream(t, readings(), func(c *stream.Config) { c.Committers = 2 })
	const clients, each = 60, 5
	bad := map[int]string{3: `"id":1000000`, 7: `"id":7000,"note":"bad"`, 11: `"id":11000,"device":99`, 12: `"id":12000,"device":"x"`}
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for round := range each {
				id := 1 + client*each*2 + round*2
				first := fmt.Sprintf(`"id":%d,"device":1`, id)
				wrong, isBad := bad[client]
				if isBad {
					first = wrong
				}
				key := ""
				if client%2 == 0 {
					key = fmt.Sprintf("n-%d-%d", client, round)
				}
				o := send(t, s, key, fmt.Sprintf("{%s}\n{\"id\":%d,\"note\":\"good\"}", first, id+1))
				switch {
				case !isBad && (o.Stored != 2 || len(o.Refused) > 0):
					t.Errorf("client %d: a good request's outcome is %+v", client, o)
				case isBad && (o.Stored != 1 || len(o.Refused) != 1 || o.Refused[0].Index != 0 || o.Refused[0].Reason == ""):
					t.Errorf("client %d: a bad record's outcome is %+v", client, o)
				}
			}
		})
	}
	group.Wait()
	want := (clients-len(bad))*each*2 + len(bad)*each + 1
	if got := db.column(t, "SELECT count(*) FROM readings"); got != fmt.Sprint(want) {
		t.Errorf("%s rows, want %d", got, want)
	}
	if stats := s.Stats(); int(stats.Stored) != want-1 || int(stats.RefusedDatabase) != 3*each || int(stats.RefusedSchema) != each ||
		stats.Failed != 0 {
		t.Errorf("stats %+v", stats)
	}
	// All of a batch refused, and one alone.
	var body strings.Builder
	for i := range 100 {
		fmt.Fprintf(&body, "{\"id\":%d,\"note\":\"bad\"}\n", 20000+i)
	}
	if o := send(t, s, "", body.String()); o.Stored != 0 || len(o.Refused) != 100 {
		t.Errorf("100 bad records: %d stored, %d refused", o.Stored, len(o.Refused))
	}
	o := send(t, s, "", `{"id":1000000}`)
	if o.Stored != 0 || len(o.Refused) != 1 || strings.Contains(o.Refused[0].Reason, "secret") {
		t.Errorf("one bad record: %+v", o)
	}
	t.Logf("the database says: %s", o.Refused[0].Reason)
}

// testStreamUniqueKey stores records whose key exists.
func testStreamUniqueKey(t *testing.T, b StreamBackend) {
	db := b.Open(t, streamPool)
	db.exec(t, fmt.Sprintf("CREATE TABLE keyed (a %s NOT NULL, b %s NOT NULL, serial %s NOT NULL, v %s, UNIQUE (a, b), UNIQUE (serial))",
		b.Types[stream.Integer], b.Types[stream.Integer], b.Types[stream.Integer], b.Types[stream.Integer]))
	def := stream.Definition{Name: "/keyed", Table: "keyed", Key: []string{"a", "b"}, Columns: []stream.Column{
		{Name: "a", Type: stream.Integer, Required: true},
		{Name: "b", Type: stream.Integer, Required: true},
		{Name: "serial", Type: stream.Integer, Required: true},
		{Name: "v", Type: stream.Integer},
	}}
	s := db.stream(t, def, nil)
	steps := []struct {
		body    string
		stored  int
		refused []int
	}{
		{`{"a":1,"b":1,"serial":1,"v":1}` + "\n" + `{"a":1,"b":2,"serial":2,"v":2}`, 2, nil},
		{`{"a":1,"b":1,"serial":3,"v":9}` + "\n" + `{"a":2,"b":1,"serial":4,"v":3}`, 2, nil},       // the first exists and stays unchanged
		{`{"a":3,"b":1,"serial":5,"v":4}` + "\n" + `{"a":3,"b":1,"serial":6,"v":5}`, 2, nil},       // twice in one request
		{`{"a":4,"b":1,"serial":1,"v":6}` + "\n" + `{"a":5,"b":1,"serial":7,"v":7}`, 1, []int{0}},  // another unique index
		{`{"a":6,"b":1,"serial":8,"v":8}` + "\n" + `{"a":7,"b":1,"serial":8,"v":10}`, 1, []int{1}}, // likewise, in one request
	}
	for _, step := range steps {
		o := send(t, s, "", step.body)
		var refused []int
		for _, r := range o.Refused {
			refused = append(refused, r.Index)
		}
		if o.Stored != step.stored || !slices.Equal(refused, step.refused) {
			t.Errorf("%s: %+v, want %d stored and %v refused", step.body, o, step.stored, step.refused)
		}
	}
	if got := db.column(t, "SELECT v FROM keyed ORDER BY a, b"); got != "1,2,3,4,7,8" {
		t.Errorf("stored %s", got)
	}
}

// testStreamIdempotencyKey sends requests again, through the same stream and another.
func testStreamIdempotencyKey(t *testing.T, b StreamBackend) {
	db := b.open(t)
	first := db.stream(t, readings(), nil)
	second := db.stream(t, readings(), nil)
	body := "{\"id\":1}\n{\"id\":2,\"note\":\"bad\"}\n{\"id\":\"x\"}"
	want := send(t, first, "key", body)
	if want.Stored != 1 || len(want.Refused) != 2 || want.Replayed {
		t.Fatalf("outcome %+v", want)
	}
	for name, s := range map[string]*stream.Stream{"the same stream": first, "another": second} {
		if got := send(t, s, "key", body); !got.Replayed || got.Stored != 1 || !slices.Equal(got.Refused, want.Refused) {
			t.Errorf("again, through %s: %+v, want %+v", name, got, want)
		}
		if _, err := trySend(t, s, "key", `{"id":3}`); !errors.Is(err, queue.ErrKeyReused) {
			t.Errorf("another body, through %s: %v", name, err)
		}
	}
	for i, key := range []string{"KEY", "key ", " key", "k\u00e9y'--", "ké\"y"} {
		if o := send(t, first, key, fmt.Sprintf(`{"id":%d}`, 10+i)); o.Replayed || o.Stored != 1 {
			t.Errorf("the key %q is another one: %+v", key, o)
		}
	}
	// A key without anything to store is remembered too.
	if o := send(t, first, "empty", `{"id":"x"}`); o.Stored != 0 || len(o.Refused) != 1 {
		t.Errorf("nothing to store: %+v", o)
	}
	if o := send(t, second, "empty", `{"id":"x"}`); !o.Replayed || len(o.Refused) != 1 {
		t.Errorf("nothing to store, again: %+v", o)
	}
	// A key belongs to the table, whatever the path. Other tables have keys of their own, and an
	// expired key is free.
	other := readings()
	other.Name = "/other"
	if o, err := trySend(t, db.stream(t, other, nil), "key", `{"id":20}`); !errors.Is(err, queue.ErrKeyReused) {
		t.Errorf("the key at another path of the table, with another body: %+v, %v", o, err)
	}
	db.exec(t, "CREATE TABLE others (id integer, device integer, note varchar(20))")
	other.Table = "others"
	if o := send(t, db.stream(t, other, nil), "key", `{"id":20}`); o.Replayed || o.Stored != 1 {
		t.Errorf("another table's key: %+v", o)
	}
	short := db.stream(t, readings(), func(c *stream.Config) { c.KeyTTL = 1 })
	send(t, short, "short", `{"id":30}`)
	o, err := trySend(t, short, "short", `{"id":31}`)
	for errors.Is(err, queue.ErrKeyReused) { // the database's clock shows the same time still
		o, err = trySend(t, short, "short", `{"id":31}`)
	}
	if err != nil || o.Replayed || o.Stored != 1 {
		t.Errorf("an expired key: %+v, %v", o, err)
	}
}

// testStreamNames stores records in a table whose names need quotes.
func testStreamNames(t *testing.T, b StreamBackend) {
	db := b.open(t)
	const sql = `CREATE TABLE "order-lines" ("order id" integer NOT NULL PRIMARY KEY, "unit price" decimal(10,2), "2nd $note" varchar(20))`
	if db.Exec(t.Context(), sql) != nil { // the database has other quotes
		db.exec(t, strings.ReplaceAll(sql, `"`, "`"))
	}
	def := stream.Definition{Name: "/lines", Table: "order-lines", Key: []string{"order id"}, OrderBy: "order id"}
	for name, kind := range map[string]stream.Type{"order id": stream.Integer, "unit price": stream.Decimal, "2nd $note": stream.Text} {
		def.Columns = append(def.Columns, stream.Column{Name: name, Type: kind, Required: true})
	}
	s := db.stream(t, def, nil)
	for range 2 {
		if o := send(t, s, "", `{"order id":1,"unit price":"1.25","2nd $note":"x"}`); o.Stored != 1 || len(o.Refused) != 0 {
			t.Errorf("%+v", o)
		}
	}
}

// testStreamKeyRace sends one request from many clients at once, through two streams.
func testStreamKeyRace(t *testing.T, b StreamBackend) {
	db := b.open(t)
	streams := []*stream.Stream{db.stream(t, readings(), nil), db.stream(t, readings(), nil)}
	for round := range 10 {
		var group sync.WaitGroup
		fresh := make(chan bool, 20)
		for client := range 20 {
			group.Go(func() {
				o := send(t, streams[client%2], fmt.Sprint("race-", round), fmt.Sprintf("{\"id\":%d}", round))
				if o.Stored != 1 {
					t.Errorf("outcome %+v", o)
				}
				fresh <- !o.Replayed
			})
		}
		group.Wait()
		close(fresh)
		stored := 0
		for f := range fresh {
			if f {
				stored++
			}
		}
		if stored != 1 {
			t.Errorf("%d clients were told that they were the first", stored)
		}
	}
	if got := db.column(t, "SELECT count(*) FROM readings"); got != "10" {
		t.Errorf("%s rows, want 10", got)
	}
}
