package server

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/compress"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

const paramsMax = 16 // parameters of one feed

// feedHandler serves one feed. A page from the window allocates nothing: headers are
// prepared bytes, and rows are copied from the snapshot into the connection's buffer.
type feedHandler struct {
	server    *Server
	feed      *feed.Feed
	params    []param.Param
	limitMax  int
	offsetMax int
	columns   feed.Columns
	control   []byte // Cache-Control
}

func newFeedHandler(s *Server, r FeedRoute) *feedHandler {
	_, limitMax, offsetMax := r.Feed.Limits()
	return &feedHandler{
		server: s, feed: r.Feed, params: r.Feed.Params(), limitMax: limitMax, offsetMax: offsetMax,
		columns: r.Columns, control: r.Caching.control(r.Access),
	}
}

// serve is a handler. It needs no waiting for a page of a window.
func (h *feedHandler) serve(ctx *fasthttp.RequestCtx, x *loopRequest) handled {
	var args [paramsMax]string
	r, problem := h.parse(ctx, args[:0])
	fields, err := fieldsOf(ctx, h.columns)
	events := asksForEvents(ctx)
	if problem == "" && err == nil && !events {
		if p, ok := h.feed.Now(arrival(ctx), r, quickBytes); ok {
			if x != nil {
				x.page = p.Cached
			}
			p.Select(fields)
			h.write(ctx, &r, &p, fields)
			return quick
		}
	}
	switch {
	case x != nil:
		if problem == "" && err == nil && !events && h.feed.Begin(x.answerer.loop, &x.feed.Wait, &x.later, arrival(ctx), r) {
			x.feed.handler, x.feed.request, x.feed.fields, x.wait = h, feed.Request{Offset: r.Offset, Limit: r.Limit}, fields, &x.feed
			return begins
		}
	case problem != "":
		h.server.problem(ctx, badRequest, problem)
	case err != nil:
		h.fail(ctx, err)
	case events:
		h.serveEvents(ctx, &r, fields)
	default:
		p, err := h.feed.Page(h.server.base, ctx.Time(), r)
		h.respond(ctx, &r, p, err, fields)
		if r.Before != "" && h.feed.InLoops() {
			return quick // there
		}
	}
	return slow
}

// feedWait is a request of an event loop for a page that is being read.
type feedWait struct {
	feed.Wait
	handler *feedHandler
	request feed.Request // its Offset and Limit
	fields  feed.Fields
}

// respond implements waiter.
func (w *feedWait) respond(ctx *fasthttp.RequestCtx, over bool) {
	got, err := w.Answer(over)
	p, err := w.handler.feed.Answered(w.request.Limit, got, err)
	w.handler.respond(ctx, &w.request, p, err, w.fields)
}

// respond responds with what the engine has returned.
func (h *feedHandler) respond(ctx *fasthttp.RequestCtx, r *feed.Request, p feed.Page, err error, fields feed.Fields) {
	if err != nil {
		h.fail(ctx, err)
		return
	}
	p.Select(fields)
	h.write(ctx, r, &p, fields)
}

// parse reads which page a request asks for. The returned texts share the request's memory.
// problem says what is wrong with the request, or is "".
func (h *feedHandler) parse(ctx *fasthttp.RequestCtx, args []string) (r feed.Request, problem string) {
	q := ctx.QueryArgs()
	if q.Len() > 0 {
		var ok bool
		if r.Offset, ok = parseBound(q.Peek("offset"), 0, h.offsetMax); !ok {
			return r, fmt.Sprintf("offset must be a whole number from 0 to %d", h.offsetMax)
		}
		if r.Limit, ok = parseBound(q.Peek("limit"), 1, h.limitMax); !ok {
			return r, fmt.Sprintf("limit must be a whole number from 1 to %d", h.limitMax)
		}
		r.Before = text(q.Peek("before"))
	}
	var err error
	if r.Args, err = h.server.arguments(ctx, h.params, args); err != nil {
		return r, err.Error()
	}
	return r, ""
}

// parseBound parses a decimal number from low to high. Empty text is 0, the default.
func parseBound(b []byte, low, high int) (int, bool) {
	if len(b) == 0 {
		return 0, true
	}
	if len(b) > 18 { // so that n cannot overflow
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, n >= low && n <= high
}

// text returns b as a string without copying. It is valid until the request ends.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// write responds with p, which has those fields.
func (h *feedHandler) write(ctx *fasthttp.RequestCtx, r *feed.Request, p *feed.Page, fields feed.Fields) {
	header := &ctx.Response.Header
	var room [24]byte
	age := max(arrival(ctx).Sub(p.ReadAt), 0)
	header.SetCanonical(headerAge, strconv.AppendInt(room[:0], int64(age/time.Second), 10))
	header.SetCanonical(headerCacheControl, h.control)
	header.SetCanonical(headerSource, feedSources[p.Source])
	if p.Source == feed.FromDatabase && r.Offset > 0 {
		header.SetCanonical(headerOffset, offsetExactness(p, arrival(ctx)))
	}
	var forms *compress.Forms
	var tag []byte
	if p.Rendered != nil {
		tag, forms = p.Rendered.ETag, &p.Rendered.Forms
	} else {
		tag = feed.AppendETag(room[:0], p.Tag())
	}
	body, send := h.server.represent(ctx, tag, forms, p.Size(), func() []byte { return p.Rendered.Body })
	if !send {
		h.feed.CountNotModified()
		return
	}
	header.SetContentTypeBytes(typeJSON)
	if p.Envelope == feed.EnvelopeNone && p.Next != "" {
		h.link(ctx, fields, p.Next)
	}
	switch {
	case body != nil:
		ctx.Response.SetBodyRaw(body)
	case p.Rendered != nil:
		ctx.Response.SetBodyRaw(p.Rendered.Body)
	default:
		h.server.setPage(ctx, p)
	}
}

// fieldsOf returns the columns that a request selects. The error wraps feed.ErrRequest.
func fieldsOf(ctx *fasthttp.RequestCtx, columns feed.Columns) (feed.Fields, error) {
	args := ctx.QueryArgs()
	if !args.Has("fields") {
		return feed.Fields{}, nil
	}
	var lists []string
	for _, list := range args.PeekMulti("fields") {
		lists = append(lists, text(list))
	}
	return columns.Select(lists...)
}

// link names the next page in a header (RFC 8288). The reference is relative to the request's
// own path, so that it also holds for an alias and behind a proxy that changes the path.
func (h *feedHandler) link(ctx *fasthttp.RequestCtx, fields feed.Fields, next string) {
	var room [512]byte
	ctx.Response.Header.SetCanonical(headerLink, appendLink(room[:0], ctx.QueryArgs(), h.params, fields, next))
}

// appendLink appends the value of the header Link to the page that begins at a cursor. The
// request's parameters stay if the feed reads them. Others may be secret, and a cache could give
// them to somebody else; proxies refuse responses with a long header.
func appendLink(dst []byte, args *fasthttp.Args, params []param.Param, fields feed.Fields, next string) []byte {
	dst = append(dst, "<?"...)
	used := make([]bool, len(params)+1) // the last one is limit
	for name, value := range args.All() {
		i := slices.IndexFunc(params, func(p param.Param) bool { return p.Name == string(name) })
		if string(name) == "limit" {
			i = len(params)
		}
		if i < 0 || used[i] && (i == len(params) || params[i].ListMax == 0) {
			continue
		}
		used[i] = true
		dst = append(fasthttp.AppendQuotedArg(dst, name), '=')
		dst = append(fasthttp.AppendQuotedArg(dst, value), '&')
	}
	if !fields.All() {
		dst = append(dst, "fields="...)
		dst = append(fasthttp.AppendQuotedArg(dst, []byte(fields.String())), '&')
	}
	dst = append(append(dst, "before="...), next...)
	return append(dst, `>; rel="next"`...)
}

// offsetExactness says how the offset of a page beyond the window was found.
func offsetExactness(p *feed.Page, now time.Time) []byte {
	if p.CountedAt.IsZero() {
		return []byte("exact")
	}
	return fmt.Appendf(nil, "counted; age=%.1f", max(now.Sub(p.CountedAt), 0).Seconds())
}

// fail responds to the engine's error.
func (h *feedHandler) fail(ctx *fasthttp.RequestCtx, err error) {
	switch {
	case errors.Is(err, feed.ErrCursor):
		h.server.problem(ctx, badCursor, "before is not a cursor of this list; start again without it")
	case errors.Is(err, feed.ErrRequest):
		h.server.problem(ctx, badRequest, clientText(err, feed.ErrRequest))
	case errors.Is(err, param.ErrValue):
		h.server.problem(ctx, badRequest, param.ForClient(err))
		h.server.cfg.Log.Debug("parameter rejected", "path", h.server.loggedPath(ctx), "request_id", h.server.id(ctx), "error", err)
	case errors.Is(err, feed.ErrCounting):
		h.server.unavailable(ctx, counting, clientText(err, feed.ErrRequest), err)
	case errors.Is(err, feed.ErrLongKeys):
		h.server.problem(ctx, keysTooLong, "the keys of these rows are too long for a cursor of the next page; ask for more rows at once")
	case errors.Is(err, feed.ErrLive):
		h.server.unavailable(ctx, busy, "as many values of the parameters have listeners as may (live_max)", err)
	case errors.Is(err, feed.ErrNullKey):
		h.server.unavailable(ctx, stale, "the end of this list is not known, because a row has NULL in the list's key", err)
	case errors.Is(err, feed.ErrBusy):
		h.server.unavailable(ctx, busy, "too many requests wait for the database, or it is too slow", err)
	case errors.Is(err, feed.ErrPaused):
		h.server.unavailable(ctx, stale, pausedText, err)
	default:
		h.server.unavailable(ctx, stale, "the database does not answer, and the cached rows are too old to be served", err)
	}
}

// pausedText is for clients that ask for a value that an operator has paused.
const pausedText = "an operator has paused the reading of these rows"

// clientText returns the text of an error of a kind, without the kind.
func clientText(err, kind error) string { return strings.TrimPrefix(err.Error(), kind.Error()+": ") }

// retryAfter is the Retry-After while the database does not answer. Refreshes are retried
// about once per second.
const retryAfter = time.Second

// retryText returns d as the seconds of a Retry-After header, at least 1.
func retryText(d time.Duration) string { return strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))) }
