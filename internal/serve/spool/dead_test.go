package spool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
)

// refuseAll drains what waits under a name of which the destination refuses every entry.
// Those whose payload begins with "?" are in doubt.
func refuseAll(t *testing.T, s *Spool, name string) {
	t.Helper()
	drainAll(t, s, name, refusing())
}

func refusing() destination {
	return func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
		stored := queue.Stored{Groups: len(groups)}
		for _, g := range groups {
			for _, e := range g.Entries {
				stored.Dead = append(stored.Dead, queue.DeadLetter{
					Name: g.Name, Sequence: g.Sequence, At: e.At, Rows: e.Rows, Reason: "no luck", Payload: e.Payload,
					InDoubt: strings.HasPrefix(string(e.Payload), "?"),
				})
			}
		}
		return stored, nil
	}
}

func deadPayloads(t *testing.T, s *Spool) []string {
	t.Helper()
	var texts []string
	err := s.file.deadLetters(t.Context(), Filter{}, func(l queue.DeadLetter) error {
		texts = append(texts, string(l.Payload))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// sameProcess is the Remote of a spool that this process has open.
type sameProcess struct{ *Spool }

func (s sameProcess) Status(context.Context) ([]NameStats, error) { return s.Spool.Status(), nil }

func (s sameProcess) Export(ctx context.Context, filter Filter, dead bool, out io.Writer) error {
	return s.Spool.Export(ctx, filter, dead, func(p []byte) ([]json.RawMessage, error) { return []json.RawMessage{p}, nil }, out)
}

// testCommand returns the subcommands on a file and what they print.
func testCommand(file string) (Command, *bytes.Buffer) {
	out := &bytes.Buffer{}
	return Command{Path: file, Out: out}, out
}

// The groups that Retry makes are not larger than GroupBytes, unless one dead letter is.
func TestRetryGroupBytes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	cfg := testConfig()
	cfg.GroupBytes = 1000
	s := openAt(t, file, cfg)
	defer closeSpool(t, s)
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprintf("%02d%s", i, strings.Repeat("x", 300+1500*(i%10/9))))
		put(t, s, "/a", want[i])
	}
	refuseAll(t, s, "/a")
	command, out := testCommand(file)
	command.Remote = sameProcess{s}
	if err := command.Retry(t.Context(), Filter{}, false); err != nil || out.String() != "20 dead letters put back\n" {
		t.Errorf("%v, %s", err, out)
	}
	var got []string
	groups := waitingGroups(t, s, "/a")
	for _, g := range groups {
		if got = append(got, payloads(g)...); g.Bytes > 1100 && len(g.Entries) > 1 {
			t.Errorf("a group of %d bytes with %d entries", g.Bytes, len(g.Entries))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(groups) > 12 {
		t.Errorf("%d groups, entries (-want +got):\n%s", len(groups), diff)
	}
	if n := s.Stats().Names[0]; n.Dead != 0 || n.Groups != int64(len(groups)) || n.UsedBytes < n.Bytes+n.Groups*groupBytes {
		t.Errorf("stats %+v", n)
	}
}

// Retry leaves what the database may have, unless it is asked for, and says so.
func TestRetryInDoubt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	for _, text := range []string{"1", "?2", "3"} {
		put(t, s, "/a", text)
	}
	refuseAll(t, s, "/a")
	if n := s.Stats().Names[0]; n.Dead != 3 || n.InDoubt != 1 {
		t.Errorf("stats %+v", n)
	}
	closeSpool(t, s)
	command, out := testCommand(file)
	var remaining Remaining
	err := command.Retry(t.Context(), Filter{Stream: "/a"}, false)
	if !errors.As(err, &remaining) || !strings.Contains(err.Error(), "1 dead letter may be in the database: compare, then discard them or say --in-doubt") || out.String() != "2 dead letters put back\n" {
		t.Errorf("%v, %s", err, out)
	}
	s = openAt(t, file, testConfig())
	if n := s.Stats().Names[0]; n.Dead != 1 || n.InDoubt != 1 {
		t.Errorf("stats after a start %+v", n)
	}
	if got := deadPayloads(t, s); !slices.Equal(got, []string{"?2"}) {
		t.Errorf("left %q", got)
	}
	closeSpool(t, s)
	if err := command.Retry(t.Context(), Filter{Stream: "/b"}, true); err != nil {
		t.Errorf("another name: %v", err)
	}
	if err := command.Retry(t.Context(), Filter{Stream: "/a"}, true); err != nil {
		t.Error(err)
	}
	s = openAt(t, file, testConfig())
	defer closeSpool(t, s)
	if got := drainSome(t, s, "/a", 3); !slices.Equal(got, []string{"1", "3", "?2"}) {
		t.Errorf("drained %q", got)
	}
}

// Retry and Discard work while another process drains the spool and the database refuses
// everything again. They end, and concern what was dead before.
func TestRetryRunning(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprintf("%02d", i))
		put(t, s, "/a", want[i])
	}
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx, "/a", 1<<20, refusing()) }()
	apptest.Await(t, "all are refused", func() bool { return s.Stats().Names[0].Dead == 30 })
	command, out := testCommand(file)
	command.Remote = sameProcess{s}
	if err := command.Retry(t.Context(), Filter{Stream: "/a"}, false); err != nil || out.String() != "30 dead letters put back\n" {
		t.Errorf("%v, %s", err, out)
	}
	apptest.Await(t, "all are refused again", func() bool { n := s.Stats().Names[0]; return n.Dead == 30 && n.Groups == 0 })
	if got := deadPayloads(t, s); !slices.Equal(got, want) {
		t.Errorf("dead letters %q", got)
	}
	out.Reset()
	if err := command.Discard(t.Context(), Filter{}, true); err != nil || out.String() != "30 dead letters deleted\n" {
		t.Errorf("%v, %s", err, out)
	}
	if got := deadPayloads(t, s); len(got) > 0 || s.Stats().Names[0].Dead != 0 || s.Stats().Names[0].UsedBytes != 0 {
		t.Errorf("dead letters %q, %+v", got, s.Stats().Names)
	}
	put(t, s, "/a", "new")
	cancel()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// Retry, discard and move of the same letters run at once, while the drain refuses all again: each
// letter is taken once, and there is never another one of it.
func TestOrdersAtOnce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	cfg := testConfig()
	cfg.GroupBytes = 10 // small steps
	s := openAt(t, file, cfg)
	const letters = 200
	for i := range letters {
		put(t, s, "/a", fmt.Sprintf("%03d", i))
	}
	refuseAll(t, s, "/a")
	ctx, cancel := context.WithCancel(t.Context())
	var drains, orders sync.WaitGroup
	for _, name := range []string{"/a", "/b"} {
		drains.Go(func() { _ = s.Drain(ctx, name, 1<<20, refusing()) })
	}
	var discarded atomic.Int64
	odd := Filter{IDs: make([]int64, 0, letters)}
	for id := int64(1); id <= 2*letters; id += 2 {
		odd.IDs = append(odd.IDs, id)
	}
	for _, o := range []Order{
		{Work: WorkRetry}, {Work: WorkDiscard, Filter: odd}, {Work: WorkMove, Filter: Filter{Stream: "/a"}, To: "/b"}, {Work: WorkRetry}, {Work: WorkDiscard, Filter: odd},
	} {
		orders.Go(func() {
			done, err := s.Do(ctx, o)
			if err != nil {
				t.Errorf("%s: %v", o.Work, err)
			}
			if o.Work == WorkDiscard {
				discarded.Add(int64(done.Letters))
			}
		})
	}
	orders.Wait()
	apptest.Await(t, "all is drained", func() bool {
		waiting := int64(0)
		for _, n := range s.Stats().Names {
			waiting += n.Groups
		}
		return waiting == 0
	})
	cancel()
	drains.Wait()
	left := deadPayloads(t, s)
	slices.Sort(left)
	if got := int64(len(slices.Compact(slices.Clone(left)))); got != int64(len(left)) || got+discarded.Load() != letters {
		t.Errorf("%d letters are left, %d of them different; %d were discarded of %d", len(left), got, discarded.Load(), letters)
	}
	counted := int64(0)
	for _, n := range s.Stats().Names {
		counted += n.Dead
	}
	if counted != int64(len(left)) {
		t.Errorf("%d counted, %d in the file", counted, len(left))
	}
	closeSpool(t, s)
	s = openAt(t, file, cfg)
	defer closeSpool(t, s)
	reread := int64(0)
	for _, n := range s.Stats().Names {
		reread += n.Dead
	}
	if reread != counted {
		t.Errorf("%d counted after a start, %d before", reread, counted)
	}
}

// A filter selects letters by each of its fields.
func TestFilter(t *testing.T) {
	t.Parallel()
	s := openAt(t, filepath.Join(t.TempDir(), "s.db"), testConfig())
	defer closeSpool(t, s)
	for i, text := range []string{"1", "?2", "3"} {
		e := queue.Entry{Payload: []byte(text), Rows: 1, At: time.UnixMicro(int64(1000 * i))}
		if _, err := s.Append(t.Context(), []string{"/a", "/a", "/b"}[i], e); err != nil {
			t.Fatal(err)
		}
	}
	refuseAll(t, s, "/a")
	refuseAll(t, s, "/b")
	yes, no := true, false
	for _, test := range []struct {
		Filter
		want string
	}{
		{Filter{}, "1?23"},
		{Filter{Stream: "/a"}, "1?2"},
		{Filter{Reason: "luck"}, "1?23"},
		{Filter{Reason: "%"}, ""},
		{Filter{InDoubt: &yes}, "?2"},
		{Filter{InDoubt: &no}, "13"},
		{Filter{Since: time.UnixMicro(1000)}, "?23"},
		{Filter{Until: time.UnixMicro(2000)}, "1?2"},
		{Filter{IDs: []int64{1, 3}}, "13"},
		{Filter{IDs: []int64{}}, ""},
		{Filter{Upto: 2}, "1?2"},
		{Filter{Upto: 9}, "1?23"},
		{Filter{IDs: []int64{1, 3}, Stream: "/b"}, "3"},
	} {
		letters, err := s.Letters(t.Context(), test.Filter, 0, 10)
		got := ""
		for _, l := range letters {
			got += string(l.Payload)
		}
		done, errDone := s.Do(t.Context(), Order{Work: WorkDiscard, Filter: test.Filter, DryRun: true})
		if err != nil || errDone != nil || got != test.want || done.Letters != len(letters) {
			t.Errorf("%+v: %q, want %q; %d counted; %v, %v", test.Filter, got, test.want, done.Letters, err, errDone)
		}
	}
}

// What waits under a name is given to another one: the groups keep their place, and the letters
// change their name. A repair keeps that.
func TestMove(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	put(t, s, "/a", "dead")
	refuseAll(t, s, "/a")
	put(t, s, "/a", "waits")
	move := func(from, to string, waiting bool) (Done, error) {
		return s.Do(t.Context(), Order{Work: WorkMove, Filter: Filter{Stream: from}, To: to, Waiting: waiting})
	}
	for _, pair := range [][2]string{{"/a", ""}, {"/a", "/a"}, {"/none", "/b"}, {"", "/b"}} {
		if done, err := move(pair[0], pair[1], true); !errors.Is(err, ErrOrder) {
			t.Errorf("%v: %+v, %v", pair, done, err)
		}
	}
	if done, err := move("/a", "/b", true); err != nil || done != (Done{Letters: 1, Records: 1}) {
		t.Errorf("%+v, %v", done, err)
	}
	check := func(want string) {
		t.Helper()
		var got []string
		for _, n := range s.Stats().Names {
			got = append(got, fmt.Sprintf("%s>%s:%d,%d", n.Name, n.MovedTo, n.Groups, n.Dead))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("names %v, want %s", got, want)
		}
	}
	check("[/a>/b:1,0 /b>:0,1]")
	closeSpool(t, s)
	if _, _, err := Repair(t.Context(), file, time.Now()); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, file, testConfig())
	defer func() { closeSpool(t, s) }()
	check("[/a>/b:1,0 /b>:0,1]")
	if _, err := move("/b", "/c", true); err != nil {
		t.Error(err)
	}
	check("[/a>/c:1,0 /b>/c:0,0 /c>:0,1]")
	if _, err := move("/c", "/a", true); err != nil {
		t.Error(err)
	}
	closeSpool(t, s)
	s = openAt(t, file, testConfig())
	check("[/a>:1,1 /b>/a:0,0 /c>/a:0,0]")
	put(t, s, "/b", "in use again")
	check("[/a>:1,1 /b>:1,0 /c>/a:0,0]")
	if got := drainSome(t, s, "/a", 1); !slices.Equal(got, []string{"waits"}) {
		t.Errorf("drained %q", got)
	}
}

// The export names what is in doubt.
func TestExportInDoubt(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	put(t, s, "/a", "?1")
	put(t, s, "/a", "2")
	refuseAll(t, s, "/a")
	command, out := testCommand(file)
	command.Decode = func([]byte) ([]json.RawMessage, error) { return []json.RawMessage{[]byte("1")}, nil }
	if err := command.Export(t.Context(), Filter{}, true); err != nil || strings.Count(out.String(), `"in_doubt":true`) != 1 {
		t.Errorf("%v, %s", err, out)
	}
	command.Out, command.Remote = io.Discard, sameProcess{s}
	if err := command.Discard(t.Context(), Filter{Stream: "/a"}, false); err == nil || !strings.Contains(err.Error(), "2 dead letters would be deleted") {
		t.Errorf("discard without --yes: %v", err)
	}
}
