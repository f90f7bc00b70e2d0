package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"strings"
	"time"

	"spillway/internal/serve/config"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/spool"
)

// Reload sends POST /reload to the admin listener at an address, HOST:PORT or unix:PATH.
// refused says why the process has changed nothing; "" if the configuration is in force.
func Reload(ctx context.Context, address, token string) (refused string, err error) {
	err = call(ctx, http.MethodPost, address, "/reload", token, nil, nil)
	if problem, ok := errors.AsType[*refusal](err); ok && problem.status == http.StatusConflict {
		return problem.detail, nil
	}
	if err != nil {
		return "", fmt.Errorf("reload: %w", err)
	}
	return "", nil
}

// CheckReady sends GET /readyz to the admin listener at an address, HOST:PORT or unix:PATH. The error has the reasons of a process
// that is not ready.
func CheckReady(ctx context.Context, address string) error {
	ctx, stop := context.WithTimeout(ctx, 4*time.Second)
	defer stop()
	return call(ctx, http.MethodGet, address, "/readyz", "", nil, readAs(new(readiness)))
}

// ForgetUser sends DELETE /popups/users/USER to the admin listener at an address, HOST:PORT or
// unix:PATH. Errors that wrap popup.ErrRequest say why no user can have the id.
func ForgetUser(ctx context.Context, address, token, user string) (done Forgotten, err error) {
	name := strings.ReplaceAll(neturl.PathEscape(user), ".", "%2E") // "." and ".." would be taken as directories
	err = call(ctx, http.MethodDelete, address, "/popups/users/"+name, token, nil, readAs(&done))
	if problem, ok := errors.AsType[*refusal](err); ok && problem.status == http.StatusBadRequest {
		return done, fmt.Errorf("%w: %s", popup.ErrRequest, problem.detail)
	}
	if err != nil {
		return done, fmt.Errorf("forget user: %w", err)
	}
	return done, nil
}

// refusal is an answer that is neither 200 nor 204.
type refusal struct {
	address string
	status  int
	detail  string // of the problem, or the body if it is something else
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s answers %d %s: %s", r.address, r.status, http.StatusText(r.status), r.detail)
}

func readAs(answer any) func(io.Reader) error {
	return func(body io.Reader) error { return json.NewDecoder(body).Decode(answer) }
}

// call sends a request to the admin listener at an address, and has read take the body of a 200. Errors
// are a *refusal, or of the connection.
func call(ctx context.Context, method, address, path, token string, body []byte, read func(io.Reader) error) error {
	transport := &http.Transport{DisableKeepAlives: true}
	url := "http://" + address + path
	if file, ok := strings.CutPrefix(address, config.UnixPrefix); ok {
		url = "http://localhost" + path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", file)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNoContent && read == nil:
		return nil
	case answer.StatusCode == http.StatusOK && read != nil:
		if err := read(answer.Body); err != nil {
			return fmt.Errorf("read the answer of %s: %w", address, err)
		}
		return nil
	}
	var problem struct{ Detail string }
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20)) // for the message only
	_ = json.Unmarshal(text, &problem)
	return &refusal{address, answer.StatusCode, cmp.Or(problem.Detail, string(bytes.TrimSpace(text)))}
}

// SpoolClient is a spool of the process at an admin listener. It implements spool.Remote.
type SpoolClient struct{ Address, Token, Name string }

var _ spool.Remote = SpoolClient{}

// Status implements spool.Remote.
func (c SpoolClient) Status(ctx context.Context) ([]spool.NameStats, error) {
	var answer struct{ Streams []spool.NameStats }
	err := c.ask(ctx, http.MethodGet, "", nil, readAs(&answer))
	return answer.Streams, err
}

// Export implements spool.Remote.
func (c SpoolClient) Export(ctx context.Context, filter spool.Filter, dead bool, out io.Writer) error {
	path := "/waiting"
	if dead {
		path = "/dead/export"
	}
	query := neturl.Values{"stream": {filter.Stream}, "reason": {filter.Reason}}
	return c.ask(ctx, http.MethodGet, path+"?"+query.Encode(), nil, func(body io.Reader) error {
		_, err := io.Copy(out, body)
		return err
	})
}

// Do implements spool.Remote.
func (c SpoolClient) Do(ctx context.Context, o spool.Order) (done spool.Done, err error) {
	body, err := json.Marshal(o)
	if err == nil {
		err = c.ask(ctx, http.MethodPost, "/"+string(o.Work), body, readAs(&done))
	}
	return done, err
}

// ask is call for a path below that of the spool.
func (c SpoolClient) ask(ctx context.Context, method, path string, body []byte, read func(io.Reader) error) error {
	err := call(ctx, method, c.Address, "/spools/"+c.Name+path, c.Token, body, read)
	problem, refused := errors.AsType[*refusal](err)
	switch {
	case errors.As(err, new(*neturl.Error)):
		return fmt.Errorf("ask the process that has the spool: %w; name its configuration with --config, or its admin listener with --admin", err)
	case !refused:
		return err
	case problem.status == http.StatusConflict:
		return fmt.Errorf("%s: %w", c.Address, refusedOrder(problem.detail))
	case problem.status == http.StatusUnauthorized:
		problem.detail = "it requires a token: name its configuration with --config"
	}
	return err
}

// refusedOrder is a spool.ErrOrder with the text of another process.
type refusedOrder string

func (e refusedOrder) Error() string { return string(e) }
func (refusedOrder) Unwrap() error   { return spool.ErrOrder }
