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
	"spillway/internal/serve/popup"
	"spillway/internal/serve/server"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/token"
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
	h.Loops = a.loops
	cfg := server.Config{HTTP: h, Log: a.log, Tokens: a.tokens, Cookie: r.cfg.Auth.Cookie}
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
	for _, text := range h.TrustedProxies { // addresses and CIDRs
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			addr := netip.MustParseAddr(text)
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		cfg.Proxies = append(cfg.Proxies, prefix)
	}
	if h.OpenAPI {
		document := openapi.Document(&r.cfg, r.columns, server.ProblemStatus())
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
	for _, p := range r.parts {
		access, strict := accessOf(r.cfg.ReadAccess(p.auth)), r.cfg.RefusesUnknown(p.unknown)
		switch columns := namesOf(p.source.Columns()); {
		case !serves(p.part, access):
		case p.query == nil:
			cfg.Feeds = append(cfg.Feeds, server.FeedRoute{
				Paths: p.down.Reads, Access: access, Feed: p.feed.Load(), Columns: columns, Strict: strict, Caching: p.caching,
			})
		default:
			cfg.Queries = append(cfg.Queries, server.QueryRoute{
				Paths: p.down.Reads, Access: access, Query: p.query, Envelope: p.envelope, Columns: columns, Strict: strict, Caching: p.caching,
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

// part returns the feed or the query with a path; nil: there is none.
func (r *reads) part(path string) *readPart {
	for _, p := range r.parts {
		if p.name == path {
			return p
		}
	}
	return nil
}

// columns returns the columns of the feed or the query with a path; nil if they are not known yet.
func (r *reads) columns(path string) []feed.Column {
	if p := r.part(path); p != nil {
		return p.source.Columns()
	}
	return nil
}

// namesOf returns the names of columns.
func namesOf(columns []feed.Column) feed.Columns {
	names := make(feed.Columns, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

// newAdmin creates the admin listener with the metrics of all parts.
func (a *app) newAdmin() *admin.Server {
	a.register()
	a.traffic = admin.NewTraffic(server.DurationBounds(), a.public.Counts)
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

// register adds the metrics of all parts and databases.
func (a *app) register() {
	collectors := []prometheus.Collector{
		admin.BuildInfo(a.options.Version, a.options.Revision), a.public,
		admin.Stats("spillway_feed_", a.feedStats), admin.Stats("spillway_query_", a.queryStats), admin.Stats("spillway_part_", a.state),
		admin.StreamStats(a.streamStats), admin.Stats("spillway_stream_", a.streamAcks),
		admin.Stats("spillway_spool_", a.spoolStats), admin.SpoolStats(a.spoolStats), admin.Stats("spillway_pool_", a.stores.pools),
	}
	collectors = append(collectors, a.batches.Collectors()...)
	if a.popups != nil {
		collectors = append(collectors, admin.Stats("spillway_popup_", func() []admin.PopupFigures {
			return []admin.PopupFigures{a.popups.figures()}
		}), admin.PopupListStats(a.popups.popup.Lists))
	}
	if a.keySet != nil {
		collectors = append(collectors, admin.Stats("spillway_jwks_", func() []token.SetStats { return []token.SetStats{a.keySet.Stats()} }))
	}
	if a.replica != nil {
		collectors = append(collectors, admin.ReplicaStats(a.replica.store.url.String(), a.replica.reads))
	}
	a.metrics.MustRegister(collectors...)
}
