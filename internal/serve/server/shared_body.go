package server

import (
	"net"
	"sync"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/feed"
)

// bodyKept is the size of the largest body buffer that an idle connection keeps, in bytes.
// Larger pages are written from the bytes that all their requests share.
const bodyKept = 16 << 10

// sharedBody is the body of a large page: the page's frame, which belongs to the response,
// around rows, which do not.
type sharedBody struct {
	net.Buffers // what is left to write; io.WriterTo, so that nothing is copied
	pieces      [3][]byte
	frame       []byte
	pool        *sync.Pool
}

// Close implements io.Closer. fasthttp calls it when the response is written or given up.
func (b *sharedBody) Close() error {
	b.Buffers, b.pieces = nil, [3][]byte{}
	b.pool.Put(b)
	return nil
}

// setPage makes a page the body of a response.
func (s *Server) setPage(ctx *fasthttp.RequestCtx, p *feed.Page) {
	size := p.Size()
	if p.Envelope == feed.EnvelopeOne && !p.Selected() {
		ctx.Response.SetBodyRaw(p.Data)
		return
	}
	if size <= bodyKept {
		own := ctx.Response.SwapBody(nil) // the connection's buffer
		if cap(own) < size {
			own = make([]byte, 0, min(size+size/4, bodyKept))
		}
		ctx.Response.SwapBody(p.Append(own[:0]))
		return
	}
	if p.Selected() {
		ctx.Response.SetBodyStream(p.Reader(), size)
		return
	}
	b, ok := s.sharedBodies.Get().(*sharedBody)
	if !ok {
		b = &sharedBody{pool: &s.sharedBodies}
	}
	var before int
	b.frame, before = p.AppendFrame(b.frame[:0])
	b.pieces = [3][]byte{b.frame[:before], p.Data, b.frame[before:]}
	b.Buffers = b.pieces[:]
	ctx.Response.SetBodyStream(b, size)
}

// bodySize returns the size of a response's body in bytes.
func bodySize(r *fasthttp.Response) int {
	if r.IsBodyStream() {
		return r.Header.ContentLength()
	}
	return len(r.Body())
}
