package admin

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"spillway/internal/serve/spool"
)

// Figures are what the process knows about itself now. Nothing of it asks a database.
type Figures struct {
	Process   Process           `json:"process"`
	Links     []Link            `json:"links"`
	Routes    []RouteFigures    `json:"routes"`
	Feeds     []FeedFigures     `json:"feeds"`
	Streams   []StreamFigures   `json:"streams"`
	Databases []DatabaseFigures `json:"databases"`
	Spools    []SpoolFigures    `json:"spools"`
	Popups    *PopupState       `json:"popups,omitempty"` // nil: there are none
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

// FeedFigures are those of a feed that has started.
type FeedFigures struct {
	Feed          string  `json:"feed"`
	AgeSeconds    float64 `json:"age_seconds"` // of the oldest window in use
	Windows       int     `json:"windows"`
	Rows          int     `json:"rows"`
	Waiting       int     `json:"waiting"`
	RefreshErrors uint64  `json:"refresh_errors"` // since the start
}

// StreamFigures are those of a stream that has started. Counts are since the start.
type StreamFigures struct {
	Stream        string            `json:"stream"`
	Ack           string            `json:"ack"` // what an acknowledgement is worth now
	Stored        uint64            `json:"stored"`
	Refused       map[string]uint64 `json:"refused"` // by reason
	QueueRows     int               `json:"queue_records"`
	BatchRows     float64           `json:"batch_records"` // mean of a transaction
	CommitSeconds float64           `json:"commit_seconds"`
}

// DatabaseFigures are those of a pool.
type DatabaseFigures struct {
	Database string `json:"database"`
	InUse    int    `json:"connections_in_use"`
	Idle     int    `json:"connections_idle"`
	Max      int    `json:"connections_max"`
	Waiting  int    `json:"waiting"`
}

// SpoolFigures are those of a spool.
type SpoolFigures struct {
	Spool      string            `json:"spool"`
	Open       bool              `json:"open"`
	UsedBytes  int64             `json:"used_bytes"`
	LimitBytes int64             `json:"limit_bytes"`
	Streams    []spool.NameStats `json:"streams"` // of which the file has something
}

// PopupState is what popups depend on.
type PopupState struct {
	Store            string  `json:"store"` // memory or redis
	Serves           bool    `json:"serves"`
	Durable          bool    `json:"events_durable"`
	Waiting          int64   `json:"events_waiting"` // -1: not known
	WaitingSeconds   float64 `json:"events_waiting_seconds"`
	ClockSkewSeconds float64 `json:"clock_skew_seconds"` // by which this machine's clock is ahead of the store's
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
	f.Feeds = append([]FeedFigures{}, f.Feeds...)
	f.Streams, f.Databases = append([]StreamFigures{}, f.Streams...), append([]DatabaseFigures{}, f.Databases...)
	return f
}

func (s *Server) showFigures(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, "application/json", http.StatusOK, s.figures())
}
