package spool

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"spillway/internal/serve/queue"
)

// BenchmarkAppend appends records of 100 bytes from several writers, on the disk of the
// temporary directory.
func BenchmarkAppend(b *testing.B) {
	payload := []byte(strings.Repeat("x", 100))
	for _, writers := range []int{1, 32, 1000} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openAt(b, filepath.Join(b.TempDir(), "s.db"), testConfig())
			defer closeSpool(b, s)
			put(b, s, "/a", "first")
			before := s.Stats()
			next := make(chan struct{}, writers)
			var group sync.WaitGroup
			for range writers {
				group.Go(func() {
					for range next {
						if _, err := s.Append(b.Context(), "/a", queue.Entry{Payload: payload, Rows: 1}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			b.ResetTimer()
			for range b.N {
				next <- struct{}{}
			}
			close(next)
			group.Wait()
			b.StopTimer()
			after := s.Stats()
			syncs := float64(after.Syncs - before.Syncs)
			b.ReportMetric(syncs/float64(b.N), "fsyncs/record")
			b.ReportMetric((after.SyncSeconds-before.SyncSeconds)/syncs*1e3, "ms/fsync")
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
