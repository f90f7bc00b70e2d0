package server

import (
	"context"
	"time"

	"github.com/valyala/fasthttp"
)

// Probes show the cost of each layer: /hello and /probe/empty answer without work,
// /probe/database runs one SQL statement, and /probe/redis reads one key.
type Probes struct {
	Database func(context.Context) error                         // one trivial statement
	Redis    func(context.Context, string) ([]byte, bool, error) // GET key; nil: no Redis is configured
}

const (
	probeTimeout = time.Second
	probeKeyMax  = 512 // bytes

	// probePrefix begins every key that a probe reads. Without it, anyone could read the
	// other keys of that Redis.
	probePrefix = "spillway:probe:"
)

// prober serves the probes.
type prober struct {
	Probes
	server    *Server
	deadlines *sharedDeadline
}

// addProbes adds the routes of the probes.
func (s *Server) addProbes(probes Probes) {
	p := &prober{Probes: probes, server: s, deadlines: newSharedDeadline(s.base, probeTimeout)}
	s.addRead([]string{"/hello"}, Open, p.hello)
	s.addRead([]string{"/probe/empty"}, Open, p.hello)
	s.addRead([]string{"/probe/database"}, Open, waiting(p.database))
	s.addRead([]string{"/probe/redis"}, Open, waiting(p.redis))
}

// hello is the handler of the empty endpoint.
func (p *prober) hello(ctx *fasthttp.RequestCtx, _ *loopRequest) handled {
	ctx.Response.Header.SetContentTypeBytes(typeText)
	ctx.Response.AppendBodyString("hello world!!")
	return quick
}

// database runs one trivial statement through the pool.
func (p *prober) database(ctx *fasthttp.RequestCtx) {
	if err := p.Database(p.deadlines.Context(ctx.Time())); err != nil {
		p.server.unavailable(ctx, databaseDown, "the database does not answer", err)
		return
	}
	ctx.Response.Header.SetContentTypeBytes(typeJSON)
	ctx.Response.AppendBodyString(`{"return_code":"SUCCESS","data":1}`)
}

// redis reads one key. A missing key gives an empty response.
func (p *prober) redis(ctx *fasthttp.RequestCtx) {
	if p.Redis == nil {
		p.server.problem(ctx, noRedis, "no Redis is configured; set redis: in the configuration or --redis")
		return
	}
	key := ctx.QueryArgs().Peek("key")
	if len(key) == 0 || len(key) > probeKeyMax {
		p.server.problem(ctx, badRequest, "key must have 1 to 512 bytes")
		return
	}
	value, found, err := p.Redis(p.deadlines.Context(ctx.Time()), probePrefix+string(key))
	switch {
	case err != nil:
		p.server.unavailable(ctx, redisDown, "Redis does not answer", err)
	case !found:
		ctx.SetStatusCode(fasthttp.StatusNoContent)
	default:
		ctx.Response.Header.SetContentTypeBytes(typeBytes)
		ctx.Response.SetBodyRaw(value)
	}
}
