package server

import (
	_ "embed" // problems.json
	"encoding/json"
	"fmt"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/stream"
)

// problem is one kind of error response (RFC 9457), by the end of its type: urn:spillway:problem:CODE. It is
// stable, so that clients may test for it.
type problem string

const (
	badRequest      problem = "bad-request"
	badCursor       problem = "bad-cursor"
	notFound        problem = "not-found"
	badMethod       problem = "method-not-allowed"
	wrongHost       problem = "wrong-host"
	headersTooLarge problem = "headers-too-large"
	bodyTooLarge    problem = "body-too-large"
	requestTimeout  problem = "request-timeout"
	busy            problem = "busy"
	counting        problem = "counting"
	stale           problem = "stale"
	databaseDown    problem = "database-down"
	full            problem = "too-many-connections"
	bodiesFull      problem = "too-many-bodies"
	redisDown       problem = "redis-down"
	noRedis         problem = "no-redis"
	resultTooLarge  problem = "result-too-large"
	keysTooLong     problem = "keys-too-long"
	noKey           problem = "unauthorized"
	noClaim         problem = "claim-missing"
	keysAway        problem = "token-keys-down"
	limited         problem = "rate-limited"
	badOrigin       problem = "origin-not-allowed"
	badMedia        problem = "unsupported-media-type"
	badBody         problem = "bad-body"
	keyReused       problem = "key-reused"
	noneStored      problem = "records-refused"
	notStored       problem = "not-stored"
	unknownOutcome  problem = "unknown-outcome"
	stopping        problem = "stopping"
	notStarted      problem = "not-started"
	notIdentified   problem = "not-identified"
	otherUser       problem = "other-user"
	showMalformed   problem = "show-malformed"
	showForged      problem = "show-forged"
	showExpired     problem = "show-expired"
	showLate        problem = "show-late"
	showRepeated    problem = "show-repeated"
	showUnknown     problem = "show-unknown"
	popupsDown      problem = "popups-down"
)

// description is what responses say of a problem. The file also has its cause, for docs/reference/http.md.
type description struct {
	Status int
	Title  string
}

//go:embed problems.json
var problemsFile []byte

// readProblems returns all problems.
func readProblems() (all map[problem]description) {
	if err := json.Unmarshal(problemsFile, &all); err != nil {
		panic("BUG: problems.json: " + err.Error())
	}
	return all
}

// ProblemStatus returns a function that returns the status of a problem by the end of its type; 0: there is none.
func ProblemStatus() func(code string) int {
	all := readProblems()
	return func(code string) int { return all[problem(code)].Status }
}

// problem responds with p. detail says what to change in this request.
func (s *Server) problem(ctx *fasthttp.RequestCtx, p problem, detail string) {
	s.refuse(ctx, p, detail, nil)
}

// refuse responds with p and the rejected records.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, p problem, detail string, refused []stream.Refusal) {
	id, is := s.id(ctx), s.problems[p]
	body, err := json.Marshal(struct {
		Type     string           `json:"type"`
		Title    string           `json:"title"`
		Status   int              `json:"status"`
		Detail   string           `json:"detail"`
		Instance string           `json:"instance"`
		Refused  []stream.Refusal `json:"refused,omitempty"`
	}{"urn:spillway:problem:" + string(p), is.Title, is.Status, detail, "urn:spillway:request:" + id, refused})
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
	ctx.SetStatusCode(is.Status)
	ctx.SetBody(append(body, '\n'))
}

// refusal returns the response to a connection beyond the limit. It is made once, because
// no request has been read at that time.
func (s *Server) refusal() []byte {
	is := s.problems[full]
	body := fmt.Sprintf(`{"type":"urn:spillway:problem:%s","title":%q,"status":%d,`+
		`"detail":"%d connections are open, the limit (http.connections)"}`+"\n", full, is.Title, is.Status, s.cfg.Connections)
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
