package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	logPendingMax = 1 << 20               // bytes of lines that wait to be written
	logWriteAt    = 64 << 10              // bytes that are written at once, also before logEvery is over
	logEvery      = 20 * time.Millisecond // from one write of fewer bytes to the next
	logCloseWait  = time.Second           // for the last write
)

// AccessLog writes a line per request, and lets no request wait for it: lines that cannot be written, or that come faster than they
// can be, are lost and counted. Its methods may be called concurrently.
type AccessLog struct {
	out     io.Writer
	handler slog.Handler // writes lines to the log itself
	lost    atomic.Uint64
	some    chan struct{} // lines wait
	many    chan struct{} // logWriteAt bytes wait
	closing chan struct{}
	done    chan struct{} // closed when nothing will be written any more

	mu      sync.Mutex
	pending []byte // whole lines
	closed  bool
}

// NewAccessLog returns a log that writes to out in the format of a handler. The owner must call Close, once.
func NewAccessLog(out io.Writer, format func(io.Writer) slog.Handler) *AccessLog {
	l := &AccessLog{
		out: out, some: make(chan struct{}, 1), many: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	l.handler = format(l)
	go l.run()
	return l
}

// Write takes one line. It implements io.Writer for the handler.
func (l *AccessLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.pending)+len(line) > logPendingMax {
		l.lost.Add(1)
		return len(line), nil
	}
	if len(l.pending) == 0 {
		signal(l.some)
	}
	l.pending = append(l.pending, line...)
	if len(l.pending) >= logWriteAt {
		signal(l.many)
	}
	return len(line), nil
}

// signal leaves a signal in c, if there is none yet.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run writes what is pending until Close.
func (l *AccessLog) run() {
	defer close(l.done)
	var lines []byte
	var last time.Time
	for closing := false; !closing; {
		select {
		case <-l.some:
		case <-l.closing:
		}
		select {
		case <-time.After(logEvery - time.Since(last)):
		case <-l.many:
		case <-l.closing:
			closing = true
		}
		l.mu.Lock()
		lines, l.pending = l.pending, lines[:0]
		l.closed = closing
		l.mu.Unlock()
		if n, err := l.out.Write(lines); err != nil {
			l.lost.Add(uint64(bytes.Count(lines[n:], []byte("\n"))))
		}
		last = time.Now()
	}
}

// Close writes the lines that wait, unless that takes longer than a second. Later lines are lost.
func (l *AccessLog) Close() {
	close(l.closing)
	select {
	case <-l.done:
	case <-time.After(logCloseWait):
	}
}

// accessLine is a line without its time and how long the response has taken.
type accessLine struct {
	id, client, method, route, uri, trace string
	status, bytes                         int
}

// accessLine returns the line of a request that has been answered.
func (s *Server) accessLine(ctx *fasthttp.RequestCtx, r *route) accessLine {
	return accessLine{
		id: s.id(ctx), client: s.client(ctx), method: string(ctx.Method()), route: r.name, uri: s.loggedURI(ctx),
		trace: traceID(&ctx.Request.Header), status: ctx.Response.StatusCode(), bytes: bodySize(&ctx.Response),
	}
}

// write writes a line, if the level of the log includes it.
func (l *AccessLog) write(line *accessLine, took time.Duration) {
	ctx := context.Background()
	if !l.handler.Enabled(ctx, slog.LevelInfo) {
		return
	}
	var room [9]slog.Attr
	attrs := append(room[:0], slog.String("request_id", line.id), slog.String("client", line.client), slog.String("method", line.method),
		slog.String("route", line.route), slog.String("uri", line.uri), slog.Int("status", line.status), slog.Int("bytes", line.bytes),
		slog.Float64("seconds", took.Seconds()))
	if line.trace != "" {
		attrs = append(attrs, slog.String("trace_id", line.trace))
	}
	record := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
	record.AddAttrs(attrs...)
	_ = l.handler.Handle(ctx, record) // Write does not fail
}

// logAccess writes the line of a request that has been answered.
func (s *Server) logAccess(ctx *fasthttp.RequestCtx, r *route, took time.Duration) {
	if s.cfg.AccessLog != nil {
		line := s.accessLine(ctx, r)
		s.cfg.AccessLog.write(&line, took)
	}
}

// traceID returns the trace id of a request's traceparent (https://www.w3.org/TR/trace-context/); "": it has no valid one.
func traceID(h *fasthttp.RequestHeader) string {
	const version, trace, parent, flags = 2, 32, 16, 2
	text := h.PeekBytes(headerTraceparent)
	if len(text) < version+trace+parent+flags+3 || string(text[:version]) == "ff" {
		return ""
	}
	if len(text) > version+trace+parent+flags+3 && (string(text[:version]) == "00" || text[version+trace+parent+flags+3] != '-') {
		return ""
	}
	parts := bytes.SplitN(text, []byte("-"), 5)
	if len(parts) < 4 || !isHex(parts[0], version) || !isHex(parts[1], trace) || !isHex(parts[2], parent) || !isHex(parts[3], flags) {
		return ""
	}
	if len(bytes.Trim(parts[1], "0")) == 0 || len(bytes.Trim(parts[2], "0")) == 0 {
		return ""
	}
	return string(parts[1])
}

// isHex reports whether text has n lower-case hexadecimal digits.
func isHex(text []byte, n int) bool {
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(text) == n
}
