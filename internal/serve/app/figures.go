package app

import (
	"cmp"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/admin"
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
		about.Links = append(about.Links, admin.Link{Name: link.Name, URL: link.URL.Reveal()})
	}
	return about
}

// figures returns what the admin listener shows of this process.
func (a *app) figures() admin.Figures {
	f := admin.Figures{Feeds: a.feedStats(), Queries: a.queryStats(), Databases: a.stores.figures()}
	if a.popups != nil {
		f.Popups = new(a.popups.figures())
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(a.cfg.Data, &disk); err == nil {
		f.Disk = &admin.Disk{FreeBytes: disk.Bavail * uint64(disk.Bsize), TotalBytes: disk.Blocks * uint64(disk.Bsize)}
	}
	return f
}

// figures returns those of the open pools, in alphabetical order of the databases.
func (s *stores) figures() []admin.DatabaseFigures {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []admin.DatabaseFigures
	for _, st := range s.open {
		all = append(all, admin.DatabaseFigures{Database: st.url.String(), Stats: st.Stats()})
	}
	slices.SortFunc(all, func(a, b admin.DatabaseFigures) int { return cmp.Compare(a.Database, b.Database) })
	return all
}
