package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"strings"

	"spillway/internal/serve/popup"
	"spillway/internal/serve/spool"
)

// unixPrefix begins the address of a Unix socket; its path follows.
const unixPrefix = "unix:"

// Reload sends POST /reload to the admin listener at an address, HOST:PORT or unix:PATH.
// refused says why the process has changed nothing; "" if the configuration is in force.
func Reload(ctx context.Context, address, token string) (refused string, err error) {
	status, body, err := send(ctx, http.MethodPost, address, "/reload", token)
	if err != nil {
		return "", fmt.Errorf("reload: %w", err)
	}
	switch status {
	case http.StatusNoContent:
		return "", nil
	case http.StatusConflict:
		return detailOf(body), nil
	}
	return "", fmt.Errorf("reload: %s answers %d %s: %s", address, status, http.StatusText(status), detailOf(body))
}

// ForgetUser sends DELETE /popups/users/USER to the admin listener at an address, HOST:PORT or
// unix:PATH. Errors that wrap popup.ErrRequest say why no user can have the id.
func ForgetUser(ctx context.Context, address, token, user string) (Forgotten, error) {
	var done Forgotten
	name := strings.ReplaceAll(neturl.PathEscape(user), ".", "%2E") // "." and ".." would be taken as directories
	status, body, err := send(ctx, http.MethodDelete, address, "/popups/users/"+name, token)
	if err != nil {
		return done, fmt.Errorf("forget user: %w", err)
	}
	if status == http.StatusBadRequest {
		return done, fmt.Errorf("%w: %s", popup.ErrRequest, detailOf(body))
	}
	if status != http.StatusOK {
		return done, fmt.Errorf("forget user: %s answers %d %s: %s", address, status, http.StatusText(status), detailOf(body))
	}
	if err := json.Unmarshal(body, &done); err != nil {
		return done, fmt.Errorf("forget user: read the answer of %s: %w", address, err)
	}
	return done, nil
}

// detailOf returns the detail of a problem; "" if the body is something else.
func detailOf(body []byte) string {
	var problem struct{ Detail string }
	if json.Unmarshal(body, &problem) != nil {
		return ""
	}
	return problem.Detail
}

// send sends a request without a body to the admin listener at an address.
func send(ctx context.Context, method, address, path, token string) (status int, body []byte, err error) {
	answer, err := sendBody(ctx, method, address, path, token, nil)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return answer.StatusCode, body, err
}

// sendBody sends a request to the admin listener at an address. The caller closes the body.
func sendBody(ctx context.Context, method, address, path, token string, body []byte) (*http.Response, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	url := "http://" + address + path
	if file, ok := strings.CutPrefix(address, unixPrefix); ok {
		url = "http://localhost" + path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", file)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return (&http.Client{Transport: transport}).Do(request)
}

// SpoolClient is a spool of the process at an admin listener. It implements spool.Remote.
type SpoolClient struct{ Address, Token, Name string }

var _ spool.Remote = SpoolClient{}

// Status implements spool.Remote.
func (c SpoolClient) Status(ctx context.Context) ([]spool.NameStats, error) {
	var answer struct{ Streams []spool.NameStats }
	err := c.ask(ctx, http.MethodGet, "", nil, func(body io.Reader) error { return json.NewDecoder(body).Decode(&answer) })
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
		err = c.ask(ctx, http.MethodPost, "/"+string(o.Work), body, func(body io.Reader) error { return json.NewDecoder(body).Decode(&done) })
	}
	return done, err
}

// ask sends a request and has read take the body of the answer.
func (c SpoolClient) ask(ctx context.Context, method, path string, body []byte, read func(io.Reader) error) error {
	answer, err := sendBody(ctx, method, c.Address, "/spools/"+c.Name+path, c.Token, body)
	if err != nil {
		return fmt.Errorf("ask the process that has the spool: %w; name its configuration with --config, or its admin listener with --admin", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		if err := read(answer.Body); err != nil {
			return fmt.Errorf("read the answer of %s: %w", c.Address, err)
		}
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20)) // for the message only
	detail := detailOf(text)
	switch answer.StatusCode {
	case http.StatusConflict:
		return fmt.Errorf("%s: %w", c.Address, refusedOrder(detail))
	case http.StatusUnauthorized:
		detail = "it requires a token: name its configuration with --config"
	}
	return fmt.Errorf("%s answers %d %s: %s", c.Address, answer.StatusCode, http.StatusText(answer.StatusCode), detail)
}

// refusedOrder is a spool.ErrOrder with the text of another process.
type refusedOrder string

func (e refusedOrder) Error() string { return string(e) }
func (refusedOrder) Unwrap() error   { return spool.ErrOrder }
