package feed_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"spillway/internal/serve/feed"
)

// standard returns the output of encoding/json for s.
func standard(t testing.TB, s []byte) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(string(s)); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func TestAppendString(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "plain", `say "hi"`, `C:\temp`, "a\nb\tc\rd\be\ff", "\x00\x01\x1f\x7f", "naïve 東京 🚢",
		"line\u2028and\u2029paragraph", "<a href='x'>&</a>", "\xff", "ok\xc3", "\xed\xa0\x80tail", "\ufffd kept",
	} {
		want := append([]byte("before"), standard(t, []byte(s))...)
		if got := feed.AppendString([]byte("before"), []byte(s)); !bytes.Equal(got, want) {
			t.Errorf("AppendString(%q) = %s, want %s", s, got, want)
		}
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add([]byte("plain \"quoted\" \u2028 \xff\x00"))
	f.Fuzz(func(t *testing.T, s []byte) {
		if got, want := feed.AppendString(nil, s), standard(t, s); !bytes.Equal(got, want) {
			t.Errorf("AppendString(%q) = %s, want %s", s, got, want)
		}
	})
}

func TestAppendBase64(t *testing.T) {
	t.Parallel()
	for _, b := range [][]byte{{}, {0}, {0, 1}, {0xff, 0xfe, 0xfd}, []byte("a longer run of bytes")} {
		want, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := feed.AppendBase64([]byte("x"), b); string(got) != "x"+string(want) {
			t.Errorf("AppendBase64(%q) = %s, want x%s", b, got, want)
		}
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	dst := make([]byte, 0, 4096)
	text := []byte(strings.Repeat("some \"text\"\u2028\xff\n", 20))
	if n := testing.AllocsPerRun(100, func() {
		dst = feed.AppendString(dst[:0], text)
		dst = feed.AppendBase64(dst, text)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkAppendString(b *testing.B) {
	dst := make([]byte, 0, 4096)
	text := []byte("12 Harbour Street, Rotterdam, warehouse 7")
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = feed.AppendString(dst[:0], text)
	}
}
