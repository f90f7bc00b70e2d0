package app

import (
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/openapi"
	"spillway/internal/serve/param"
)

// describe describes the public listener with these feeds and queries, beside streams and
// popups. Of parts that have not started it knows what the configuration says.
func (a *app) describe(r *reads) *openapi.Listener {
	l := &openapi.Listener{Hosts: len(r.cfg.HTTP.Hosts) > 0, RateLimit: r.cfg.HTTP.RatePerMinute > 0, WriteKeys: len(r.cfg.Keys) > 0}
	for _, p := range r.feeds {
		l.Feeds = append(l.Feeds, openapi.Feed{
			Paths: p.down.Reads, Access: r.cfg.ReadAccess(p.cfg.Auth), Params: p.settings.Definition.Params,
			Limit: p.cfg.Limit, LimitMax: p.cfg.LimitMax, OffsetMax: p.cfg.OffsetMax, Columns: p.source.Columns(), Envelope: p.settings.Envelope,
			Live: p.cfg.Window >= p.cfg.Limit && (p.cfg.LiveMax > 0 || len(p.settings.Definition.Params) == 0),
		})
	}
	for _, p := range r.queries {
		l.Queries = append(l.Queries, openapi.Query{
			Paths: p.down.Reads, Access: r.cfg.ReadAccess(p.cfg.Auth), Params: p.query.Params(), Envelope: p.envelope(), RowsMax: p.cfg.RowsMax,
			Columns: p.source.Columns(),
		})
	}
	for _, p := range a.streams {
		d := p.schema.Definition()
		l.Streams = append(l.Streams, openapi.Stream{
			Paths: p.down.Writes, Access: p.access, Columns: d.Columns, Extra: d.Extra != "", RecordsMax: p.route.Limits.Records,
			BodyBytes: p.route.Limits.Bytes,
		})
	}
	if a.popups != nil {
		l.Popup = describePopups(a.popups.cfg, a.demo)
	}
	return l
}

// namesOf returns the names of columns.
func namesOf(columns []feed.Column) feed.Columns {
	names := make(feed.Columns, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

// describePopups describes the popups. demo says that requests may shift the clock.
func describePopups(c *config.Popups, demo bool) *openapi.Popup {
	p := &openapi.Popup{Path: c.Path, Placements: c.PlacementNames(), User: param.Type(c.UserType), ClockOffset: demo}
	if c.Identity.Trust == "jwt" {
		p.TokenHeader = c.Identity.Header
	}
	for _, attribute := range c.Attributes {
		p.Attributes = append(p.Attributes, openapi.Attribute(attribute))
	}
	return p
}
