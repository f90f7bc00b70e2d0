package storetest

import (
	"errors"
	"strings"
	"testing"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// firstError returns the error of making a feed, of checking it, or of its first read.
func firstError(t testing.TB, db DB, def feed.Definition) error {
	t.Helper()
	source, err := db.Source(def)
	if err != nil {
		return err
	}
	_, readErr := tryRead(t, source, feed.Range{Limit: 10})
	checkErr := source.Check(t.Context(), 10)
	if (readErr == nil) != (checkErr == nil) {
		t.Errorf("%s: Read says %v, Check says %v", def.SQL, readErr, checkErr)
	}
	return readErr
}

// testDefinition defines feeds with a mistake. The error must name it.
func testDefinition(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	fillItems(t, db, 3, 2)
	tests := []struct {
		name string
		def  feed.Definition
		want string
	}{
		{"key is not selected", definition("SELECT grp, name FROM items", "id"), "id"},
		{"second key column is not selected", definition("SELECT id FROM items", "id", "grp"), "grp"},
		{"key selected twice", definition("SELECT a.id, b.id, a.grp FROM items a JOIN items b ON a.id = b.id", "id"), "id"},
		{"another column selected twice", definition("SELECT id, name, grp AS name FROM items", "id"), "name"},
		{"no such table", definition("SELECT id FROM no_such_table", "id"), "no_such_table"},
		{"no such column", definition("SELECT id, no_such_column FROM items", "id"), "no_such_column"},
		{"no SELECT", definition("SELEKT id FROM items", "id"), ""},
		{"parameter without a type", definition(selectItems+" WHERE grp = :mystery", "id"), "mystery"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := firstError(t, db, test.def)
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not name %s", err, test.want)
			}
			if errors.Is(err, feed.ErrCursor) {
				t.Errorf("error %q blames the cursor", err)
			}
		})
	}
	// A column's name may need quotes, in SQL and in JSON.
	odd := definition(`SELECT id AS "the ""Id""", grp AS "select" FROM items`, `the "Id"`, "select asc")
	rows := read(t, db.source(t, odd), feed.Range{Limit: 1})
	if got, want := string(rows.Data), `{"the \"Id\"":3,"select":1}`; got != want {
		t.Errorf("odd names: %s, want %s", got, want)
	}
	next := read(t, db.source(t, odd), feed.Range{After: rows.Keys[0], Limit: 1})
	if got, want := string(next.Data), `{"the \"Id\"":2,"select":0}`; got != want {
		t.Errorf("odd names: %s, want %s", got, want)
	}
}

// testNullKey reads rows whose key is NULL.
func testNullKey(t *testing.T, b Backend) {
	db := b.Open(t, patient(database.Pool{}))
	db.exec(t, "CREATE TABLE nulls (id "+b.Types[Integer]+")")
	db.exec(t, "INSERT INTO nulls VALUES (1)")
	db.exec(t, "INSERT INTO nulls VALUES (NULL)")
	source := db.source(t, definition("SELECT id FROM nulls", "id"))
	r := feed.Range{Limit: 10}
	if rows, err := tryRead(t, source, r); err == nil || !strings.Contains(err.Error(), "NULL") || errors.Is(err, feed.ErrCursor) {
		t.Errorf("read: %s, %v", rows.Data, err)
	}
	if walk, err := source.Keys(t.Context(), r, 1); err == nil || !strings.Contains(err.Error(), "NULL") {
		t.Errorf("keys: %+v, %v", walk, err)
	}
}

// testRejectedValue passes a value that a function does not accept. Without parameters the
// same error is not the request's.
func testRejectedValue(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	fillItems(t, db, 3, 2)
	def := definition(selectItems+" WHERE id < abs(:n)", "id")
	def.Params = []param.Param{{Name: "n", Type: param.Integer}}
	source := db.source(t, def)
	const least = "-9223372036854775808" // its absolute value needs 65 bits
	for range 2 {
		if rows, err := tryRead(t, source, feed.Range{Args: []string{least}, Limit: 5}); !errors.Is(err, param.ErrValue) ||
			errors.Is(err, feed.ErrCursor) {
			t.Errorf("read: %s, %v", rows.Data, err)
		}
		if walk, err := source.Keys(t.Context(), feed.Range{Args: []string{least}, Limit: 5}, 1); !errors.Is(err, param.ErrValue) {
			t.Errorf("keys: %+v, %v", walk, err)
		}
		if got := ids(t, source, feed.Range{Args: []string{"-3"}, Limit: 5}); len(got) != 2 {
			t.Errorf("a good value: ids %v", got)
		}
	}
	own := db.source(t, definition(selectItems+" WHERE id < abs("+least+" - grp + grp)", "id"))
	if rows, err := tryRead(t, own, feed.Range{Limit: 5}); errors.Is(err, param.ErrValue) {
		t.Errorf("the statement's own value is the request's: %s, %v", rows.Data, err)
	}
}

// testForgedKey passes keys that are not from the feed.
func testForgedKey(t *testing.T, b Backend) {
	db := b.open(t, database.Pool{})
	fillItems(t, db, 3, 2)
	one := db.source(t, definition(selectItems, "id"))
	two := db.source(t, definition(selectItems, "grp", "id"))
	key := func(kind feed.KeyKind, text string) feed.Key {
		return feed.Key(feed.AppendKey(nil, kind, []byte(text)))
	}
	good := read(t, one, feed.Range{Limit: 1}).Keys[0]
	tests := []struct {
		name   string
		source feed.Source
		key    feed.Key
	}{
		{"noise", one, "nonsense"},
		{"cut short", one, good[:len(good)-1]},
		{"text for an integer", one, key(feed.KeyText, "abc")},
		{"integer that is none", one, key(feed.KeyInteger, "1 OR 1=1")},
		{"integer of 65 bits", one, key(feed.KeyInteger, "9223372036854775808")},
		{"empty integer", one, key(feed.KeyInteger, "")},
		{"two values for one", one, good + good},
		{"one value for two", two, good},
		{"second value bad", two, good + key(feed.KeyText, "abc")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, r := range []feed.Range{{After: test.key, Limit: 5}, {Until: test.key, Limit: 5}} {
				if rows, err := tryRead(t, test.source, r); !errors.Is(err, feed.ErrCursor) {
					t.Errorf("read: %s, %v", rows.Data, err)
				}
				if walk, err := test.source.Keys(t.Context(), r, 1); !errors.Is(err, feed.ErrCursor) {
					t.Errorf("keys: %+v, %v", walk, err)
				}
			}
		})
	}
	if got := ids(t, one, feed.Range{After: good, Limit: 5}); len(got) != 2 {
		t.Errorf("after all that: ids %v", got)
	}
}
