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

// problems describes all kinds.
var problems = [...]problem{
	badRequest:      {"bad-request", fasthttp.StatusBadRequest, "The request is wrong"},
	badCursor:       {"bad-cursor", fasthttp.StatusBadRequest, "The cursor is wrong"},
	notFound:        {"not-found", fasthttp.StatusNotFound, "Not found"},
	badMethod:       {"method-not-allowed", fasthttp.StatusMethodNotAllowed, "Method not allowed"},
	wrongHost:       {"wrong-host", fasthttp.StatusMisdirectedRequest, "The host is not served here"},
	headersTooLarge: {"headers-too-large", fasthttp.StatusRequestHeaderFieldsTooLarge, "Headers too large"},
	bodyTooLarge:    {"body-too-large", fasthttp.StatusRequestEntityTooLarge, "Body too large"},
	requestTimeout:  {"request-timeout", fasthttp.StatusRequestTimeout, "The request came too slowly"},
	busy:            {"busy", fasthttp.StatusServiceUnavailable, "Too busy"},
	counting:        {"counting", fasthttp.StatusServiceUnavailable, "The offset is not known yet"},
	stale:           {"stale", fasthttp.StatusServiceUnavailable, "The data is too old"},
	databaseDown:    {"database-down", fasthttp.StatusServiceUnavailable, "The database does not answer"},
	full:            {"too-many-connections", fasthttp.StatusServiceUnavailable, "Too many connections"},
	bodiesFull:      {"too-many-bodies", fasthttp.StatusServiceUnavailable, "Too many bodies"},
	redisDown:       {"redis-down", fasthttp.StatusServiceUnavailable, "Redis does not answer"},
	noRedis:         {"no-redis", fasthttp.StatusServiceUnavailable, "No Redis is configured"},
	resultTooLarge:  {"result-too-large", fasthttp.StatusInternalServerError, "The result is too large"},
	keysTooLong:     {"keys-too-long", fasthttp.StatusInternalServerError, "The keys of the rows are too long"},
	noKey:           {"unauthorized", fasthttp.StatusUnauthorized, "A key or a token is needed"},
	noClaim:         {"claim-missing", fasthttp.StatusForbidden, "The token lacks a claim"},
	keysAway:        {"token-keys-down", fasthttp.StatusServiceUnavailable, "Tokens cannot be verified"},
	limited:         {"rate-limited", fasthttp.StatusTooManyRequests, "Too many requests"},
	badOrigin:       {"origin-not-allowed", fasthttp.StatusForbidden, "The origin is not allowed"},
	badMedia:        {"unsupported-media-type", fasthttp.StatusUnsupportedMediaType, "The body's type is not read"},
	badBody:         {"bad-body", fasthttp.StatusBadRequest, "The body cannot be read"},
	keyReused:       {"key-reused", fasthttp.StatusConflict, "The Idempotency-Key is taken"},
	noneStored:      {"records-refused", fasthttp.StatusUnprocessableEntity, "Every record is refused"},
	notStored:       {"not-stored", fasthttp.StatusInternalServerError, "The database refuses the transaction"},
	unknownOutcome:  {"unknown-outcome", fasthttp.StatusGatewayTimeout, "The outcome is unknown"},
	stopping:        {"stopping", fasthttp.StatusServiceUnavailable, "The server stops"},
	notStarted:      {"not-started", fasthttp.StatusServiceUnavailable, "This path cannot be served yet"},
	notIdentified:   {"not-identified", fasthttp.StatusUnauthorized, "It is not known who the user is"},
	otherUser:       {"other-user", fasthttp.StatusForbidden, "It is another user's"},
	showMalformed:   {"show-malformed", fasthttp.StatusBadRequest, "This is not a show token"},
	showForged:      {"show-forged", fasthttp.StatusForbidden, "The show token is not ours"},
	showExpired:     {"show-expired", fasthttp.StatusGone, "The show token has expired"},
	showLate:        {"show-late", fasthttp.StatusGone, "The show is not the last one any more"},
	showRepeated:    {"show-repeated", fasthttp.StatusConflict, "The show was answered before"},
	showUnknown:     {"show-unknown", fasthttp.StatusNotFound, "The show is not known"},
	popupsDown:      {"popups-down", fasthttp.StatusServiceUnavailable, "Popups are not available"},
}

// ProblemStatus returns the status of a problem by the end of its type; 0: there is none.
func ProblemStatus(code string) int {
	for _, p := range problems {
		if p.code == code {
			return p.status
		}
	}
	return 0
}

// problem responds with kind. detail says what to change in this request.
func (s *Server) problem(ctx *fasthttp.RequestCtx, kind problemKind, detail string) {
	s.refuse(ctx, kind, detail, nil)
}

// refuse responds with kind and the rejected records.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, kind problemKind, detail string, refused []stream.Refusal) {
	p := problems[kind]
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
	p := problems[full]
	body := fmt.Sprintf(`{"type":"urn:spillway:problem:%s","title":%q,"status":%d,"detail":"%d connections are open, the limit (http.connections)"}`+"\n",
		p.code, p.title, p.status, s.cfg.Connections)
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nCache-Control: no-store\r\nRetry-After: "+
		"%d\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s",
		retrySeconds(retryAfter), len(body), body)
}

// unavailable responds with kind and Retry-After, and logs err.
func (s *Server) unavailable(ctx *fasthttp.RequestCtx, kind problemKind, detail string, err error) {
	s.problem(ctx, kind, detail)
	ctx.Response.Header.Set("Retry-After", strconv.Itoa(retrySeconds(retryAfter)))
	s.cfg.Log.Debug("request refused", "path", string(ctx.Path()), "request_id", s.id(ctx), "error", err)
}
