package server

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	logPendingMax = 1 << 20              // bytes of lines that wait to be written
	logEvery      = 5 * time.Millisecond // from one write to the next
	logCloseWait  = time.Second          // for the last write
)

// AccessLog writes a line per request, and lets no request wait for it: lines that cannot be written, or that come faster than they
// can be, are lost and counted. Its methods may be called concurrently.
type AccessLog struct {
	out     io.Writer
	handler slog.Handler // writes lines to the log itself
	lost    atomic.Uint64
	some    chan struct{} // lines wait
	closing chan struct{}
	done    chan struct{} // closed when nothing will be written any more

	mu      sync.Mutex
	pending []byte // whole lines
	closed  bool
}

// NewAccessLog returns a log that writes to out in the format of a handler. The owner must call Close, once.
func NewAccessLog(out io.Writer, format func(io.Writer) slog.Handler) *AccessLog {
	l := &AccessLog{out: out, some: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{})}
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
		select {
		case l.some <- struct{}{}:
		default: // run has not seen the last one yet
		}
	}
	l.pending = append(l.pending, line...)
	return len(line), nil
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

// count counts a request that has been answered, and writes its line if the level of the log includes it.
func (s *Server) count(ctx *fasthttp.RequestCtx, r *route, took time.Duration) {
	r.meter.observe(ctx.Response.StatusCode(), took)
	if s.cfg.AccessLog == nil || !s.cfg.AccessLog.handler.Enabled(s.base, slog.LevelInfo) {
		return
	}
	var room [9]slog.Attr
	attrs := append(room[:0], slog.String("request_id", s.id(ctx)), slog.String("client", s.client(ctx)),
		slog.String("method", string(ctx.Method())), slog.String("route", r.name), slog.String("uri", loggedURI(ctx)),
		slog.Int("status", ctx.Response.StatusCode()), slog.Int("bytes", bodySize(&ctx.Response)), slog.Float64("seconds", took.Seconds()))
	if trace := traceID(&ctx.Request.Header); trace != "" {
		attrs = append(attrs, slog.String("trace_id", trace))
	}
	record := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
	record.AddAttrs(attrs...)
	_ = s.cfg.AccessLog.handler.Handle(s.base, record) // Write does not fail
}

// traceID returns the trace id of a request's traceparent (https://www.w3.org/TR/trace-context/); "": it has no valid one.
func traceID(h *fasthttp.RequestHeader) string {
	text := h.PeekBytes(headerTraceparent)
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(text) < size || len(text) > size && (string(text[:2]) == "00" || text[size] != '-') || string(text[:2]) == "ff" {
		return ""
	}
	version, trace, parent, flags := text[:2], text[3:35], text[36:52], text[53:size]
	dashes := text[2] == '-' && text[35] == '-' && text[52] == '-'
	if !dashes || !isHex(version) || !isHex(trace) || !isHex(parent) || !isHex(flags) || isZero(trace) || isZero(parent) {
		return ""
	}
	return string(trace)
}

// isHex reports whether text consists of lower-case hexadecimal digits.
func isHex(text []byte) bool { return len(bytes.Trim(text, "0123456789abcdef")) == 0 }

func isZero(digits []byte) bool { return len(bytes.Trim(digits, "0")) == 0 }
