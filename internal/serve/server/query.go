package server

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/compress"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/query"
	"spillway/internal/serve/queue"
)

// queryHandler serves one query. Its responses have the form of feed pages, or are the object
// of the only row.
type queryHandler struct {
	server   *Server
	query    *query.Query
	envelope feed.Envelope // with EnvelopeOne, 404 without a row
	columns  feed.Columns
	control  []byte // Cache-Control
	errors   query.LogLimit
	rejected query.LogLimit // of values that the database rejects
}

// serve is a handler. It needs no waiting for a cached answer.
func (h *queryHandler) serve(ctx *fasthttp.RequestCtx, x *loopRequest) handled {
	var room [paramsMax]string
	args, err := h.arguments(ctx, room[:0])
	var fields feed.Fields
	if err == nil {
		fields, err = fieldsOf(ctx, h.columns)
	}
	if err == nil {
		if a, ok := h.query.Now(arrival(ctx), args, quickBytes); ok {
			h.write(ctx, a, query.FromMemory, fields)
			return quick
		}
	}
	switch {
	case x != nil:
		if err == nil && h.query.Begin(x.answerer.loop, &x.query.Wait, &x.later, args) {
			x.query.handler, x.query.fields, x.wait = h, fields, &x.query
			return begins
		}
	case err != nil:
		h.fail(ctx, err)
	default:
		h.ask(ctx, args, fields)
		if h.query.InLoops() {
			return quick // there
		}
	}
	return slow
}

// queryWait is a request of an event loop whose query is being executed.
type queryWait struct {
	query.Wait
	handler *queryHandler
	fields  feed.Fields
}

// respond implements waiter.
func (w *queryWait) respond(ctx *fasthttp.RequestCtx, over bool) {
	a, from, err := w.handler.query.Answered(w.Answer(over))
	w.handler.respond(ctx, a, from, err, w.fields)
}

// ask responds with an answer that may have to be waited for.
func (h *queryHandler) ask(ctx *fasthttp.RequestCtx, args []string, fields feed.Fields) {
	waiting, stop := h.server.clientContext(ctx, h.query.Timeout())
	a, from, err := h.query.Ask(waiting, ctx.Time(), args)
	stop()
	h.respond(ctx, a, from, err, fields)
}

// respond responds with what the engine has returned.
func (h *queryHandler) respond(ctx *fasthttp.RequestCtx, a *query.Answer, from query.From, err error, fields feed.Fields) {
	if err != nil {
		h.fail(ctx, err)
		return
	}
	if from == query.FromDatabase {
		if unlogged, due := h.errors.Success(arrival(ctx)); due {
			h.server.cfg.Log.Info("query answers again", "query", h.query.Name(), "unlogged", unlogged)
		}
	}
	h.write(ctx, a, from, fields)
}

// arguments appends the arguments of the query's parameters to args. They share the request's
// memory.
func (h *queryHandler) arguments(ctx *fasthttp.RequestCtx, args []string) ([]string, error) {
	args, err := h.server.arguments(ctx, h.query.Params(), args)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", query.ErrRequest, err)
	}
	return args, nil
}

func (h *queryHandler) write(ctx *fasthttp.RequestCtx, a *query.Answer, from query.From, fields feed.Fields) {
	if h.envelope == feed.EnvelopeOne && a.Rows == 0 {
		h.server.problem(ctx, notFound, "no row has these values")
		return
	}
	header := &ctx.Response.Header
	var room [24]byte
	age := max(arrival(ctx).Sub(a.ReadAt), 0)
	header.SetCanonical(headerAge, strconv.AppendInt(room[:0], int64(age/time.Second), 10))
	header.SetCanonical(headerCacheControl, h.control)
	header.SetCanonical(headerSource, querySources[from])
	p := feed.NewPage(a.Data, a.Rows, a.Tag, h.envelope)
	p.Select(fields)
	var forms *compress.Forms
	if h.query.Caches() && !p.Selected() {
		forms = &a.Forms
	}
	var plain func() []byte
	if from == query.FromMemory { // only an answer that is used again is worth compressing
		plain = func() []byte { return p.Append(make([]byte, 0, p.Size())) }
	}
	body, send := h.server.represent(ctx, feed.AppendETag(room[:0], p.Tag()), forms, p.Size(), plain)
	if !send {
		h.query.CountNotModified()
		return
	}
	header.SetContentTypeBytes(typeJSON)
	if body != nil {
		ctx.Response.SetBodyRaw(body)
		return
	}
	h.server.setPage(ctx, &p)
}

// fail responds to the engine's error.
func (h *queryHandler) fail(ctx *fasthttp.RequestCtx, err error) {
	switch {
	case errors.Is(err, feed.ErrRequest):
		h.server.problem(ctx, badRequest, clientText(err, feed.ErrRequest))
	case errors.Is(err, query.ErrRequest):
		h.server.problem(ctx, badRequest, clientText(err, query.ErrRequest))
	case errors.Is(err, feed.ErrTooLarge):
		detail := "the result exceeds the limit of this query; its owner can raise rows_max or bytes_max, or add a LIMIT"
		if h.envelope == feed.EnvelopeOne {
			detail = "the result has several rows, or exceeds bytes_max; the query's owner can add LIMIT 1, or raise bytes_max"
		}
		h.server.problem(ctx, resultTooLarge, detail)
		h.logError(ctx, &h.errors, "query result too large", err)
	case errors.Is(err, param.ErrValue) && len(h.query.Params()) > 0:
		h.server.problem(ctx, badRequest, param.ForClient(err))
		h.logError(ctx, &h.rejected, "query rejects a value", err)
	case errors.Is(err, query.ErrBusy):
		h.server.unavailable(ctx, busy, "too many requests wait for the database, or it is too slow", err)
		var overload *queue.Overload
		if errors.As(err, &overload) {
			ctx.Response.Header.Set("Retry-After", retryText(overload.RetryAfter))
		}
	case errors.Is(err, feed.ErrPaused):
		h.server.unavailable(ctx, databaseDown, pausedText, err)
	default:
		h.server.unavailable(ctx, databaseDown, "the database does not answer this query", err)
		h.logError(ctx, &h.errors, "query failed", err)
	}
}

// logError logs an error, at most once per second and limit.
func (h *queryHandler) logError(ctx *fasthttp.RequestCtx, limit *query.LogLimit, text string, err error) {
	if unlogged, due := limit.Error(arrival(ctx)); due {
		h.server.cfg.Log.Warn(text, "query", h.query.Name(), "request_id", h.server.id(ctx), "error", err, "unlogged", unlogged)
	}
}
