package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/stream"
)

// StreamRoute is where records are posted to a stream.
type StreamRoute struct {
	Paths   []string
	Access  Access // Open is Key: one of Config.Keys; without keys, nothing
	Schema  *stream.Schema
	Limits  stream.Limits // of a body; Bytes applies before and after decompression
	Timeout time.Duration // longest wait of a request, plus up to a sixteenth
	Strict  bool          // requests with parameters are refused
	Stream  Stream
	// Unreadable, if set, is called for each body that cannot be parsed. It is called
	// concurrently.
	Unreadable func()
}

// Stream stores the records of requests. Its method may be called concurrently.
type Stream interface {
	// Begin makes a request's records as safe as the receipt says, which w has if it is not nil. See stream.Stream and its errors. It
	// keeps no part of the HTTP request.
	Begin(ctx context.Context, r stream.Request, ready func() (wake func())) (receipt stream.Receipt, w stream.Waiting, err error)
}

// streamHandler serves one stream.
type streamHandler struct {
	server    *Server
	route     StreamRoute
	deadlines *sharedDeadline
	gunzips   sync.Pool // of *gunzip
}

// serve is a handler.
func (h *streamHandler) serve(ctx *fasthttp.RequestCtx, x *loopRequest) handled {
	var ready func() (wake func())
	if x != nil {
		ready = x.ready
	}
	fits := slow
	if header := &ctx.Request.Header; x != nil || !large(header) && len(header.ContentEncoding()) == 0 {
		fits = quick
	}
	now := time.Now()
	r, ok := h.read(ctx, now)
	if !ok {
		return fits
	}
	wait := h.deadlines.Context(now)
	receipt, w, err := h.route.Stream.Begin(wait, r, ready)
	switch {
	case w != nil && x != nil:
		x.later.Limit, x.wait = h.route.Timeout, &streamWait{h, w, r.Key != ""}
		return begins
	case w != nil:
		receipt, err = w.Receipt(wait)
	case errors.Is(err, queue.ErrShared):
		return slow
	}
	h.answer(ctx, &receipt, err, r.Key != "")
	return fits
}

// streamWait is a request of an event loop whose records are being stored.
type streamWait struct {
	*streamHandler
	stream.Waiting
	keyed bool
}

// respond implements waiter.
func (w *streamWait) respond(ctx *fasthttp.RequestCtx, over bool) {
	if over {
		w.Abandon()
		w.fail(ctx, queue.ErrUnknown, w.keyed)
		return
	}
	receipt, err := w.Receipt(w.server.base) // it is known
	w.answer(ctx, &receipt, err, w.keyed)
}

// answer responds with what Stream has returned.
func (h *streamHandler) answer(ctx *fasthttp.RequestCtx, receipt *stream.Receipt, err error, keyed bool) {
	if err != nil {
		h.fail(ctx, err, keyed)
		return
	}
	h.write(ctx, receipt)
}

// read reads a request that arrived at now. If it cannot be used, read has answered it.
func (h *streamHandler) read(ctx *fasthttp.RequestCtx, now time.Time) (r stream.Request, ok bool) {
	form, ok := formOf(ctx.Request.Header.ContentType())
	if !ok {
		h.server.problem(ctx, badMedia, "send JSON as Content-Type application/json, or one record per line as application/x-ndjson")
		return r, false
	}
	var key []byte
	keys := ctx.Request.Header.PeekAll(headerKey)
	if len(keys) > 0 {
		key = keys[0]
	}
	if len(keys) > 1 {
		h.server.problem(ctx, badRequest, "there are several Idempotency-Key headers: send one")
		return r, false
	}
	if len(keys) > 0 && len(key) == 0 {
		h.server.problem(ctx, badRequest, "Idempotency-Key is empty: omit the header, or send a key")
		return r, false
	}
	if queue.CheckKey(text(key)) != nil {
		h.server.problem(ctx, badRequest, fmt.Sprintf("Idempotency-Key must be UTF-8 of at most %d bytes, without NUL", queue.KeyMax))
		return r, false
	}
	r, ok = h.parse(ctx, form, key, now)
	if !ok {
		if h.route.Unreadable != nil {
			h.route.Unreadable()
		}
		return r, false
	}
	h.server.dropBody(ctx)
	return r, true
}

// formOf returns the form of a body from its Content-Type. A request without one is also
// refused, because a web page could send it to another origin without permission.
func formOf(contentType []byte) (stream.Form, bool) {
	name, _, _ := bytes.Cut(contentType, []byte(";"))
	name = bytes.TrimSpace(name)
	if bytes.EqualFold(name, []byte("application/json")) {
		return stream.FormJSON, true
	}
	form := stream.FormOf(text(name))
	return form, form == stream.FormLines
}

// parse reads the body, which arrived at now. If it cannot be used, parse has answered the
// request.
func (h *streamHandler) parse(ctx *fasthttp.RequestCtx, form stream.Form, key []byte, now time.Time) (r stream.Request, ok bool) {
	body := ctx.Request.Body()
	switch encoding := ctx.Request.Header.ContentEncoding(); {
	case len(encoding) == 0:
	case bytes.EqualFold(encoding, []byte("gzip")):
		z := h.gunzip()
		defer h.gunzips.Put(z)
		var err error
		if body, err = z.read(body, h.route.Limits.Bytes); err != nil {
			h.server.problem(ctx, badBody, "the body is not gzip, although its Content-Encoding says so")
			return r, false
		}
	default:
		h.server.problem(ctx, badMedia, "send the body uncompressed or with Content-Encoding gzip")
		ctx.Response.Header.Set("Accept-Encoding", "gzip")
		return r, false
	}
	if len(body) > h.route.Limits.Bytes {
		h.server.problem(ctx, bodyTooLarge, sizeDetail(h.route.Limits.Bytes))
		return r, false
	}
	who, _ := ctx.UserValue(callerKey{}).(caller)
	bound, err := h.route.Schema.Bind(who.claims.Text)
	if err != nil {
		h.server.problem(ctx, noClaim, err.Error())
		return r, false
	}
	r.Records, r.Refused, err = h.route.Schema.ParseBound(body, form, now, h.route.Limits, bound)
	switch {
	case errors.Is(err, stream.ErrTooMany):
		h.server.problem(ctx, bodyTooLarge, fmt.Sprintf("the body has more than %d records (records_max): send fewer per request",
			h.route.Limits.Records))
		return r, false
	case err != nil:
		h.server.problem(ctx, badBody, clientText(err, stream.ErrBody))
		return r, false
	}
	if len(key) > 0 {
		r.Key, r.Fingerprint = h.server.scoped(ctx, key), stream.FingerprintOf(body)
	}
	return r, true
}

func sizeDetail(most int) string {
	return fmt.Sprintf("request body is larger than %d bytes", most)
}

// write responds to a request whose records were accepted.
func (h *streamHandler) write(ctx *fasthttp.RequestCtx, r *stream.Receipt) {
	if r.Stored == 0 && len(r.Refused) > 0 {
		h.server.refuse(ctx, noneStored, "every record is rejected: see refused", r.Refused)
		return
	}
	if r.Pending {
		ctx.SetStatusCode(fasthttp.StatusAccepted)
	}
	ctx.Response.Header.SetContentTypeBytes(typeJSON)
	own := ctx.Response.SwapBody(nil)[:0] // the connection's buffer
	own = append(own, `{"stored":`...)
	own = strconv.AppendInt(own, int64(r.Stored), 10)
	own = append(own, `,"ack":"`...)
	own = append(own, r.Ack...) // settings and values: needs no escaping
	own = append(own, '"')
	if r.Replayed {
		own = append(own, `,"replayed":true`...)
	}
	if len(r.Refused) > 0 {
		refused, err := json.Marshal(r.Refused)
		if err != nil {
			panic("bug: refusals do not encode: " + err.Error())
		}
		own = append(append(own, `,"refused":`...), refused...)
	}
	ctx.Response.SwapBody(append(own, '}'))
}

// fail responds to the engine's error.
func (h *streamHandler) fail(ctx *fasthttp.RequestCtx, err error, keyed bool) {
	var overload *queue.Overload
	switch s := h.server; {
	case errors.As(err, &overload):
		s.unavailable(ctx, busy, fmt.Sprintf("too many records wait for the database (%s): nothing was stored", overload.Limit), err)
		ctx.Response.Header.Set("Retry-After", retryText(overload.RetryAfter))
	case errors.Is(err, queue.ErrUnknown):
		s.problem(ctx, unknownOutcome, unknownDetail(keyed))
	case errors.Is(err, stream.ErrUnavailable):
		s.unavailable(ctx, databaseDown, "the database does not accept records now: nothing was stored, retry later", err)
	case errors.Is(err, queue.ErrClosed):
		s.unavailable(ctx, stopping, "this process is stopping: nothing was stored, retry with another one", err)
	case errors.Is(err, queue.ErrKeyReused):
		s.problem(ctx, keyReused, "this Idempotency-Key was used with another body: nothing was stored; use a new key for new records")
	case errors.Is(err, queue.ErrTooLarge):
		s.problem(ctx, bodyTooLarge, "the request has more records than the queue holds (queue_rows, queue_bytes): send fewer per request")
	default:
		s.problem(ctx, notStored, "the database rejects the transaction until the cause in the log is fixed: nothing was stored")
		s.cfg.Log.Debug("records not stored", "stream", h.route.Paths[0], "request_id", s.id(ctx), "error", err)
	}
}

func unknownDetail(keyed bool) string {
	const known = "the database has not answered, so that the records may or may not be stored; "
	if keyed {
		return known + "send the request again with the same Idempotency-Key, and they are stored once"
	}
	return known + "check before sending them again; with an Idempotency-Key a repeated request stores nothing twice"
}

// gunzip decompresses bodies into one buffer.
type gunzip struct {
	source bytes.Reader
	reader gzip.Reader
	out    []byte
}

// gunzip returns an unused gunzip.
func (h *streamHandler) gunzip() *gunzip {
	if z, ok := h.gunzips.Get().(*gunzip); ok {
		return z
	}
	return new(gunzip)
}

// read decompresses body. The result is valid until the next call. If it is longer than most
// bytes, it is cut at one byte more.
func (z *gunzip) read(body []byte, most int) ([]byte, error) {
	z.source.Reset(body)
	if err := z.reader.Reset(&z.source); err != nil {
		return nil, fmt.Errorf("read gzip header: %w", err)
	}
	z.out = z.out[:0]
	for len(z.out) <= most {
		if len(z.out) == cap(z.out) {
			z.out = append(z.out, make([]byte, max(4096, len(z.out)))...)[:len(z.out)]
		}
		n, err := z.reader.Read(z.out[len(z.out):min(cap(z.out), most+1)])
		z.out = z.out[:len(z.out)+n]
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
	}
	return z.out, nil
}
