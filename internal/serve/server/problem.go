package server

import (
	"encoding/json"
	"fmt"

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

// The problems.
var (
	badRequest      = problem{"bad-request", fasthttp.StatusBadRequest, "The request is wrong"}
	badCursor       = problem{"bad-cursor", fasthttp.StatusBadRequest, "The cursor is wrong"}
	notFound        = problem{"not-found", fasthttp.StatusNotFound, "Not found"}
	badMethod       = problem{"method-not-allowed", fasthttp.StatusMethodNotAllowed, "Method not allowed"}
	wrongHost       = problem{"wrong-host", fasthttp.StatusMisdirectedRequest, "The host is not served here"}
	headersTooLarge = problem{"headers-too-large", fasthttp.StatusRequestHeaderFieldsTooLarge, "Headers too large"}
	bodyTooLarge    = problem{"body-too-large", fasthttp.StatusRequestEntityTooLarge, "Body too large"}
	requestTimeout  = problem{"request-timeout", fasthttp.StatusRequestTimeout, "The request came too slowly"}
	busy            = problem{"busy", fasthttp.StatusServiceUnavailable, "Too busy"}
	counting        = problem{"counting", fasthttp.StatusServiceUnavailable, "The offset is not known yet"}
	stale           = problem{"stale", fasthttp.StatusServiceUnavailable, "The data is too old"}
	databaseDown    = problem{"database-down", fasthttp.StatusServiceUnavailable, "The database does not answer"}
	full            = problem{"too-many-connections", fasthttp.StatusServiceUnavailable, "Too many connections"}
	bodiesFull      = problem{"too-many-bodies", fasthttp.StatusServiceUnavailable, "Too many bodies"}
	redisDown       = problem{"redis-down", fasthttp.StatusServiceUnavailable, "Redis does not answer"}
	noRedis         = problem{"no-redis", fasthttp.StatusServiceUnavailable, "No Redis is configured"}
	resultTooLarge  = problem{"result-too-large", fasthttp.StatusInternalServerError, "The result is too large"}
	keysTooLong     = problem{"keys-too-long", fasthttp.StatusInternalServerError, "The keys of the rows are too long"}
	noKey           = problem{"unauthorized", fasthttp.StatusUnauthorized, "A key or a token is needed"}
	noClaim         = problem{"claim-missing", fasthttp.StatusForbidden, "The token lacks a claim"}
	keysAway        = problem{"token-keys-down", fasthttp.StatusServiceUnavailable, "Tokens cannot be verified"}
	limited         = problem{"rate-limited", fasthttp.StatusTooManyRequests, "Too many requests"}
	badOrigin       = problem{"origin-not-allowed", fasthttp.StatusForbidden, "The origin is not allowed"}
	badMedia        = problem{"unsupported-media-type", fasthttp.StatusUnsupportedMediaType, "The body's type is not read"}
	badBody         = problem{"bad-body", fasthttp.StatusBadRequest, "The body cannot be read"}
	keyReused       = problem{"key-reused", fasthttp.StatusConflict, "The Idempotency-Key is taken"}
	noneStored      = problem{"records-refused", fasthttp.StatusUnprocessableEntity, "Every record is refused"}
	notStored       = problem{"not-stored", fasthttp.StatusInternalServerError, "The database refuses the transaction"}
	unknownOutcome  = problem{"unknown-outcome", fasthttp.StatusGatewayTimeout, "The outcome is unknown"}
	stopping        = problem{"stopping", fasthttp.StatusServiceUnavailable, "The server stops"}
	notStarted      = problem{"not-started", fasthttp.StatusServiceUnavailable, "This path cannot be served yet"}
	notIdentified   = problem{"not-identified", fasthttp.StatusUnauthorized, "It is not known who the user is"}
	otherUser       = problem{"other-user", fasthttp.StatusForbidden, "It is another user's"}
	showMalformed   = problem{"show-malformed", fasthttp.StatusBadRequest, "This is not a show token"}
	showForged      = problem{"show-forged", fasthttp.StatusForbidden, "The show token is not ours"}
	showExpired     = problem{"show-expired", fasthttp.StatusGone, "The show token has expired"}
	showLate        = problem{"show-late", fasthttp.StatusGone, "The show is not the last one any more"}
	showRepeated    = problem{"show-repeated", fasthttp.StatusConflict, "The show was answered before"}
	showUnknown     = problem{"show-unknown", fasthttp.StatusNotFound, "The show is not known"}
	popupsDown      = problem{"popups-down", fasthttp.StatusServiceUnavailable, "Popups are not available"}
)

// problems are all of them.
var problems = []problem{
	badRequest, badCursor, notFound, badMethod, wrongHost, headersTooLarge, bodyTooLarge, requestTimeout, busy,
	counting, stale, databaseDown, full, bodiesFull, redisDown, noRedis, resultTooLarge, keysTooLong, noKey,
	noClaim, keysAway, limited, badOrigin, badMedia, badBody, keyReused, noneStored, notStored, unknownOutcome,
	stopping, notStarted, notIdentified, otherUser, showMalformed, showForged, showExpired, showLate,
	showRepeated, showUnknown, popupsDown,
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

// problem responds with p. detail says what to change in this request.
func (s *Server) problem(ctx *fasthttp.RequestCtx, p problem, detail string) {
	s.refuse(ctx, p, detail, nil)
}

// refuse responds with p and the rejected records.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, p problem, detail string, refused []stream.Refusal) {
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
	body := fmt.Sprintf(`{"type":"urn:spillway:problem:%s","title":%q,"status":%d,`+
		`"detail":"%d connections are open, the limit (http.connections)"}`+"\n", full.code, full.title, full.status, s.cfg.Connections)
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nCache-Control: no-store\r\nRetry-After: "+
		"%s\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s",
		retryText(retryAfter), len(body), body)
}

// unavailable responds with p and Retry-After, and logs err.
func (s *Server) unavailable(ctx *fasthttp.RequestCtx, p problem, detail string, err error) {
	s.problem(ctx, p, detail)
	ctx.Response.Header.Set("Retry-After", retryText(retryAfter))
	s.cfg.Log.Debug("request refused", "path", s.loggedPath(ctx), "request_id", s.id(ctx), "error", err)
}
