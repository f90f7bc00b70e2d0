//go:build linux && !portable

package storetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/front"
	"spillway/internal/serve/param"
	"spillway/internal/serve/queue"
)

// silent answers nothing.
type silent struct{}

func (silent) Repeat(dst, _ []byte, _ netip.AddrPort) ([]byte, bool, bool) { return dst, false, false }

func (silent) Answer(dst, _ []byte, _ int, _ netip.AddrPort) ([]byte, bool, bool, *front.Later) {
	return dst, false, false, nil
}

func (silent) Enter() bool { return true }
func (silent) Leave()      {}

// StartLoop returns an event loop, which ends with the test.
func StartLoop(t testing.TB) *front.Loop {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var own *front.Loop
	socket := -1
	failed := raw.Control(func(fd uintptr) { socket, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(failed, err); err != nil {
		t.Fatal(err)
	}
	f, err := front.Open(front.Config{
		Socket: socket, Loops: 1, Gate: silent{}, RequestBytes: 4096, FirstTimeout: time.Hour, IdleTimeout: time.Hour,
		Answerer: func(loop *front.Loop, _ func(*front.Later) func()) front.Answerer {
			own = loop
			return silent{}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.StopAccepting(false); err != nil {
			t.Error(err)
		}
		f.End(context.Background())
	})
	return own
}

// OnLoop calls f in the loop, and returns when it has.
func OnLoop(t testing.TB, loop *front.Loop, f func()) {
	t.Helper()
	done := make(chan struct{})
	if !loop.Post(func() { f(); close(done) }) {
		t.Fatal("the loop has ended")
	}
	apptest.Receive(t, "the loop", done)
}

// LoopRead is a read in a loop. Ended gets what Done is told, or the error of Begin.
type LoopRead struct {
	feed.LoopRead
	Ended chan error
}

// NewLoopRead returns a read for arguments. The gate may be nil.
func NewLoopRead(gate *queue.Entrance, limit feed.Limit, args []string) *LoopRead {
	r := &LoopRead{LoopRead: feed.LoopRead{
		Range: feed.Range{Args: args}, Name: param.AppendArgs(nil, args), Within: time.Hour, Rows: feed.Rows{Limit: limit}, Gate: gate,
	}, Ended: make(chan error, 1)}
	r.Done = func(err error) { r.Ended <- err }
	return r
}

// BeginReads begins reads for arguments at once.
func BeginReads(t *testing.T, loop *front.Loop, s feed.LoopReader, gate *queue.Entrance, limit feed.Limit, all ...[]string) []*LoopRead {
	t.Helper()
	var reads []*LoopRead
	for _, args := range all {
		reads = append(reads, NewLoopRead(gate, limit, args))
	}
	OnLoop(t, loop, func() {
		for _, r := range reads {
			if err := s.Begin(loop, &r.LoopRead); err != nil {
				r.Ended <- err
			}
		}
	})
	return reads
}

// FeedInLoops is Feed for an adapter whose feeds are read in event loops. The loop must read what Read does.
func FeedInLoops(t *testing.T, b Backend) {
	var inside atomic.Int64
	loop, open := StartLoop(t), b.Open
	b.Open = func(t testing.TB, pool database.Pool) DB {
		db := open(t, pool)
		source := db.Source
		db.Source = func(def feed.Definition) (feed.Source, error) {
			s, err := source(def)
			if reader, ok := s.(feed.LoopReader); ok && !def.IsQuery() {
				s = &looped{s, reader, t, loop, &inside}
			}
			return s, err
		}
		return db
	}
	runParts(t, b, false, []part[Backend]{
		{"Order", testOrder, keeps},
		{"NullKeys", testNullKeys, keeps},
		{"Types", testTypes, keeps},
		{"Params", testParams, keeps},
		{"Filters", testFilters, keeps},
		{"FilterValues", testFilterValues, keeps},
		{"NullKey", testNullKey, keeps},
		{"RejectedValue", testRejectedValue, keeps},
		{"ForgedKey", testForgedKey, keeps},
		{"Changes", testChanges, keeps},
	})
	if inside.Load() < 100 {
		t.Errorf("%d reads in the loop", inside.Load())
	}
}

// looped is a source whose reads are compared with those in a loop.
type looped struct {
	feed.Source
	reader feed.LoopReader
	t      testing.TB
	loop   *front.Loop
	inside *atomic.Int64
}

// attempts is how often a read is tried in a loop, which opens connections meanwhile.
const attempts = 30

// Read implements feed.Source.
func (s *looped) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	before := rows.Len()
	wanted := s.Source.Read(ctx, r, rows)
	if r.Until != "" || before > 0 {
		return wanted
	}
	for range attempts {
		in := NewLoopRead(nil, feed.Limit{}, r.Args)
		in.Range, in.Name = r, fmt.Appendf(nil, "%v", r)
		OnLoop(s.t, s.loop, func() {
			if err := s.reader.Begin(s.loop, &in.LoopRead); err != nil {
				in.Ended <- err
			}
		})
		err := apptest.Receive(s.t, "the rows", in.Ended)
		if err == feed.ErrElsewhere {
			_ = s.Source.Read(ctx, r, new(feed.Rows))
			continue
		}
		s.inside.Add(1)
		got := in.Rows
		if fmt.Sprint(err) != fmt.Sprint(wanted) || errors.Is(err, feed.ErrCursor) != errors.Is(wanted, feed.ErrCursor) ||
			errors.Is(err, param.ErrValue) != errors.Is(wanted, param.ErrValue) {
			s.t.Errorf("%+v in a loop: %v, want %v", r, err, wanted)
		}
		if wanted == nil && (string(got.Data) != string(rows.Data) || !slices.Equal(got.Ends, rows.Ends) || !slices.Equal(got.Keys, rows.Keys)) {
			s.t.Errorf("%+v in a loop: %s %q, want %s %q", r, got.Data, got.Keys, rows.Data, rows.Keys)
		}
		break
	}
	return wanted
}
