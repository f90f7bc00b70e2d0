package app

import (
	"cmp"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"spillway/internal/serve/admin"
)

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
	p := now.part(path)
	if p == nil {
		return nil
	}
	r := &admin.Read{
		Path: path, Kind: "feed", Database: p.store.url.String(), SQL: p.def.SQL, Plans: p.def.Plans.All(), Params: p.def.Params,
		Accepted: p.accepted,
	}
	if err := p.failure(); err != nil {
		r.Problem = err.Error()
	}
	if f := p.feed.Load(); f != nil {
		r.Engine = f
	}
	if p.query != nil {
		r.Kind, r.Engine = "query", p.query
	}
	return r
}

// figures returns those of the open pools, in alphabetical order of the databases.
func (s *stores) figures() []admin.DatabaseFigures {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []admin.DatabaseFigures
	for _, address := range slices.Sorted(maps.Keys(s.open)) {
		st := s.open[address]
		f := admin.DatabaseFigures{Database: st.url.String(), Stats: st.Stats()}
		if last := st.answer.Load(); last != nil {
			up := *last == nil
			f.Up = &up
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b admin.DatabaseFigures) int { return cmp.Compare(a.Database, b.Database) })
	return all
}

// pools is figures, but has one pool of those whose addresses differ by the password alone.
func (s *stores) pools() []admin.DatabaseFigures {
	return slices.CompactFunc(s.figures(), func(a, b admin.DatabaseFigures) bool { return a.Database == b.Database })
}
