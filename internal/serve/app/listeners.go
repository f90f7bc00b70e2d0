package app

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/exit"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/server"
)

// newServer creates the public listener.
func (a *app) newServer() (*server.Server, error) {
	h := a.cfg.HTTP
	cfg := server.Config{
		Feeds:         a.feedRoutes,
		Queries:       a.queryRoutes,
		Streams:       a.streamRoutes,
		ProbeDatabase: a.defaultStore().Probe,
		Connections:   h.Connections,
		HeaderBytes:   h.HeaderBytes,
		BodyBytes:     h.BodyBytes,
		BodiesBytes:   int64(h.BodiesBytes),
		ReadTimeout:   h.ReadTimeout,
		WriteTimeout:  h.WriteTimeout,
		IdleTimeout:   h.IdleTimeout,
		DrainTimeout:  h.DrainTimeout,
		CORSOrigins:   h.CORSOrigins,
		AccessLog:     a.cfg.Log.Access,
		Log:           a.log,
		Rate:          server.RateConfig{PerMinute: h.RatePerMinute, Burst: h.RateBurst, Clients: h.RateClients},
	}
	for _, key := range a.cfg.Keys {
		cfg.Keys = append(cfg.Keys, key.Reveal())
	}
	for _, key := range a.cfg.Auth.Keys {
		cfg.ReadKeys = append(cfg.ReadKeys, key.Reveal())
	}
	cfg.Tokens = a.tokens
	if a.redis != nil {
		cfg.ProbeRedis = a.redis.Get
	}
	if a.popups != nil {
		route, err := a.popups.route()
		if err != nil {
			return nil, err
		}
		cfg.Popup = route
	}
	if h.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(h.TLSCert, h.TLSKey)
		if err != nil {
			return nil, exit.UsageError(fmt.Errorf("load TLS certificate: %w", err))
		}
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	for _, text := range h.TrustedProxies {
		p, err := parsePrefix(text)
		if err != nil {
			return nil, exit.UsageError(fmt.Errorf("trusted proxy: %w", err))
		}
		cfg.Proxies = append(cfg.Proxies, p)
	}
	return server.New(cfg)
}

// parsePrefix parses an address or a CIDR.
func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(text) // its text names the value
}

// newAdmin creates the admin listener with the metrics of all parts.
func (a *app) newAdmin(public *server.Server) (*admin.Server, error) {
	registry := prometheus.NewRegistry()
	if err := a.register(registry, public); err != nil {
		return nil, err
	}
	cfg := admin.Config{
		Listen: a.cfg.Admin.Listen, Token: a.cfg.Admin.Token.Reveal(), Log: a.log, Registry: registry,
		Ready: func() []admin.Problem { return a.problems(public) }, Acks: a.streamAcks,
	}
	if a.popups != nil {
		cfg.Popups = a.popups.admin()
	}
	adm, err := admin.New(cfg)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	return adm, nil
}

// register adds the metrics of all parts.
func (a *app) register(registry *prometheus.Registry, public *server.Server) error {
	collectors := []prometheus.Collector{
		public, admin.FeedStats(a.feedStats), admin.QueryStats(a.queryStats),
		admin.StreamStats(a.streamStats), admin.StreamAcks(a.streamAcks), a.batches, admin.SpoolStats(a.spoolStats), admin.SpoolNameStats(a.spoolStats),
	}
	if a.popups != nil {
		collectors = append(collectors, admin.PopupStats(a.popups.figures))
	}
	if a.keySet != nil {
		collectors = append(collectors, admin.KeySetStats(a.keySet.Stats))
	}
	if a.replica != nil {
		collectors = append(collectors, admin.ReplicaStats(a.replica.store.url.String(), a.replica.reads))
	}
	for _, st := range a.stores.open {
		collectors = append(collectors, admin.PoolStats(st.url.String(), st.Stats))
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// problems returns why the process is not ready.
func (a *app) problems(public *server.Server) []admin.Problem {
	var problems []admin.Problem
	if public.Draining() {
		problems = append(problems, admin.Problem{Name: "server", Reason: "stopping"})
	} else if !public.Serving() {
		problems = append(problems, admin.Problem{Name: "server", Reason: "starting: waiting for the databases"})
	}
	now := time.Now()
	for _, f := range a.feeds {
		if err := f.Ready(now); err != nil {
			problems = append(problems, admin.Problem{Name: f.Name(), Reason: err.Error()})
		}
	}
	for _, p := range a.streams {
		if err := p.ready(); err != nil {
			problems = append(problems, admin.Problem{Name: "POST " + p.name(), Reason: err.Error()})
		}
	}
	if a.popups != nil {
		if err := a.popups.ready(); err != nil {
			problems = append(problems, admin.Problem{Name: a.cfg.Popups.Path, Reason: err.Error()})
		}
	}
	return problems
}
