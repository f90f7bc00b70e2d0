package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/popup"
)

// PopupFigures is a snapshot of the popups, for metrics.
type PopupFigures struct {
	popup.Stats
	States       int     // in memory; with Redis 0
	Evicted      uint64  // states that were left to the database; with Redis 0
	Waiting      int64   // events that the database does not have yet; -1: not known
	WaitingAge   float64 // of the oldest of them, in seconds; 0 if not known
	RecordErrors uint64  // events that could not be recorded; with Redis 0
	SetAside     int64   // events that could not be decoded
	Deleted      uint64  // events deleted by events_days
	Campaigns    popup.CampaignStats
	Down         bool    // the store does not answer
	Durable      bool    // acknowledged events survive a crash
	LockAge      float64 // seconds since the database last confirmed the lock; with Redis 0
	ClockSkew    float64 // seconds by which the local clock is ahead of the store's
}

// PopupListStats returns the metric of lists of users. read is called at each scrape.
func PopupListStats(read func() *popup.Lists) prometheus.Collector {
	type list struct {
		name  string
		users int
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
	return c.describe([]metric[list]{
		{
			"users", func(l list) float64 { return float64(l.users) },
			"Users of each list in force, 8 bytes of memory each; 0 until it was read.", nil,
		},
	})
}

// PopupStats returns the metrics of popups, spillway_popup_…. read is called at each scrape.
func PopupStats(read func() PopupFigures) prometheus.Collector {
	type s = PopupFigures
	outcome := func(name string) prometheus.Labels { return prometheus.Labels{"outcome": name} }
	event := func(name string) prometheus.Labels { return prometheus.Labels{"kind": name} }
	reason := func(name string) prometheus.Labels { return prometheus.Labels{"reason": name} }
	const decisions, events, refused = "Requests for a popup, by outcome.", "Events recorded.", "Clicks, dismissals and conversions refused."
	c := &snapshots[s]{prefix: "spillway_popup_", read: func() []s { return []s{read()} }}
	return c.describe(append([]metric[s]{
		{"decisions_total", func(s s) float64 { return float64(s.Waits) }, decisions, outcome("wait")},
		{"decisions_total", func(s s) float64 { return float64(s.Nones) }, decisions, outcome("none")},
		{"decisions_total", func(s s) float64 { return float64(s.Shows) }, decisions, outcome("show")},
		{"decisions_total", func(s s) float64 { return float64(s.Withheld) }, decisions, outcome("withhold")},
		{"events_total", func(s s) float64 { return float64(s.Shows) }, events, event("show")},
		{"events_total", func(s s) float64 { return float64(s.Clicks) }, events, event("click")},
		{"events_total", func(s s) float64 { return float64(s.Dismissals) }, events, event("dismiss")},
		{"events_total", func(s s) float64 { return float64(s.Withheld) }, events, event("withhold")},
		{"events_total", func(s s) float64 { return float64(s.Conversions) }, events, event("convert")},
		{"refused_total", func(s s) float64 { return float64(s.Repeated) }, refused, reason("repeated")},
		{"refused_total", func(s s) float64 { return float64(s.Late) }, refused, reason("late")},
		{"refused_total", func(s s) float64 { return float64(s.Unknown) }, refused, reason("unknown")},
		{"refused_total", func(s s) float64 { return float64(s.Refused) }, refused, reason("not_ours")},
	}, popupStates()...))
}

// popupStates describes the metrics of states, of their store and of the campaigns in force.
func popupStates() []metric[PopupFigures] {
	type s = PopupFigures
	return []metric[s]{
		{"conflicts_total", func(s s) float64 { return float64(s.Conflicts) }, "Lost races between requests of one user, decided again.", nil},
		{
			"unavailable_total", func(s s) float64 { return float64(s.Unavailable) },
			"Requests that met a failure of the states, the event log or attributes_sql.", nil,
		},
		{"record_errors_total", func(s s) float64 { return float64(s.RecordErrors) }, "Events that could not be recorded.", nil},
		{"cache_hits_total", func(s s) float64 { return float64(s.Cache.Hits) }, "Requests answered from the cache; 0 without one.", nil},
		{"cache_misses_total", func(s s) float64 { return float64(s.Cache.Misses) }, "Requests that read Redis; 0 without a cache.", nil},
		{"cache_states", func(s s) float64 { return float64(s.Cache.States) }, "States in the cache of this process.", nil},
		{"states", func(s s) float64 { return float64(s.States) }, "States of users in memory.", nil},
		{
			"states_evicted_total", func(s s) float64 { return float64(s.Evicted) },
			"States that were left to the database, because there were more than memory_users; 0 with Redis.", nil,
		},
		{
			"events_waiting", func(s s) float64 { return float64(s.Waiting) },
			"Durable events that the database does not have yet; -1 if not known.", nil,
		},
		{"events_waiting_seconds", func(s s) float64 { return s.WaitingAge }, "Age of the oldest of them.", nil},
		{
			"events_set_aside", func(s s) float64 { return float64(s.SetAside) },
			"Events that could not be decoded and must be repaired by hand.", nil,
		},
		{
			"events_deleted_total", func(s s) float64 { return float64(s.Deleted) },
			"Events deleted from the database because they were older than events_days.", nil,
		},
		{
			"attributes_refused_total", func(s s) float64 { return float64(s.RowRefused) },
			"Values of attributes_sql that are not of their attribute's type; they count as missing.", nil,
		},
		{"campaigns", func(s s) float64 { return float64(s.Campaigns.Active) }, "Active campaigns in force.", nil},
		{
			"campaigns_version", func(s s) float64 { return float64(s.Campaigns.Version) },
			"Version of the campaigns in force; replicas differ for at most a second.", nil,
		},
		{"campaigns_read_errors_total", func(s s) float64 { return float64(s.Campaigns.PollErrors) }, "Failed reads of the campaigns.", nil},
		{"list_read_errors_total", func(s s) float64 { return float64(s.Campaigns.ListErrors) }, "Failed reads of lists of users.", nil},
		{"down", func(s s) float64 { return flag(s.Down) }, "1 while the states do not answer.", nil},
		{
			"events_durable", func(s s) float64 { return flag(s.Durable) },
			"1 if acknowledged events survive a crash; 0 if Redis does not sync, or if that is not known.", nil,
		},
		{
			"lock_unverified_seconds", func(s s) float64 { return s.LockAge },
			"Time since the database last confirmed the lock; 0 with Redis.", nil,
		},
		{
			"clock_skew_seconds", func(s s) float64 { return s.ClockSkew },
			"Time by which this machine's clock is ahead of the one that decides, that of the store.", nil,
		},
	}
}
