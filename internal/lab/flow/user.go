package flow

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"spillway/internal/lab/target"
)

// User is one virtual user. It belongs to one goroutine.
type User struct {
	flow   *Flow
	host   string
	source *target.Source
	random *rand.Rand
	jar    *cookiejar.Jar // nil: no cookies
	isSet  []bool         // per variable
	isJSON []bool         // per variable: see text.json

	call    target.Call
	scratch []byte
}

// NewUser returns a user of the service at host whose values come from source. The
// same seed and number repeat its random choices.
func (f *Flow) NewUser(host string, source *target.Source, seed uint64, number int) *User {
	const stream = 1 << 48 // differs from those of sources and arrivals
	source.Variables = make([]string, f.names)
	u := &User{
		flow: f, host: host, source: source, random: rand.New(rand.NewPCG(seed, uint64(number)+stream)),
		isSet: make([]bool, f.names), isJSON: make([]bool, f.names),
	}
	u.clearCookies()
	return u
}

func (u *User) clearCookies() {
	if u.flow.cookies != noCookies {
		u.jar, _ = cookiejar.New(nil) // the error is always nil
	}
}

// Begin starts an iteration, for which Flow.Take has reserved the data.
func (u *User) Begin() {
	u.source.Next()
	clear(u.isSet)
	if u.flow.cookies == perIteration {
		u.clearCookies()
	}
	for _, d := range u.flow.data {
		for i, t := range d.row(u.random) {
			u.set(d.first+i, t)
		}
	}
	for i := range u.flow.values {
		v := &u.flow.values[i]
		if v.from.encoding == typed {
			u.set(v.variable, text{u.source.Variables[v.from.variable], u.isJSON[v.from.variable]})
			continue
		}
		u.scratch = v.from.template.Append(u.scratch[:0], u.source)
		u.set(v.variable, text{string(u.scratch), v.from.encoding == asNumber})
	}
}

func (u *User) set(variable int, t text) {
	u.source.Variables[variable], u.isJSON[variable], u.isSet[variable] = t.text, t.json, true
}

// Ready reports whether the values that a step needs are there. They are missing if
// an earlier step failed to extract them.
func (u *User) Ready(number int) bool {
	return !slices.ContainsFunc(u.flow.steps[number].requires, func(variable int) bool { return !u.isSet[variable] })
}

// Call returns the request of a step that is ready, valid until the next call.
func (u *User) Call(number int) *target.Call {
	s := &u.flow.steps[number]
	c := &u.call
	c.Number, c.Method, c.Checks, c.Keep = number, s.method, &s.checks, len(s.extract) > 0
	u.scratch = s.path.Append(u.scratch[:0], u.source)
	c.Path = string(u.scratch)
	c.Headers = c.Headers[:0]
	hasCookies := false
	for i := range s.headers {
		h := &s.headers[i]
		u.scratch = h.value.Append(u.scratch[:0], u.source)
		c.Headers = append(c.Headers, target.Header{Name: h.name, Value: string(u.scratch)})
		hasCookies = hasCookies || http.CanonicalHeaderKey(h.name) == "Cookie"
	}
	if line := u.cookieLine(c.Path); line != "" && !hasCookies {
		c.Headers = append(c.Headers, target.Header{Name: "Cookie", Value: line})
	}
	if c.Body = c.Body[:0]; s.body == nil {
		c.Body = nil
	}
	for i := range s.body {
		c.Body = s.body[i].appendTo(c.Body, u)
	}
	return c
}

// place returns the URL of a request for the cookie jar. Its scheme makes the jar
// return Secure cookies over http as well.
func (u *User) place(path string) *url.URL {
	at := &url.URL{Scheme: "https", Host: u.host, Path: path}
	if parsed, err := url.Parse(path); err == nil {
		at.Path = parsed.Path // without a query, and of a complete URL
	}
	return at
}

// cookieLine returns the value of the Cookie header.
func (u *User) cookieLine(path string) string {
	if u.jar == nil {
		return ""
	}
	var line strings.Builder
	for _, cookie := range u.jar.Cookies(u.place(path)) {
		if line.Len() > 0 {
			line.WriteString("; ")
		}
		line.WriteString(cookie.String()) // of the jar's cookies, the name and the value
	}
	return line.String()
}

// Receive takes cookies from the answer to the last Call, and if it was good, the
// values that its step extracts. An error means that one is missing.
func (u *User) Receive(good bool) error {
	a := &u.call.Answer
	if u.jar != nil && a.Status != 0 {
		response := http.Response{Header: a.Header}
		if set := response.Cookies(); len(set) > 0 {
			u.jar.SetCookies(u.place(u.call.Path), set)
		}
	}
	s := &u.flow.steps[u.call.Number]
	if !good || len(s.extract) == 0 {
		return nil
	}
	parsed := sync.OnceValues(func() (any, error) { return parseAnswer(a.Body) }) // when the first extraction needs it
	for i := range s.extract {
		t, err := s.extract[i].find(a, parsed, u.random)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		u.set(s.extract[i].variable, t)
	}
	return nil
}

// Proceeds reports whether the iteration continues after a failure of the step.
func (u *User) Proceeds(number int) bool { return u.flow.steps[number].proceed }

// Steps is the number of steps.
func (u *User) Steps() int { return len(u.flow.steps) }

// Think returns how long the user pauses after the step.
func (u *User) Think(number int) time.Duration { return u.flow.steps[number].think.draw(u.random) }
