package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/popup"
)

// PopupFigures is a snapshot of the popups, for metrics and /figures.
type PopupFigures struct {
	popup.Stats  `json:"-"`
	Store        string              `json:"store"` // memory or redis
	States       int                 `json:"-" metric:"states" help:"States of users in memory."`
	Evicted      uint64              `json:"-" metric:"states_evicted_total" help:"States left to the database, beyond memory_users; 0 with Redis."`
	Waiting      int64               `json:"events_waiting" metric:"events_waiting" help:"Durable events that the database does not have yet; -1 if not known."`
	WaitingAge   float64             `json:"events_waiting_seconds" metric:"events_waiting_seconds" help:"Age of the oldest of them."`
	RecordErrors uint64              `json:"-" metric:"record_errors_total" help:"Events that could not be recorded."`
	SetAside     int64               `json:"-" metric:"events_set_aside" help:"Events that could not be decoded and must be repaired by hand."`
	Deleted      uint64              `json:"-" metric:"events_deleted_total" help:"Events deleted from the database because they were older than events_days."`
	Campaigns    popup.CampaignStats `json:"-"`
	Down         bool                `json:"down" metric:"down" help:"1 while the states do not answer."`
	Durable      bool                `json:"events_durable" metric:"events_durable" help:"1 if acknowledged events survive a crash; 0 if Redis does not sync, or may not."`
	LockAge      float64             `json:"-" metric:"lock_unverified_seconds" help:"Time since the database last confirmed the lock; 0 with Redis."`
	ClockSkew    float64             `json:"clock_skew_seconds" metric:"clock_skew_seconds" help:"Time by which this machine's clock is ahead of the store's, which decides."`
}

// PopupListStats returns the metric of lists of users. read is called at each scrape.
func PopupListStats(read func() *popup.Lists) prometheus.Collector {
	type list struct {
		name  string
		Users int `metric:"users" help:"Users of each list in force, 8 bytes of memory each; 0 until it was read."`
	}
	c := &snapshots[list]{
		prefix: "spillway_popup_list_", labels: []string{"list"}, of: func(l list) []string { return []string{l.name} },
		read: func() (all []list) {
			lists := read()
			for _, name := range lists.Names() {
				all = append(all, list{name, lists.Len(name)})
			}
			return all
		},
	}
	return c.describe()
}

// PopupStats returns the metrics of popups, spillway_popup_…. read is called at each scrape.
func PopupStats(read func() PopupFigures) prometheus.Collector {
	c := &snapshots[PopupFigures]{prefix: "spillway_popup_", read: func() []PopupFigures { return []PopupFigures{read()} }}
	return c.describe()
}
