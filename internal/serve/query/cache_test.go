package query

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestCacheAgainstList compares the cache with a list of names in the order of their last use.
func TestCacheAgainstList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(entryBytes, 20*entryBytes).Draw(t, "limit")
		c := newCache(limit)
		var names []string
		sizes := map[string]int{}
		total := func() (n int) {
			for _, name := range names {
				n += sizes[name]
			}
			return n
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := rapid.StringMatching("[a-e]{1,2}").Draw(t, "name")
			at := slices.Index(names, name)
			if rapid.Bool().Draw(t, "get") {
				if got := c.get([]byte(name)); (got != nil) != (at >= 0) {
					t.Fatalf("get %s: %v, the list has %v", name, got, names)
				}
				if at >= 0 {
					names = append(slices.Delete(names, at, at+1), name)
				}
				continue
			}
			a := &Answer{Data: make([]byte, rapid.IntRange(0, 3*entryBytes).Draw(t, "bytes"))}
			c.put(name, a)
			if size(name, a) > limit {
				continue // not cached; the old entry remains
			}
			if at >= 0 {
				names = slices.Delete(names, at, at+1)
			}
			names = append(names, name)
			for sizes[name] = size(name, a); total() > limit; names = names[1:] {
			}
		}
		if n, used, _ := c.usage(); n != len(names) || used != total() || used > limit {
			t.Fatalf("%d entries of %d bytes, the list has %d of %d", n, used, len(names), total())
		}
	})
}

func FuzzDecodeAnswer(f *testing.F) {
	f.Add("name", encodeAnswer("name", newAnswer([]byte(`{"a":1}`), 1, time.Unix(3, 4), time.Unix(5, 6), FromDatabase)))
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		a, err := decodeAnswer(name, b)
		if err != nil {
			return
		}
		again, err := decodeAnswer(name, encodeAnswer(name, a))
		if err != nil || !bytes.Equal(again.Data, a.Data) || again.Rows != a.Rows || !again.ReadAt.Equal(a.ReadAt) || !again.CameAt.Equal(a.CameAt) {
			t.Fatalf("%+v became %+v, %v", a, again, err)
		}
	})
}

func TestAnswerToAnotherQuestion(t *testing.T) {
	t.Parallel()
	b := encodeAnswer("one", newAnswer([]byte("{}"), 1, time.Unix(3, 4), time.Unix(5, 6), FromDatabase))
	if _, err := decodeAnswer("two", b); err == nil {
		t.Error("the answer to another question was taken")
	}
	if a, err := decodeAnswer("one", b); err != nil || a.Rows != 1 || a.from != FromShared {
		t.Errorf("%+v, %v", a, err)
	}
}
