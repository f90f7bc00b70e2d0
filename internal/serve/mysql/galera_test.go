//go:build galera

package mysql

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// sameIdentity checks that all nodes of a cluster name the same database.
func sameIdentity(t *testing.T, urls []string) {
	t.Helper()
	first, err := open(t, urls[0], database.Pool{}).Identity(t.Context())
	for _, url := range urls[1:] {
		identity, errNext := open(t, url, database.Pool{}).Identity(t.Context())
		if err := errors.Join(err, errNext); err != nil || identity != first {
			t.Errorf("%q and %q, %v", first, identity, err)
		}
	}
}

// What a node has acknowledged survives its loss. Two nodes that store one batch, the same
// group of a spool, or one key at the same time store it once: the conflict that a node
// finds at COMMIT is retried.
func TestGalera(t *testing.T) {
	cluster := apptest.Galera(t, "--innodb-flush-log-at-trx-commit=0")
	url := func(node int) string { return cluster.Nodes[node].URL("test") }
	mustExecute(t, url(0), strings.Replace(notesTable, " UNIQUE", "", 1))
	var sinks []*Stream
	var schema *stream.Schema
	for node := range cluster.Nodes {
		sink, s := notes(t, url(node), database.Pool{})
		sinks, schema = append(sinks, sink), s
		if err := sink.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sameIdentity(t, []string{url(0), url(1), url(2)})
	const rounds = 40
	retries := 0
	for round := range rounds {
		makes := []func(id int) *stream.Batch{
			func(id int) *stream.Batch { return notesOf(t, schema, byte(round), fmt.Sprintf(`{"id":%d}`, id)) },
			func(id int) *stream.Batch {
				return marked(notesOf(t, schema, 0, fmt.Sprintf(`{"id":%d}`, id)), 1, uint64(round+1), byte(round))
			},
			func(id int) *stream.Batch {
				b := notesOf(t, schema, byte(round), fmt.Sprintf(`{"id":%d}`, id))
				b.Requests[0].Key = fmt.Sprint("key", round)
				return b
			},
		}
		for kind, makeBatch := range makes {
			var mu sync.Mutex
			var group sync.WaitGroup
			for node := range 2 {
				b := makeBatch(round*10 + kind)
				if kind == 2 {
					b.ID[1] = byte(node + 1) // two requests that only their key connects
				}
				group.Go(func() {
					n := commitUntilStored(t, sinks[node], b)
					mu.Lock()
					retries += n
					mu.Unlock()
				})
			}
			group.Wait()
		}
	}
	t.Logf("%d retries", retries)
	check := func(node int) {
		t.Helper()
		apptest.Await(t, "all records are there", func() bool { return value(t, url(node), "SELECT COUNT(*) FROM notes") == fmt.Sprint(3*rounds) })
	}
	check(2)
	last := notesOf(t, schema, 255, `{"id":100000}`)
	commitUntilStored(t, sinks[0], last)
	cluster.Nodes[0].Kill()
	for node := 1; node < 3; node++ {
		apptest.Await(t, "the acknowledged record survives", func() bool {
			rows, err := streamRows(t.Context(), url(node), "SELECT COUNT(*) FROM notes WHERE id = 100000")
			return err == nil && rows[0][0] == "1"
		})
	}
	commitUntilStored(t, sinks[1], notesOf(t, schema, 254, `{"id":100001}`))
	if err := cluster.Nodes[0].Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the node has caught up", func() bool {
		rows, err := streamRows(t.Context(), url(0), "SELECT COUNT(*) FROM notes")
		return err == nil && rows[0][0] == fmt.Sprint(3*rounds+2)
	})
}

// commitUntilStored retries a batch as a stream does, and returns how often.
func commitUntilStored(t testing.TB, sink *Stream, b *stream.Batch) int {
	t.Helper()
	late := time.Now().Add(time.Minute)
	for n := 0; ; n++ {
		err := sink.Commit(t.Context(), b)
		if err == nil {
			if r := b.Requests[0].Result.Refused; len(r) > 0 {
				t.Errorf("refused: %+v", r)
			}
			return n
		}
		if !isAgain(err) || time.Now().After(late) {
			t.Errorf("after %d attempts: %v", n+1, err)
			return n
		}
		b.Reset()
	}
}

func isAgain(err error) bool {
	return errors.Is(err, stream.ErrTransient) || errors.Is(err, stream.ErrUnconfirmed)
}
