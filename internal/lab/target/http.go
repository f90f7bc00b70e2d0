package target

// httpProtocol speaks HTTP/1.1 on one connection of the lean engine.
type httpProtocol struct {
	mix      *httpMix
	checks   *Checks
	source   *Source
	scratch  *scratch
	sent     *builtRequest
	response response
}

func (p *httpProtocol) request(_, last bool) []byte {
	p.source.next()
	r := p.mix.draw(p.source)
	p.sent = r
	p.response.reset(r.head, p.checks.wantBody())
	switch {
	case r.keep != nil && last:
		return r.last
	case r.keep != nil:
		return r.keep
	}
	p.scratch.request = r.append(p.scratch.request[:0], last, p.source)
	return p.scratch.request
}

func (p *httpProtocol) feed(b []byte) (bool, error) {
	if len(b) == 0 {
		return true, p.response.eof()
	}
	return p.response.feed(b)
}

func (p *httpProtocol) answer(o *Outcome) bool {
	o.Status = p.response.status
	o.Kind = p.sent.kind
	o.Err = p.checks.judge(p.response.status, p.response.body)
	return !p.response.close
}
