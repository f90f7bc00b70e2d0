package spool

import (
	"bytes"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway/internal/serve/queue"
)

// A sealed group can be opened, but not under another name or sequence, or with any byte
// changed.
func TestSeal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"/a", "/b", ""}).Draw(t, "name")
		sequence := rapid.Uint64Range(1, 1<<40).Draw(t, "sequence")
		at := place{epoch: [16]byte{7}, number: rapid.Uint64Range(1, sequence).Draw(t, "number")}
		var entries []queue.Entry
		for range rapid.IntRange(0, 4).Draw(t, "entries") {
			e := queue.Entry{
				Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"), Rows: rapid.IntRange(0, 9).Draw(t, "rows"),
				At: time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "at")), Key: rapid.SampledFrom([]string{"", "k", "é\x00"}).Draw(t, "key"),
			}
			if e.Key != "" {
				e.Fingerprint, e.Expires = sha256.Sum256(e.Payload), e.At.Add(time.Hour)
			}
			entries = append(entries, e)
		}
		sealed := seal(name, sequence, at, entries)
		group, err := sealed.open()
		if err != nil {
			t.Fatal(err)
		}
		if got := (place{group.Epoch, group.Number}); got != at || group.Sum == [16]byte{} {
			t.Fatalf("place %+v, want %+v; sum %x", got, at, group.Sum)
		}
		same := cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })
		if diff := cmp.Diff(entries, group.Entries, same); diff != "" {
			t.Fatalf("entries (-want +got):\n%s", diff)
		}
		for _, change := range []func(*sealedGroup){
			func(g *sealedGroup) { g.name += "x" },
			func(g *sealedGroup) { g.sequence++ },
			func(g *sealedGroup) { g.payload = append(bytes.Clone(g.payload), 0) },
			func(g *sealedGroup) {
				g.payload = bytes.Clone(g.payload)
				g.payload[rapid.IntRange(0, len(g.payload)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			},
		} {
			g := sealed
			change(&g)
			if _, err := g.open(); err == nil {
				t.Fatalf("opened although changed: %+v", g)
			}
		}
	})
}

// Damaged or hostile bytes cause an error, no panic, and no allocation beyond their size.
func FuzzGroup(f *testing.F) {
	entries := []queue.Entry{{Payload: []byte("x"), Key: "k"}, {}}
	f.Add(seal("/a", 1, place{epoch: [16]byte{7}, number: 1}, entries).payload)
	f.Add(append([]byte{payloadVersion, 17: 1}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := sealedGroup{name: "/a", sequence: 1, payload: data}
		g.sum = g.checksum()
		group, err := g.open()
		if err == nil && len(group.Entries) > len(data) {
			t.Errorf("%d entries in %d bytes", len(group.Entries), len(data))
		}
	})
}
