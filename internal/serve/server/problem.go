package server

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/stream"
)

// problem is one kind of error response (RFC 9457). Its type is stable, so that clients may
// test for it. docs/api.md lists all of them.
type problem struct {
	code   string // the end of the type: urn:spillway:problem:CODE
	status int
	title  string
}

// problemKind selects a problem.
type problemKind int

const (
	badRequest problemKind = iota
	badCursor
	notFound
	badMethod
	wrongHost
	headersTooLarge
	bodyTooLarge
	requestTimeout
	busy
	counting
	stale
	databaseDown
	full
	bodiesFull
	redisDown
	noRedis
	resultTooLarge
	keysTooLong
	noKey
	noClaim
	keysAway
	limited
	badOrigin
	badMedia
	badBody
	keyReused
	noneStored
	notStored
	unknownOutcome
	stopping
	notStarted

	notIdentified
	otherUser
	showMalformed
	showForged
	showExpired
	showLate
	showRepeated
	showUnknown
	popupsDown
)

func (k problemKind) describe() problem {
	switch k {
	case badRequest:
		return problem{"bad-request", fasthttp.StatusBadRequest, "The request is wrong"}
	case badCursor:
		return problem{"bad-cursor", fasthttp.StatusBadRequest, "The cursor is wrong"}
	case notFound:
		return problem{"not-found", fasthttp.StatusNotFound, "Not found"}
	case badMethod:
		return problem{"method-not-allowed", fasthttp.StatusMethodNotAllowed, "Method not allowed"}
	case wrongHost:
		return problem{"wrong-host", fasthttp.StatusMisdirectedRequest, "The host is not served here"}
	case headersTooLarge:
		return problem{"headers-too-large", fasthttp.StatusRequestHeaderFieldsTooLarge, "Headers too large"}
	case bodyTooLarge:
		return problem{"body-too-large", fasthttp.StatusRequestEntityTooLarge, "Body too large"}
	case requestTimeout:
		return problem{"request-timeout", fasthttp.StatusRequestTimeout, "The request came too slowly"}
	case busy:
		return problem{"busy", fasthttp.StatusServiceUnavailable, "Too busy"}
	case counting:
		return problem{"counting", fasthttp.StatusServiceUnavailable, "The offset is not known yet"}
	case stale:
		return problem{"stale", fasthttp.StatusServiceUnavailable, "The data is too old"}
	case databaseDown:
		return problem{"database-down", fasthttp.StatusServiceUnavailable, "The database does not answer"}
	case full:
		return problem{"too-many-connections", fasthttp.StatusServiceUnavailable, "Too many connections"}
	case bodiesFull:
		return problem{"too-many-bodies", fasthttp.StatusServiceUnavailable, "Too many bodies"}
	case resultTooLarge:
		return problem{"result-too-large", fasthttp.StatusInternalServerError, "The result is too large"}
	case keysTooLong:
		return problem{"keys-too-long", fasthttp.StatusInternalServerError, "The keys of the rows are too long"}
	case noKey:
		return problem{"unauthorized", fasthttp.StatusUnauthorized, "A key or a token is needed"}
	case noClaim:
		return problem{"claim-missing", fasthttp.StatusForbidden, "The token lacks a claim"}
	case keysAway:
		return problem{"token-keys-down", fasthttp.StatusServiceUnavailable, "Tokens cannot be verified"}
	case limited:
		return problem{"rate-limited", fasthttp.StatusTooManyRequests, "Too many requests"}
	case badOrigin:
		return problem{"origin-not-allowed", fasthttp.StatusForbidden, "The origin is not allowed"}
	case badMedia:
		return problem{"unsupported-media-type", fasthttp.StatusUnsupportedMediaType, "The body's type is not read"}
	case badBody:
		return problem{"bad-body", fasthttp.StatusBadRequest, "The body cannot be read"}
	case keyReused:
		return problem{"key-reused", fasthttp.StatusConflict, "The Idempotency-Key is taken"}
	case noneStored:
		return problem{"records-refused", fasthttp.StatusUnprocessableEntity, "Every record is refused"}
	case notStored:
		return problem{"not-stored", fasthttp.StatusInternalServerError, "The database refuses the transaction"}
	case unknownOutcome:
		return problem{"unknown-outcome", fasthttp.StatusGatewayTimeout, "The outcome is unknown"}
	case stopping:
		return problem{"stopping", fasthttp.StatusServiceUnavailable, "The server stops"}
	case notStarted:
		return problem{"not-started", fasthttp.StatusServiceUnavailable, "This path cannot be served yet"}
	}
	return k.describeProbe()
}

// problem responds with kind. detail says what to change in this request.
func (s *Server) problem(ctx *fasthttp.RequestCtx, kind problemKind, detail string) {
	s.refuse(ctx, kind, detail, nil)
}

// refuse responds with kind and the rejected records.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, kind problemKind, detail string, refused []stream.Refusal) {
	p := kind.describe()
	id := s.id(ctx)
	body, err := json.Marshal(struct {
		Type     string           `json:"type"`
		Title    string           `json:"title"`
		Status   int              `json:"status"`
		Detail   string           `json:"detail"`
		Instance string           `json:"instance"`
		Refused  []stream.Refusal `json:"refused,omitempty"`
	}{"urn:spillway:problem:" + p.code, p.title, p.status, detail, "urn:spillway:request:" + id, refused})
	if err != nil {
		panic("bug: problem does not encode: " + err.Error())
	}
	ctx.Response.Reset()
	if s.draining.Load() {
		ctx.SetConnectionClose()
	}
	ctx.Response.Header.Set("X-Request-Id", id)
	ctx.Response.Header.SetContentType("application/problem+json")
	ctx.Response.Header.SetCanonical(headerCacheControl, noStore)
	ctx.SetStatusCode(p.status)
	ctx.SetBody(append(body, '\n'))
}

// refusal returns the response to a connection beyond the limit. It is made once, because
// no request has been read at that time.
func (s *Server) refusal() []byte {
	p := full.describe()
	body := fmt.Sprintf(`{"type":"urn:spillway:problem:%s","title":%q,"status":%d,"detail":"%d connections are open, the limit (http.connections)"}`+"\n",
		p.code, p.title, p.status, s.cfg.Connections)
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nCache-Control: no-store\r\nRetry-After: %d\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s",
		retrySeconds(retryAfter), len(body), body)
}

// unavailable responds with kind and Retry-After, and logs err.
func (s *Server) unavailable(ctx *fasthttp.RequestCtx, kind problemKind, detail string, err error) {
	s.problem(ctx, kind, detail)
	ctx.Response.Header.Set("Retry-After", strconv.Itoa(retrySeconds(retryAfter)))
	s.cfg.Log.Debug("request refused", "path", string(ctx.Path()), "request_id", s.id(ctx), "error", err)
}
