package spool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	err := s.DeadLetters(t.Context(), "", func(l queue.DeadLetter) error {
		texts = append(texts, string(l.Payload))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// testCommand returns the subcommands on a file and what they print.
func testCommand(file string) (Command, *bytes.Buffer) {
	out := &bytes.Buffer{}
	return Command{Path: file, GroupBytes: 1 << 20, Out: out}, out
}

// The groups that Retry makes are not larger than GroupBytes, unless one dead letter is.
func TestRetryGroupBytes(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		t.Run(fmt.Sprintf("running %v", running), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "s.db")
			cfg := testConfig()
			cfg.GroupBytes = 1000
			s := openAt(t, file, cfg)
			var want []string
			for i := range 20 {
				want = append(want, fmt.Sprintf("%02d%s", i, strings.Repeat("x", 300+1500*(i%10/9))))
				put(t, s, "/a", want[i])
			}
			refuseAll(t, s, "/a")
			if !running {
				closeSpool(t, s)
			}
			command, out := testCommand(file)
			command.GroupBytes = 1000
			if err := command.Retry(t.Context(), "", false); err != nil || out.String() != "20 dead letters put back\n" {
				t.Errorf("%v, %s", err, out)
			}
			if !running {
				s = openAt(t, file, cfg)
			}
			defer closeSpool(t, s)
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
		})
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
	err := command.Retry(t.Context(), "/a", false)
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
	if err := command.Retry(t.Context(), "/b", true); err != nil {
		t.Errorf("another name: %v", err)
	}
	if err := command.Retry(t.Context(), "/a", true); err != nil {
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
	if err := command.Retry(t.Context(), "/a", false); err != nil || out.String() != "30 dead letters put back\n" {
		t.Errorf("%v, %s", err, out)
	}
	apptest.Await(t, "all are refused again", func() bool { n := s.Stats().Names[0]; return n.Dead == 30 && n.Groups == 0 })
	if got := deadPayloads(t, s); !slices.Equal(got, want) {
		t.Errorf("dead letters %q", got)
	}
	out.Reset()
	if err := command.Discard(t.Context(), "", true); err != nil || out.String() != "30 dead letters deleted\n" {
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
	if left := requests(file); len(left) > 0 {
		t.Errorf("requests %q", left)
	}
}

// A command that is interrupted withdraws its request. If the process that has the spool
// ends, a waiting command does the work itself.
func TestRetryServerEnds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	put(t, s, "/a", "x")
	refuseAll(t, s, "/a")
	s.stopListening() // as a process that hangs
	s.listening.Wait()
	command, out := testCommand(file)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- command.Retry(ctx, "", false) }()
	apptest.Await(t, "the command asks", func() bool { return len(requests(file)) > 0 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || len(requests(file)) > 0 {
		t.Errorf("interrupted: %v; requests %q", err, requests(file))
	}
	go func() { done <- command.Retry(t.Context(), "", false) }()
	apptest.Await(t, "the command asks", func() bool { return len(requests(file)) > 0 })
	closeSpool(t, s)
	if err := <-done; err != nil || out.String() != "1 dead letter put back\n" {
		t.Errorf("%v, %s", err, out)
	}
	if left := requests(file); len(left) > 0 {
		t.Errorf("requests %q", left)
	}
}

// A request whose process was killed is executed by the next process that opens the spool,
// and deleted when it is old, as is one that was not written to its end.
func TestRequestsLeft(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	put(t, s, "/a", "1")
	put(t, s, "/a", "2")
	refuseAll(t, s, "/a")
	closeSpool(t, s)
	left, old, torn := file+requestEnding+"left", file+requestEnding+"old", file+requestEnding+"torn"
	var errs []error
	errs = append(errs, writeRequest(left, request{Work: workDiscard, selection: selection{Upto: 1, InDoubt: true, Raw: true}}))
	errs = append(errs, writeRequest(old, request{Work: workDiscard, selection: selection{Upto: 9, InDoubt: true, Raw: true}}))
	errs = append(errs, os.WriteFile(torn, []byte(`{"work":"discard","upto":9`), 0o600))
	long := time.Now().Add(-2 * requestStale)
	errs = append(errs, os.Chtimes(old, long, long))
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, file, testConfig())
	apptest.Await(t, "the request is answered", func() bool {
		r, err := readRequest(left)
		return err == nil && r.Answered && r.Error == ""
	})
	apptest.Await(t, "the old request is deleted", func() bool { return len(requests(file)) == 2 })
	if got := deadPayloads(t, s); !slices.Equal(got, []string{"2"}) {
		t.Errorf("dead letters %q", got)
	}
	closeSpool(t, s)
	err := os.Chtimes(left, long, long)
	if err := errors.Join(err, os.Chtimes(torn, long, long)); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, file, testConfig())
	defer closeSpool(t, s)
	apptest.Await(t, "the answer is deleted", func() bool { return len(requests(file)) == 0 })
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
	if err := command.Export(t.Context(), "", true); err != nil || strings.Count(out.String(), `"in_doubt":true`) != 1 {
		t.Errorf("%v, %s", err, out)
	}
	command.Out = io.Discard
	if err := command.Discard(t.Context(), "/a", false); err == nil || !strings.Contains(err.Error(), "2 dead letters would be deleted") {
		t.Errorf("discard without --yes: %v", err)
	}
}
