package app

import (
	"cmp"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/stream"
)

// routeCounts returns the counters of the public listener.
func (a *app) routeCounts() []admin.RouteCounts {
	var all []admin.RouteCounts
	for _, one := range a.public.Counts() {
		all = append(all, admin.RouteCounts(one))
	}
	return all
}

// about returns which process this is.
func (a *app) about() admin.About {
	host, _ := os.Hostname() // "": not known
	about := admin.About{Process: admin.Process{Host: host, ID: os.Getpid(), Version: a.options.Version, Started: a.started}}
	for _, link := range a.cfg.Admin.Links {
		about.Links = append(about.Links, admin.Link(link))
	}
	return about
}

// figures returns what the admin listener shows of this process.
func (a *app) figures() admin.Figures {
	var f admin.Figures
	for _, s := range a.feedStats() {
		f.Feeds = append(f.Feeds, admin.FeedFigures{
			Feed: s.Name, AgeSeconds: s.AgeSeconds, Windows: s.Windows, Rows: s.Rows, Waiting: s.Waiting, RefreshErrors: s.RefreshErrors,
		})
	}
	acks := map[string]string{}
	for _, ack := range a.streamAcks() {
		acks[ack.Stream] = ack.Level
	}
	for _, s := range a.streamStats() {
		f.Streams = append(f.Streams, streamFigures(s, acks[s.Name]))
	}
	f.Databases = a.stores.figures()
	if p := a.popups; p != nil {
		now := p.figures()
		f.Popups = &admin.PopupState{
			Store: p.cfg.Store, Serves: !now.Down, Durable: now.Durable, Waiting: now.Waiting, WaitingSeconds: now.WaitingAge,
			ClockSkewSeconds: now.ClockSkew,
		}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(a.cfg.Data, &disk); err == nil {
		f.Disk = &admin.Disk{FreeBytes: disk.Bavail * uint64(disk.Bsize), TotalBytes: disk.Blocks * uint64(disk.Bsize)}
	}
	return f
}

func streamFigures(s stream.Stats, ack string) admin.StreamFigures {
	f := admin.StreamFigures{
		Stream: s.Name, Ack: ack, Stored: s.Stored, QueueRows: s.QueueRows, CommitSeconds: s.CommitMean.Seconds(),
		Refused: map[string]uint64{
			"schema": s.RefusedSchema, "database": s.RefusedDatabase, "unreadable": s.Unreadable, "too_large": s.TooLarge,
			"key_reused": s.KeyReused, "failed": s.Failed,
		},
	}
	maps.Copy(f.Refused, s.Overloaded)
	maps.DeleteFunc(f.Refused, func(_ string, n uint64) bool { return n == 0 })
	if s.Batches > 0 {
		f.BatchRows = float64(s.BatchRows) / float64(s.Batches)
	}
	return f
}

// figures returns those of the open pools, in alphabetical order of the databases.
func (s *stores) figures() []admin.DatabaseFigures {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []admin.DatabaseFigures
	for _, st := range s.open {
		now := st.Stats()
		all = append(all, admin.DatabaseFigures{
			Database: st.url.String(), InUse: now.InUse, Idle: now.Idle, Max: now.Max, Waiting: now.Waiting,
		})
	}
	slices.SortFunc(all, func(a, b admin.DatabaseFigures) int { return cmp.Compare(a.Database, b.Database) })
	return all
}
