package server

import (
	"time"

	"github.com/valyala/fasthttp"
)

// The probes show the cost of each layer: an empty endpoint, one Redis GET, one SQL
// statement.

const (
	probeTimeout = time.Second
	probeKeyMax  = 512 // bytes
)

// hello serves the empty endpoint.
func (s *Server) hello(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetContentTypeBytes(s.names.text)
	ctx.Response.AppendBodyString("hello world!!")
}

// probeDatabase runs one trivial statement through the pool.
func (s *Server) probeDatabase(ctx *fasthttp.RequestCtx) {
	if err := s.cfg.ProbeDatabase(s.probes.Context(ctx.Time())); err != nil {
		s.unavailable(ctx, databaseDown, "the database does not answer", err)
		return
	}
	ctx.Response.Header.SetContentTypeBytes(s.names.json)
	ctx.Response.AppendBodyString(`{"return_code":"SUCCESS","data":1}`)
}

// probeRedis reads one key. A missing key gives an empty response.
func (s *Server) probeRedis(ctx *fasthttp.RequestCtx) {
	if s.cfg.ProbeRedis == nil {
		s.problem(ctx, noRedis, "no Redis is configured; set redis: in the configuration or --redis")
		return
	}
	key := ctx.QueryArgs().Peek("key")
	if len(key) == 0 || len(key) > probeKeyMax {
		s.problem(ctx, badRequest, "key must have 1 to 512 bytes")
		return
	}
	value, found, err := s.cfg.ProbeRedis(s.probes.Context(ctx.Time()), string(key))
	switch {
	case err != nil:
		s.unavailable(ctx, redisDown, "Redis does not answer", err)
	case !found:
		ctx.SetStatusCode(fasthttp.StatusNoContent)
	default:
		ctx.Response.Header.SetContentTypeBytes(s.names.bytes)
		ctx.Response.AppendBody(value)
	}
}
