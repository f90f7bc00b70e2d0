package target

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"
)

// http2Conn is an HTTP/2 connection of net/http that carries one request at a time.
type http2Conn struct {
	conn   *http.ClientConn
	ctx    context.Context // abort ends it
	cancel context.CancelFunc
	clock  Clock
	mix    *httpMix
	checks *Checks
	source *Source
	base   string // scheme and host of every URL
	path   []byte
	header []byte
	body   []byte
	text   bytes.Buffer // of the answer, for the checks
	memory scratch
}

// dialHTTP2 opens a TLS connection that must negotiate h2.
func (t *Target) dialHTTP2(ctx context.Context, number int, source *Source) (blockingConn, error) {
	config := t.tls.Clone()
	config.NextProtos = []string{"h2"}
	transport := &http.Transport{
		Protocols:          new(http.Protocols),
		DisableCompression: true, // requests have the headers that the user wrote
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return t.network.dialTLS(ctx, number, config)
		},
	}
	transport.Protocols.SetHTTP2(true)
	conn, err := transport.NewClientConn(ctx, "https", t.host)
	if err != nil {
		return nil, err
	}
	c := &http2Conn{
		conn: conn, clock: t.config.Clock, mix: t.http, checks: &t.config.Checks,
		source: source, base: "https://" + t.host,
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

func (c *http2Conn) exchange(o *Outcome, deadline time.Time, _ bool) bool {
	ctx, cancel := context.WithDeadline(c.ctx, deadline)
	defer cancel()
	c.source.next()
	r := &c.mix.requests[o.number]
	o.Kind = r.kind
	request, err := c.build(ctx, r, o)
	if err != nil {
		o.Err = err
		return false
	}
	o.Sent = c.clock.Now()
	o.BytesSent = len(c.path) + len(c.body)
	response, err := c.conn.RoundTrip(request)
	if err != nil {
		o.Err = fmt.Errorf("exchange: %w", err)
		return false
	}
	defer response.Body.Close()
	o.Status = response.StatusCode
	c.text.Reset()
	if most := c.checks.bodyMax(o.Status); most > 0 {
		n, err := c.text.ReadFrom(io.LimitReader(response.Body, int64(most)))
		o.BytesReceived += n
		o.Err = err
	}
	n, err := io.Copy(io.Discard, response.Body)
	o.BytesReceived += n
	if err != nil {
		o.Err = fmt.Errorf("read answer: %w", err)
	}
	if o.Err != nil {
		return false
	}
	o.Done = c.clock.Now()
	a := answer{status: o.Status, body: c.text.Bytes()}
	if !c.checks.expected(o.Status) {
		a.problem = strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json")
		a.location = []byte(response.Header.Get("Location"))
	}
	o.Err = c.checks.judge(&a, &c.memory)
	return c.conn.Err() == nil
}

func (c *http2Conn) build(ctx context.Context, r *builtRequest, o *Outcome) (*http.Request, error) {
	c.path = r.path.append(c.path[:0], c.source)
	c.body = r.body.append(c.body[:0], c.source)
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { o.First = c.clock.Now() }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), r.method, c.base+string(c.path), nil)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	if r.withBody {
		request.Body = io.NopCloser(bytes.NewReader(c.body)) // GetBody stays nil: net/http must not send it again
		request.ContentLength = int64(len(c.body))
	}
	for i := range c.mix.headers {
		h := &c.mix.headers[i]
		c.header = h.value.append(c.header[:0], c.source)
		if http.CanonicalHeaderKey(h.name) == "Host" {
			request.Host = string(c.header)
			continue
		}
		request.Header.Add(h.name, string(c.header))
	}
	return request, nil
}

func (c *http2Conn) abort() { c.cancel() }

func (c *http2Conn) close() {
	c.cancel()
	c.conn.Close()
}
