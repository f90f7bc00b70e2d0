package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/redis"
)

// BenchmarkPopup measures reads and shows with 128 concurrent callers, with Redis on the same
// cores.
func BenchmarkPopup(b *testing.B) {
	for _, fsync := range []string{"no", "always"} {
		args := []string{"--appendonly", "yes", "--appendfsync", "always"}
		if fsync == "no" {
			args = nil
		}
		server := apptest.Redis(b, args...)
		r := startPopups(b, server.URL(""), redis.PopupConfig{Table: newPopupTable()}).waitReady(b)
		const users = 10_000
		var n atomic.Int64
		key := func(i int64) popup.Key { return popup.Key{User: fmt.Sprintf("user-%011d", i), Placement: "home"} }
		for i := range int64(users) {
			r.ask(b, key(i).User, popupDay)
		}
		if fsync == "no" {
			b.Run("Get", func(b *testing.B) {
				b.SetParallelism(64)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if s, err := r.Get(b.Context(), key(n.Add(1)%users)); err != nil || s.Version == 0 {
							b.Error(s, err)
						}
					}
				})
			})
		}
		b.Run("Show/appendfsync="+fsync, func(b *testing.B) {
			b.SetParallelism(64)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if answer := r.ask(b, key(users+n.Add(1)).User, popupDay); answer.Token == "" {
						b.Error(answer)
					}
				}
			})
		})
		r.stop()
	}
}
