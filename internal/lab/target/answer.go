package target

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"spillway/internal/lab/result"
)

// Bounds of what is kept of an HTTP answer that is not as expected.
const (
	failedBodyMax = 4 << 10 // of the body, to find a problem's detail in it
	lookMax       = 1 << 10 // of the text that is made one line
	detailMax     = 200     // of that line
)

// answer is what the checks see of an HTTP answer.
type answer struct {
	status   int
	problem  bool   // the body is application/problem+json (RFC 9457)
	location []byte // of a redirect
	body     []byte // its beginning, if the checks or a failure need it
}

// redirects reports whether the status sends the client elsewhere.
func redirects(status int) bool { return status/100 == 3 && status != 304 }

// errStatus and errRedirect are the errors of an answer with an unexpected status.
var (
	errStatus   = errors.New("status not expected")
	errRedirect = errors.New("redirect")
)

// answerError is an HTTP answer with an unexpected status. It is immutable.
type answerError struct{ answer }

// failure returns the error for the answer. It is last if that says the same, so
// that a failing target costs no memory per request.
func (a *answer) failure(last *answerError) *answerError {
	body := a.body[:min(len(a.body), failedBodyMax)]
	if last != nil && last.status == a.status && last.problem == a.problem && bytes.Equal(last.body, body) &&
		bytes.Equal(last.location, a.location) {
		return last
	}
	return &answerError{answer{a.status, a.problem, bytes.Clone(a.location), bytes.Clone(body)}}
}

// Is tells redirects from other statuses.
func (e *answerError) Is(target error) bool {
	if redirects(e.status) {
		return target == errRedirect
	}
	return target == errStatus
}

// Error returns the status and the reason that the answer gives, in one line.
func (e *answerError) Error() string {
	text := "status " + strconv.Itoa(e.status)
	if redirects(e.status) {
		to := oneLine(result.RedactURL(string(e.location)))
		if to == "" {
			return text + ": redirects without a Location; accept the answer with --check status=3xx"
		}
		return text + ": redirects to " + to + "; load that URL, or accept the answer with --check status=3xx"
	}
	if detail := oneLine(e.detail()); detail != "" {
		text += ": " + detail
	}
	return text
}

// detail returns title and detail of a problem, and otherwise the body.
func (e *answerError) detail() string {
	var problem struct{ Title, Detail string }
	if !e.problem || json.Unmarshal(e.body, &problem) != nil || problem.Title+problem.Detail == "" {
		return string(e.body)
	}
	if problem.Title == "" || problem.Detail == "" {
		return problem.Title + problem.Detail
	}
	return problem.Title + ": " + problem.Detail
}

// oneLine returns the beginning of a text in one line without control characters,
// and nothing for data that is not text.
func oneLine(text string) string {
	const cut = "…"
	if len(text) > lookMax {
		text = text[:runeStart(text, lookMax)]
	}
	if !utf8.ValidString(text) {
		return ""
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }), " ")
	if len(text) <= detailMax {
		return text
	}
	return text[:runeStart(text, detailMax-len(cut))] + cut
}

// runeStart returns the last start of a character up to i.
func runeStart(text string, i int) int {
	for i > 0 && !utf8.RuneStart(text[i]) {
		i--
	}
	return i
}
