package app

import (
	"net/http"
	"net/netip"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/audit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/console"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/openapi"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/server"
	"spillway/internal/serve/stream"
)

// openServer creates the public listener. No part is served yet.
func (a *app) openServer() {
	cfg := a.serverConfig(new(a.current()))
	if a.certificate != nil {
		cfg.TLS = a.certificate.config()
	}
	a.public = server.New(cfg)
}

// serverConfig returns the configuration of the public listener with these feeds and queries,
// beside streams and popups.
func (a *app) serverConfig(r *reads) server.Config {
	h := r.cfg.HTTP
	cfg := server.Config{
		Hosts:        h.Hosts,
		Connections:  h.Connections,
		HeaderBytes:  h.HeaderBytes,
		Loops:        a.loops,
		BodyBytes:    h.BodyBytes,
		BodiesBytes:  int64(h.BodiesBytes),
		Compressed:   h.CompressBytes,
		ReadTimeout:  h.ReadTimeout,
		WriteTimeout: h.WriteTimeout,
		IdleTimeout:  h.IdleTimeout,
		DrainTimeout: h.DrainTimeout,
		CORSOrigins:  h.CORSOrigins,
		Log:          a.log,
		Tokens:       a.tokens,
		Cookie:       r.cfg.Auth.Cookie,
		Rate:         server.RateConfig{PerMinute: h.RatePerMinute, Burst: h.RateBurst, Clients: h.RateClients},
	}
	if r.cfg.Log.Access {
		cfg.AccessLog = a.accessLog
	}
	for _, key := range r.cfg.Keys {
		cfg.Keys = append(cfg.Keys, key.Reveal())
	}
	for _, key := range r.cfg.Auth.Keys {
		cfg.ReadKeys = append(cfg.ReadKeys, key.Reveal())
	}
	if r.cfg.Probes {
		cfg.Probes = &server.Probes{Database: a.defaultStore.Probe}
		if a.redis != nil {
			cfg.Probes.Redis = a.redis.Get
		}
	}
	for _, text := range h.TrustedProxies {
		cfg.Proxies = append(cfg.Proxies, proxyPrefix(text))
	}
	if h.OpenAPI {
		document := a.describe(r).Document(server.ProblemStatus)
		cfg.Files = []server.File{{Path: openapi.Path, Type: "application/json", Read: func() []byte { return document }}}
	}
	if r.cfg.Demo {
		cfg.Files = append(cfg.Files, a.demoFiles()...)
	}
	a.addRoutes(&cfg, r)
	return cfg
}

// addRoutes adds the routes of all parts.
func (a *app) addRoutes(cfg *server.Config, r *reads) {
	serves := func(p *part, access server.Access) bool {
		if p.failure() != nil {
			down := p.down
			down.Access = access
			cfg.Down = append(cfg.Down, down)
			return false
		}
		return true
	}
	for _, p := range r.feeds {
		if access := accessOf(r.cfg.ReadAccess(p.cfg.Auth)); serves(p.part, access) {
			cfg.Feeds = append(cfg.Feeds, server.FeedRoute{
				Paths: p.down.Reads, Access: access, Feed: p.feed.Load(), Columns: namesOf(p.source.Columns()),
				Strict:  r.cfg.RefusesUnknown(p.cfg.Unknown),
				Caching: server.SharedCaching{MaxAge: p.cfg.SMaxAge, StaleWhileRevalidate: p.cfg.Revalidate},
			})
		}
	}
	for _, p := range r.queries {
		if access := accessOf(r.cfg.ReadAccess(p.cfg.Auth)); serves(p.part, access) {
			cfg.Queries = append(cfg.Queries, server.QueryRoute{
				Paths: p.down.Reads, Access: access, Query: p.query, Envelope: p.envelope(), Columns: namesOf(p.source.Columns()),
				Strict:  r.cfg.RefusesUnknown(p.cfg.Unknown),
				Caching: server.SharedCaching{MaxAge: p.cfg.SMaxAge, StaleWhileRevalidate: p.cfg.Revalidate},
			})
		}
	}
	for _, p := range a.streams {
		if serves(p.part, p.route.Access) {
			route := p.route
			route.Strict = r.cfg.RefusesUnknown(p.unknown)
			cfg.Streams = append(cfg.Streams, route)
		}
	}
	if a.popups != nil && serves(a.popups.part, server.Open) {
		route := *a.popups.route
		route.Strict = r.cfg.RefusesUnknown(a.popups.cfg.Unknown)
		cfg.Popup = &route
	}
}

// describe describes the public listener with these feeds and queries, beside streams and
// popups. Of parts that have not started it knows what the configuration says.
func (a *app) describe(r *reads) *openapi.Listener {
	l := &openapi.Listener{Hosts: len(r.cfg.HTTP.Hosts) > 0, RateLimit: r.cfg.HTTP.RatePerMinute > 0, WriteKeys: len(r.cfg.Keys) > 0}
	for _, p := range r.feeds {
		l.Feeds = append(l.Feeds, openapi.Feed{
			Paths: p.down.Reads, Access: r.cfg.ReadAccess(p.cfg.Auth), Params: p.settings.Definition.Params,
			Limit: p.cfg.Limit, LimitMax: p.cfg.LimitMax, OffsetMax: p.cfg.OffsetMax, Columns: p.source.Columns(), Envelope: p.settings.Envelope,
			Live:   p.cfg.Window >= p.cfg.Limit && (p.cfg.LiveMax > 0 || len(p.settings.Definition.Params) == 0),
			Strict: r.cfg.RefusesUnknown(p.cfg.Unknown),
		})
	}
	for _, p := range r.queries {
		l.Queries = append(l.Queries, openapi.Query{
			Paths: p.down.Reads, Access: r.cfg.ReadAccess(p.cfg.Auth), Params: p.query.Params(), Envelope: p.envelope(), RowsMax: p.cfg.RowsMax,
			Columns: p.source.Columns(), Strict: r.cfg.RefusesUnknown(p.cfg.Unknown),
		})
	}
	for _, p := range a.streams {
		d := p.schema.Definition()
		l.Streams = append(l.Streams, openapi.Stream{
			Paths: p.down.Writes, Access: p.access, Columns: d.Columns, Extra: d.Extra != "", RecordsMax: p.route.Limits.Records,
			BodyBytes: p.route.Limits.Bytes, Strict: r.cfg.RefusesUnknown(p.unknown),
		})
	}
	if a.popups != nil {
		l.Popup = describePopups(a.popups.cfg, a.cfg.Demo)
		l.Popup.Strict = r.cfg.RefusesUnknown(a.popups.cfg.Unknown)
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

// proxyPrefix returns a trusted proxy, an address or a CIDR of a valid configuration.
func proxyPrefix(text string) netip.Prefix {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen())
	}
	return netip.MustParsePrefix(text)
}

// newAdmin creates the admin listener with the metrics of all parts.
func (a *app) newAdmin() *admin.Server {
	a.register()
	a.traffic = admin.NewTraffic(server.DurationBounds(), a.routeCounts)
	cfg := admin.Config{
		Listen: a.cfg.Admin.Listen, Tokens: adminTokens(a.cfg.Admin), Log: a.log, Registry: a.metrics,
		Ready: a.ready, Acks: a.streamAcks, Reload: a.reload, Traffic: a.traffic, Figures: a.figures, Streams: a.streamStats, Read: a.read,
		About: a.about(), Configuration: a.configuration, Changes: audit.Log{audit.NewFile(filepath.Join(a.cfg.Data, "changes.jsonl"))},
		Pages: func(access *admin.Access) http.Handler {
			return console.New(console.Config{Access: access, Popups: a.popups != nil, Log: a.log})
		},
	}
	cfg.Spools = map[string]*admin.Spool{streamSpool: {Open: a.spool.Load, Decode: stream.SpooledJSON, Do: a.orderSpool}}
	if p := a.popups; p != nil {
		cfg.Popups = p.admin()
		cfg.Changes = append(audit.Log{p.tables}, cfg.Changes...)
		cfg.Spools[popupSpool] = &admin.Spool{Open: p.spool.Load, Decode: popup.EventJSON, Do: orderEvents}
	}
	return admin.New(cfg)
}

// adminTokens returns the tokens of the admin listener.
func adminTokens(c config.Admin) []admin.Token {
	var all []admin.Token
	if c.Token != "" {
		all = append(all, admin.Token{Name: "admin", Token: c.Token.Reveal(), Role: admin.RoleAdmin})
	}
	for _, t := range c.Tokens {
		all = append(all, admin.Token{Name: t.Name, Token: t.Token.Reveal(), Role: admin.ParseRole(t.Role)})
	}
	return all
}

// adminToken returns a token that permits everything; "": none is configured.
func adminToken(c config.Admin) string {
	for _, t := range adminTokens(c) {
		if t.Role == admin.RoleAdmin {
			return t.Token
		}
	}
	return ""
}

// register adds the metrics of all parts. Those of the databases are added when they are opened.
func (a *app) register() {
	collectors := []prometheus.Collector{
		admin.BuildInfo(a.options.Version, a.options.Revision), a.public, admin.FeedStats(a.feedStats), admin.QueryStats(a.queryStats),
		admin.PartStats(a.state),
		admin.StreamStats(a.streamStats), admin.StreamAcks(a.streamAcks), admin.SpoolStats(a.spoolStats), admin.SpoolNameStats(a.spoolStats),
	}
	collectors = append(collectors, a.batches.Collectors()...)
	if a.popups != nil {
		collectors = append(collectors, admin.PopupStats(a.popups.figures), admin.PopupListStats(a.popups.popup.Lists))
	}
	if a.keySet != nil {
		collectors = append(collectors, admin.KeySetStats(a.keySet.Stats))
	}
	if a.replica != nil {
		collectors = append(collectors, admin.ReplicaStats(a.replica.store.url.String(), a.replica.reads))
	}
	a.metrics.MustRegister(collectors...)
}
