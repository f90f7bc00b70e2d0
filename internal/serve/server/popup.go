package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/token"
)

// PopupRoute configures popups: GET Path decides, POST Path/click and Path/dismiss record
// the user's answer, and POST Path/convert what the user did after it.
type PopupRoute struct {
	Path        string
	Popup       *popup.Popup
	Placements  []string   // the first is the default
	User        param.Type // text, integer or uuid
	Identity    *Identity  // identifies the user; nil: the query names the user
	Attributes  []string   // names of those that requests may have
	ClockOffset bool       // accept clock_offset in the query, for the demo
	Strict      bool       // requests with other parameters are refused
}

// clockOffsetMax bounds clock_offset in both directions.
const clockOffsetMax = 10 * 365 * 24 * time.Hour

// answerBytesMax is the maximum body of a click: a token in JSON, and some room.
const answerBytesMax = popup.TokenBytesMax + 1024

// popupPaths are the ends of the paths of popups.
var popupPaths = []string{"", "/click", "/dismiss", "/convert"}

// popupHandler serves popups.
type popupHandler struct {
	PopupRoute
	server *Server
	entry  *entry
}

// addPopup adds the routes of popups.
func (s *Server) addPopup(r PopupRoute) {
	h := &popupHandler{PopupRoute: r, server: s}
	others := []string{"user"}
	if r.ClockOffset {
		others = append(others, "clock_offset")
	}
	get := s.addRead([]string{r.Path}, Open, h.serve)
	get.strict, get.names = r.Strict, slices.Concat(others, []string{"placement"}, r.Attributes)
	h.entry = s.entry(r.Path)
	h.entry.allow = strings.Replace(h.entry.allow, "HEAD, ", "", 1)
	for path, answer := range map[string]func(context.Context, string, string, time.Time) error{
		"/click": r.Popup.Click, "/dismiss": r.Popup.Dismiss, "/convert": r.Popup.Convert,
	} {
		post := s.addWrite([]string{r.Path + path}, Open, answerBytesMax, waiting(h.answered(answer))) // the show token is the key
		post.strict, post.names = r.Strict, others
	}
}

// serve is a handler of GET.
func (h *popupHandler) serve(ctx *fasthttp.RequestCtx, x *loopRequest) handled {
	if x != nil && (ctx.IsHead() || h.Identity != nil) {
		return slow
	}
	if ctx.IsHead() { // a show changes the state
		h.server.otherMethod(ctx, h.entry)
		return slow
	}
	attributes, fits := h.Popup.Attributes(), slow
	key, err := h.read(ctx, attributes)
	var now time.Time
	if err == nil {
		now, err = h.now(ctx)
	}
	switch {
	case x == nil && err != nil:
		h.fail(ctx, err)
	case x == nil:
		answer, err := h.Popup.Ask(h.server.base, key, attributes, now)
		if h.answer(ctx, &answer, err); answer.Known && h.Identity == nil {
			fits = quick
		}
	case err == nil:
		answer, showing, ok := h.Popup.Begin(h.server.base, key, attributes, now, x.ready)
		if showing != nil {
			x.later.Limit, x.wait = showing.Limit, &popupWait{h, showing, attributes}
			return begins
		}
		if ok {
			h.answer(ctx, &answer, nil)
			fits = quick
		}
	}
	h.Popup.Release(attributes)
	return fits
}

// popupWait is a request of an event loop whose show is being recorded.
type popupWait struct {
	*popupHandler
	showing    *popup.Showing
	attributes *popup.Attributes
}

// respond implements waiter.
func (w *popupWait) respond(ctx *fasthttp.RequestCtx, over bool) {
	answer, err := w.showing.Answer(w.server.base, over)
	w.answer(ctx, &answer, err)
	w.Popup.Release(w.attributes)
}

// Abandon implements waiter. The popup counts as shown although the client has left.
func (w *popupWait) Abandon() {}

// answer responds with a decision.
func (h *popupHandler) answer(ctx *fasthttp.RequestCtx, a *popup.Answer, err error) {
	switch {
	case err != nil:
		h.fail(ctx, err)
	case a.Shown():
		h.show(ctx, a)
	case a.Reason == popup.Unavailable:
		h.unavailable(ctx, a.Detail, errors.New("no popup is decided"))
	default:
		h.nothing(ctx, a)
	}
}

// show answers with a campaign's payload, and its token if the show was recorded.
func (h *popupHandler) show(ctx *fasthttp.RequestCtx, a *popup.Answer) {
	h.head(ctx, a)
	ctx.Response.Header.SetContentTypeBytes(typeJSON)
	body := ctx.Response.SwapBody(nil)[:0] // reuses the connection's buffer
	body = append(body, `{"campaign":`...)
	body = strconv.AppendUint(body, uint64(a.Campaign.ID), 10)
	if a.Variant > 0 {
		name := a.Campaign.VariantName(a.Variant) // letters, digits and -: needs no escaping
		body = append(append(append(body, `,"variant":"`...), name...), '"')
	}
	body = append(append(body, `,"payload":`...), a.Payload()...)
	if a.Token != "" {
		body = append(append(append(body, `,"show":"`...), a.Token...), '"') // base64url: needs no escaping
	}
	ctx.Response.SwapBody(append(body, '}'))
}

// nothing answers that there is no popup, and when there may be one. The token of what was
// withheld is for conversions.
func (h *popupHandler) nothing(ctx *fasthttp.RequestCtx, a *popup.Answer) {
	h.head(ctx, a)
	ctx.SetStatusCode(fasthttp.StatusNoContent)
	if a.Token != "" {
		ctx.Response.Header.Set("Spillway-Show", a.Token)
	}
	if !a.NextAt.IsZero() {
		var room [40]byte
		ctx.Response.Header.SetCanonical(headerNextAt, a.NextAt.AppendFormat(room[:0], time.RFC3339Nano))
	}
}

// head sets the headers of an answer: its reason, which campaigns could not be decided, and
// that it must not be cached.
func (h *popupHandler) head(ctx *fasthttp.RequestCtx, a *popup.Answer) {
	ctx.Response.Header.SetCanonical(headerCacheControl, noStore)
	ctx.Response.Header.SetCanonical(headerReason, []byte(a.Reason.String()))
	if a.Detail != "" {
		ctx.Response.Header.Set("Spillway-Detail", a.Detail)
	}
}

// read parses user, placement and attributes from the query. They point into the request.
func (h *popupHandler) read(ctx *fasthttp.RequestCtx, attributes *popup.Attributes) (popup.Key, error) {
	var key popup.Key
	for name, value := range ctx.QueryArgs().All() {
		switch text(name) {
		case "user":
			if key.User != "" {
				return key, fmt.Errorf("%w: user is given twice", popup.ErrRequest)
			}
			key.User = text(value)
		case "placement":
			key.Placement = text(value)
		default:
			if err := attributes.Add(text(name), text(value)); err != nil {
				return key, err
			}
		}
	}
	if key.Placement == "" {
		key.Placement = h.Placements[0]
	} else if !slices.Contains(h.Placements, key.Placement) {
		return key, fmt.Errorf("%w: placement must be %s", popup.ErrRequest, strings.Join(h.Placements, " or "))
	}
	user, err := h.user(ctx, key.User)
	key.User = user
	if err == nil && user == "" {
		err = fmt.Errorf("%w: parameter user is missing", popup.ErrRequest)
	}
	return key, err
}

// user returns the user's id. named is the one in the query; "" if there is none.
func (h *popupHandler) user(ctx *fasthttp.RequestCtx, named string) (string, error) {
	named, err := h.canonical(named)
	if err != nil || h.Identity == nil {
		return named, err
	}
	user, err := h.Identity.user(h.server.base, h.server.cfg.Tokens, &ctx.Request.Header)
	if err != nil {
		return "", err
	}
	if user, err = h.canonical(user); err != nil {
		return "", fmt.Errorf("%w: claim %s: %w", errIdentity, h.Identity.Claim, err)
	}
	if named != "" && named != user {
		return "", errNamesAnother
	}
	return user, nil
}

// canonical returns the canonical form of a user's id.
func (h *popupHandler) canonical(user string) (string, error) {
	if user == "" || h.User == param.Text || h.User == param.Integer && isPlainNumber(user) {
		return user, nil
	}
	canonical, err := param.Parse(param.Param{Name: "user", Type: h.User}, user)
	if err != nil {
		return "", fmt.Errorf("%w: %w", popup.ErrRequest, err)
	}
	return canonical, nil
}

// isPlainNumber reports whether text is a canonical number. Most ids are, and need not be
// parsed, which allocates.
func isPlainNumber(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != "" && len(text) <= 18 && text[0] != '0'
}

// now returns the time by which the request is decided, shifted by clock_offset if that is
// allowed.
func (h *popupHandler) now(ctx *fasthttp.RequestCtx) (time.Time, error) {
	now := h.Popup.Time()
	if !h.ClockOffset {
		return now, nil
	}
	offset := ctx.QueryArgs().Peek("clock_offset")
	if len(offset) == 0 {
		return now, nil
	}
	d, err := time.ParseDuration(text(offset))
	if err != nil || d.Abs() > clockOffsetMax {
		return time.Time{}, fmt.Errorf("%w: clock_offset must be a duration with its unit, as 25h, of at most ten years", popup.ErrRequest)
	}
	return now.Add(d), nil
}

// answered returns the handler of clicks, of dismissals or of conversions.
func (h *popupHandler) answered(record func(ctx context.Context, token, user string, now time.Time) error) func(*fasthttp.RequestCtx) {
	return func(ctx *fasthttp.RequestCtx) {
		var body struct {
			Show string `json:"show"`
		}
		if err := json.Unmarshal(ctx.PostBody(), &body); err != nil || body.Show == "" {
			h.fail(ctx, fmt.Errorf(`%w: the body must be {"show": TOKEN} with the token of the popup`, popup.ErrRequest))
			return
		}
		user, err := h.user(ctx, string(ctx.QueryArgs().Peek("user")))
		if err != nil {
			h.fail(ctx, err)
			return
		}
		now, err := h.now(ctx)
		if err == nil {
			err = record(h.server.base, body.Show, user, now)
		}
		if err != nil {
			h.fail(ctx, err)
			return
		}
		ctx.Response.Header.SetCanonical(headerCacheControl, noStore)
		ctx.SetStatusCode(fasthttp.StatusNoContent)
	}
}

// fail answers an error of the engine or of the identity.
func (h *popupHandler) fail(ctx *fasthttp.RequestCtx, err error) {
	s := h.server
	switch {
	case errors.Is(err, errIdentity):
		s.problem(ctx, notIdentified, clientText(err, errIdentity))
		ctx.Response.Header.Set("WWW-Authenticate", `Bearer realm="spillway", error="invalid_token"`)
	case errors.Is(err, token.ErrUnavailable):
		s.deny(ctx, err)
	case errors.Is(err, popup.ErrRequest):
		s.problem(ctx, badRequest, clientText(err, popup.ErrRequest))
	case errors.Is(err, popup.ErrMalformed):
		s.problem(ctx, showMalformed, "send the token of the popup as it came, all of it")
	case errors.Is(err, popup.ErrForged):
		s.problem(ctx, showForged, "the token was not made here, or its key has been taken away")
	case errors.Is(err, errNamesAnother), errors.Is(err, popup.ErrOtherUser):
		s.problem(ctx, otherUser, "the request names one user and is another's")
	case errors.Is(err, popup.ErrExpired):
		s.problem(ctx, showExpired, "the popup was shown too long ago to be answered")
	case errors.Is(err, popup.ErrLate):
		s.problem(ctx, showLate, "the user has been shown another popup since")
	case errors.Is(err, popup.ErrRepeated):
		s.problem(ctx, showRepeated, "this show was clicked or dismissed before; nothing has changed")
	case errors.Is(err, popup.ErrUnknownShow):
		s.problem(ctx, showUnknown, "this show is not known; it may be again once what was lost is restored")
	default:
		h.unavailable(ctx, "", err)
	}
}

// unavailable answers 503. detail says which campaigns could not be decided; "": none could.
func (h *popupHandler) unavailable(ctx *fasthttp.RequestCtx, detail string, err error) {
	detail = cmp.Or(detail, "the users' states or the event log do not answer; nothing is shown or recorded")
	h.server.unavailable(ctx, popupsDown, detail, err)
	ctx.Response.Header.Set("Retry-After", retryText(retryAfter))
}
