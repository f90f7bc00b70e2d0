package target

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// http2Link speaks HTTP/2 through net/http, one request at a time on its
// connection.
type http2Link struct {
	conn    *http.ClientConn
	ctx     context.Context // of the run; abort ends it
	cancel  context.CancelFunc
	clock   Clock
	timeout time.Duration
	mix     *httpMix
	checks  *Checks
	source  *Source
	base    string // scheme and host of every URL
	path    []byte
	header  []byte
	body    []byte
	answer  bytes.Buffer // what a check looks at
}

// dialHTTP2 opens a TLS connection that must agree on h2.
func (t *Target) dialHTTP2(ctx context.Context, turn int, source *Source) (link, error) {
	config := t.tls.Clone()
	config.NextProtos = []string{"h2"}
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return t.network.dialTLS(ctx, turn, config)
		},
	}
	transport.Protocols.SetHTTP2(true)
	conn, err := transport.NewClientConn(ctx, "https", t.host)
	if err != nil {
		return nil, err
	}
	l := &http2Link{
		conn: conn, clock: t.config.Clock, timeout: t.config.Timeout, mix: t.mix, checks: &t.config.Checks,
		source: source, base: "https://" + t.host,
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return l, nil
}

func (l *http2Link) exchange(o *Outcome, _ bool) bool {
	ctx, cancel := context.WithTimeout(l.ctx, l.timeout)
	defer cancel()
	l.source.next()
	r := l.mix.draw(l.source)
	o.Kind = r.kind
	request, err := l.build(ctx, r, o)
	if err != nil {
		o.Err = err
		return false
	}
	o.Sent = l.clock.Now()
	o.BytesSent = len(l.path) + len(l.body)
	response, err := l.conn.RoundTrip(request)
	if err != nil {
		o.Err = fmt.Errorf("exchange: %w", err)
		return false
	}
	defer response.Body.Close()
	o.Status = response.StatusCode
	l.answer.Reset()
	if l.checks.wantBody() {
		n, err := l.answer.ReadFrom(io.LimitReader(response.Body, checkedBodyMax))
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
	o.Done = l.clock.Now()
	o.Err = l.checks.judge(o.Status, l.answer.Bytes())
	return l.conn.Err() == nil
}

func (l *http2Link) build(ctx context.Context, r *builtRequest, o *Outcome) (*http.Request, error) {
	l.path = r.path.append(l.path[:0], l.source)
	l.body = r.body.append(l.body[:0], l.source)
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { o.First = l.clock.Now() }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), r.method, l.base+string(l.path), nil)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	if r.withBody {
		request.Body = io.NopCloser(bytes.NewReader(l.body)) // without GetBody: it cannot be sent again
		request.ContentLength = int64(len(l.body))
	}
	for i := range l.mix.headers {
		h := &l.mix.headers[i]
		l.header = h.value.append(l.header[:0], l.source)
		if http.CanonicalHeaderKey(h.name) == "Host" {
			request.Host = string(l.header)
			continue
		}
		request.Header.Add(h.name, string(l.header))
	}
	return request, nil
}

func (l *http2Link) abort() { l.cancel() }

func (l *http2Link) close() {
	l.cancel()
	l.conn.Close()
}

// tlsConfig is the TLS configuration of a target. Certificates are checked
// unless the user said otherwise.
func tlsConfig(serverName string, insecure bool) *tls.Config {
	return &tls.Config{
		ServerName:         serverName,
		InsecureSkipVerify: insecure, // --insecure: the user's own test certificates
		ClientSessionCache: nil,      // every connection pays for its handshake
		NextProtos:         []string{"http/1.1"},
	}
}
