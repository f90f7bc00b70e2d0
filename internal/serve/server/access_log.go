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

// count counts a request that has been answered, and writes its line.
func (s *Server) count(ctx *fasthttp.RequestCtx, r *route, took time.Duration) {
	r.meter.observe(ctx.Response.StatusCode(), took)
	if s.cfg.AccessLog != nil {
		line := s.accessLine(ctx, r)
		s.cfg.AccessLog.write(&line, took)
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
