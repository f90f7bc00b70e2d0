package app

import (
	"cmp"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/feed"
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

// read returns the feed or the query of a path; nil: there is none.
func (a *app) read(path string) *admin.Read {
	now := a.current()
	describe := func(kind string, p *part, d *feed.Definition) *admin.Read {
		r := &admin.Read{Path: path, Kind: kind, Database: p.store.url.String(), SQL: d.SQL, Plans: d.Plans.All(), Params: d.Params}
		if err := p.failure(); err != nil {
			r.Problem = err.Error()
		}
		return r
	}
	for _, p := range now.feeds {
		if p.cfg.Path == path {
			r := describe("feed", p.part, &p.settings.Definition)
			if r.Accepted = p.cfg.Plan == "accept"; p.feed.Load() != nil {
				r.Engine = p.feed.Load()
			}
			return r
		}
	}
	for _, p := range now.queries {
		if p.cfg.Path == path {
			r := describe("query", p.part, &p.def)
			r.Engine = p.query
			return r
		}
	}
	return nil
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
