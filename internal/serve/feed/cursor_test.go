package feed

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCursorRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "columns")
		var raw []byte
		var want []KeyValue
		for range n {
			v := KeyValue{
				Kind: rapid.SampledFrom([]KeyKind{KeyInteger, KeyReal, KeyText, KeyBlob}).Draw(t, "kind"),
				Text: rapid.StringN(0, 60, 200).Draw(t, "text"),
			}
			want = append(want, v)
			raw = AppendKey(raw, v.Kind, []byte(v.Text))
		}
		cursor := string(appendCursor(nil, 7, Key(raw)))
		got, err := parseCursor(cursor, 7, n)
		if err != nil || string(got) != string(raw) {
			t.Fatalf("parseCursor = %q, %v; want %q", got, err, raw)
		}
		if fits := cursorFits(Key(raw), len(cursor)); !fits || cursorFits(Key(raw), len(cursor)-1) {
			t.Fatalf("a cursor of %d characters fits %d: %v", len(cursor), len(cursor), fits)
		}
		values, err := got.Values(n)
		if err != nil {
			t.Fatal(err)
		}
		for i := range values {
			if values[i] != want[i] {
				t.Fatalf("value %d = %v, want %v", i, values[i], want[i])
			}
		}
		if _, err := parseCursor(cursor, 8, n); !errors.Is(err, ErrCursor) {
			t.Fatalf("another feed's cursor: %v", err)
		}
		if _, err := parseCursor(cursor, 7, n+1); !errors.Is(err, ErrCursor) {
			t.Fatalf("a cursor of fewer columns: %v", err)
		}
		// Every change of one character is detected.
		i := rapid.IntRange(0, len(cursor)-1).Draw(t, "position")
		c := rapid.SampledFrom([]byte("ABCabc012-_ %")).Draw(t, "character")
		if damaged := cursor[:i] + string(c) + cursor[i+1:]; damaged != cursor {
			if _, err := parseCursor(damaged, 7, n); !errors.Is(err, ErrCursor) {
				t.Fatalf("damaged cursor %q: %v", damaged, err)
			}
		}
	})
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := Definition{Name: "/a", Key: []KeyColumn{{Name: "id"}}}
	seen := map[uint32]string{base.fingerprint(): "base"}
	for name, d := range map[string]Definition{
		"other name":   {Name: "/b", Key: []KeyColumn{{Name: "id"}}},
		"other column": {Name: "/a", Key: []KeyColumn{{Name: "no"}}},
		"other order":  {Name: "/a", Key: []KeyColumn{{Name: "id", Ascending: true}}},
		"more columns": {Name: "/a", Key: []KeyColumn{{Name: "id"}, {Name: "no"}}},
	} {
		if other, twice := seen[d.fingerprint()]; twice {
			t.Errorf("%s has the fingerprint of %s", name, other)
		}
		seen[d.fingerprint()] = name
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("")
	f.Add(string(appendCursor(nil, 7, key(42))))
	f.Add(strings.Repeat("A", CursorMax+1))
	f.Fuzz(func(t *testing.T, cursor string) {
		k, err := parseCursor(cursor, 7, 1)
		if err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Errorf("error %v does not wrap ErrCursor", err)
			}
			return
		}
		if again := string(appendCursor(nil, 7, k)); again != cursor {
			t.Errorf("cursor %q has a second form %q", cursor, again)
		}
	})
}

func FuzzKeyValues(f *testing.F) {
	f.Add([]byte(key(1)), 1)
	f.Fuzz(func(t *testing.T, raw []byte, n int) {
		if n < 0 || n > 16 {
			return
		}
		if v, err := Key(raw).Values(n); err == nil && len(v) != n {
			t.Errorf("%d values, want %d", len(v), n)
		}
	})
}
