package server

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
)

// queryHandler serves one query. Its responses have the form of feed pages.
type queryHandler struct {
	server *Server
	query  *query.Query
	errors query.LogLimit
}

func (h *queryHandler) serve(ctx *fasthttp.RequestCtx) {
	var room [paramsMax]string
	args := room[:0]
	for _, p := range h.query.Params() {
		value := given(ctx, p)
		if value == nil {
			h.server.problem(ctx, badRequest, fmt.Sprintf("parameter %s is missing", p.Name))
			return
		}
		canonical, err := query.ParseParam(p, text(value))
		if err != nil {
			h.fail(ctx, err)
			return
		}
		args = append(args, canonical)
	}
	if a := h.query.Cached(ctx.Time(), args); a != nil {
		h.write(ctx, a, query.FromMemory)
		return
	}
	waiting, stop := h.server.clientContext(ctx)
	a, from, err := h.query.Ask(waiting, ctx.Time(), args)
	stop()
	if err != nil {
		h.fail(ctx, err)
		return
	}
	if from == query.FromDatabase {
		if unlogged, due := h.errors.Success(ctx.Time()); due {
			h.server.cfg.Log.Info("query answers again", "query", h.query.Name(), "unlogged", unlogged)
		}
	}
	h.write(ctx, a, from)
}

func (h *queryHandler) write(ctx *fasthttp.RequestCtx, a *query.Answer, from query.From) {
	header, names := &ctx.Response.Header, &h.server.names
	var room [24]byte
	age := max(ctx.Time().Sub(a.ReadAt), 0)
	header.SetCanonical(names.age, strconv.AppendInt(room[:0], int64(age/time.Second), 10))
	header.SetCanonical(names.cacheControl, names.noCache)
	header.SetCanonical(names.source, names.origins[from])
	tag := feed.AppendETag(room[:0], a.Tag)
	header.SetCanonical(names.etag, tag)
	if matches(ctx.Request.Header.PeekBytes(names.ifNoneMatch), tag) {
		h.query.CountNotModified()
		ctx.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	header.SetContentTypeBytes(names.json)
	own := ctx.Response.SwapBody(nil)[:0] // the connection's buffer
	page := feed.Page{Data: a.Data, Rows: a.Rows}
	ctx.Response.SwapBody(page.Append(own))
}

// fail responds to the engine's error.
func (h *queryHandler) fail(ctx *fasthttp.RequestCtx, err error) {
	switch {
	case errors.Is(err, query.ErrRequest):
		h.server.problem(ctx, badRequest, strings.TrimPrefix(err.Error(), query.ErrRequest.Error()+": "))
	case errors.Is(err, query.ErrTooLarge):
		h.server.problem(ctx, resultTooLarge, "the result exceeds the limit of this query; its owner can raise rows_max or bytes_max, or add a LIMIT")
		h.logError(ctx, "query result too large", err)
	case errors.Is(err, query.ErrBusy):
		h.server.unavailable(ctx, busy, "too many requests wait for the database, or it is too slow", err)
	default:
		h.server.unavailable(ctx, databaseDown, "the database does not answer this query", err)
		h.logError(ctx, "query failed", err)
	}
}

// logError logs an error, at most once per second.
func (h *queryHandler) logError(ctx *fasthttp.RequestCtx, text string, err error) {
	if unlogged, due := h.errors.Error(ctx.Time()); due {
		h.server.cfg.Log.Warn(text, "query", h.query.Name(), "request_id", h.server.id(ctx), "error", err, "unlogged", unlogged)
	}
}
