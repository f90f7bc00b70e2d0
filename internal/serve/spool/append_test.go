package stream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowDisk is a spool's file of which each transaction takes as long; it notes their entries.
type slowDisk struct {
	took   time.Duration
	groups []int
}

func (d *slowDisk) Write(c SpoolChange) (int64, error) {
	if len(c.Groups) == 0 {
		return 0, nil
	}
	<-time.After(d.took)
	g, err := c.Groups[0].Open()
	d.groups = append(d.groups, len(g.Entries))
	return 0, err
}

func (*slowDisk) Read(context.Context, string, uint64, int) ([]SealedGroup, error) {
	return nil, errors.New("nothing is drained here")
}

func (*slowDisk) Key(string, string) (*SpoolKey, error) { return nil, nil }

// TestSpoolGather: who is alone has the time of one transaction; those who come together
// share one, without a wait where all are there, and else for gatherEvery at most.
func TestSpoolGather(t *testing.T) {
	const disk, rounds = 200 * time.Microsecond, 20
	run := func(writers int, pause time.Duration) (groups []int, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			file := &slowDisk{took: disk}
			s, err := OpenSpool(SpoolConfig{Bytes: 1 << 20, QueueBytes: 1 << 20, GroupBytes: 1 << 20, Log: slog.New(slog.DiscardHandler)}, file, nil)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			var group sync.WaitGroup
			for i := range writers {
				group.Go(func() {
					if wait := time.Duration(i) * pause; wait > 0 {
						<-time.After(wait)
					}
					for range rounds {
						if _, err := s.Append(t.Context(), "/a", SpoolEntry{Payload: []byte("x"), Rows: 1}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			group.Wait()
			took = time.Since(start)
			s.Close()
			groups = file.groups
		})
		return groups, took
	}
	if groups, took := run(1, 0); len(groups) != rounds || took != rounds*disk {
		t.Errorf("alone: %d transactions in %s", len(groups), took)
	}
	if groups, took := run(10, 0); len(groups) > rounds+2 || took > 2*rounds*disk {
		t.Errorf("ten at once: %v in %s", groups, took)
	}
	// One after the other they come to share transactions: 22, and 40 without a wait.
	if groups, took := run(10, 30*time.Microsecond); len(groups) > rounds+4 || took > 2*rounds*disk {
		t.Errorf("ten, one after the other: %v in %s", groups, took)
	}
}
