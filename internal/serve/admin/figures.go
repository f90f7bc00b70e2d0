package admin

import (
	"cmp"
	"slices"
	"time"

	"spillway/internal/database"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/stream"
)

// Figures are what the process knows about itself now. Nothing of it asks a database.
type Figures struct {
	Process   Process           `json:"process"`
	Links     []Link            `json:"links"`
	Routes    []RouteFigures    `json:"routes"`
	Feeds     []feed.Stats      `json:"feeds"`
	Queries   []query.Stats     `json:"queries"`
	Streams   []StreamFigures   `json:"streams"`
	Databases []DatabaseFigures `json:"databases"`
	Spools    []SpoolFigures    `json:"spools"`
	Popups    *PopupFigures     `json:"popups,omitempty"` // nil: there are none
	Disk      *Disk             `json:"disk,omitempty"`   // of the data directory; nil: not known
}

// About says which process it is, and what else there is to look at.
type About struct {
	Process Process
	Links   []Link
}

// Process says which process answers.
type Process struct {
	Host    string    `json:"host"`
	ID      int       `json:"pid"`
	Version string    `json:"version"`
	Started time.Time `json:"started_at"`
}

// Link is a page that operators look for: another replica's console, or a dashboard.
type Link struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// StreamFigures are those of a stream that has started.
type StreamFigures struct {
	stream.Stats
	RecordsHz float64 `json:"records_hz"` // stored, of the last seconds
}

// DatabaseFigures are those of a pool.
type DatabaseFigures struct {
	Database string `json:"database" label:"database"`
	database.Stats
	Up *bool `json:"-" metric:"up" help:"1 while the database answers the probe of each second; absent if nothing reads it."`
}

// SpoolFigures are those of a spool.
type SpoolFigures struct {
	Spool      string            `json:"spool"`
	Open       bool              `json:"open"`
	UsedBytes  int64             `json:"used_bytes"`
	LimitBytes int64             `json:"limit_bytes"`
	Streams    []spool.NameStats `json:"streams"` // of which the file has something
}

// Disk is the file system of the data directory.
type Disk struct {
	FreeBytes  uint64 `json:"free_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
}

// figures returns all figures.
func (s *Server) figures() Figures {
	f := s.cfg.Figures()
	f.Process, f.Links = s.cfg.About.Process, append([]Link{}, s.cfg.About.Links...)
	f.Process.Started = f.Process.Started.UTC().Truncate(time.Millisecond)
	f.Routes = s.cfg.Traffic.Figures()
	f.Spools = []SpoolFigures{}
	for name, of := range s.cfg.Spools {
		one := SpoolFigures{Spool: name, Streams: []spool.NameStats{}}
		if open := of.Open(); open != nil {
			stats := open.Stats()
			one.Open, one.UsedBytes, one.LimitBytes, one.Streams = true, stats.UsedBytes, stats.LimitBytes, open.Status()
		}
		f.Spools = append(f.Spools, one)
	}
	slices.SortFunc(f.Spools, func(a, b SpoolFigures) int { return cmp.Compare(b.Spool, a.Spool) })
	// [] in JSON, not null
	f.Feeds, f.Queries = append([]feed.Stats{}, f.Feeds...), append([]query.Stats{}, f.Queries...)
	f.Databases, f.Streams = append([]DatabaseFigures{}, f.Databases...), []StreamFigures{}
	for _, one := range s.cfg.Streams() {
		f.Streams = append(f.Streams, StreamFigures{one, s.cfg.Traffic.rateOf(one.Name)})
	}
	return f
}
