package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	neturl "net/url"
	"strings"

	"spillway/internal/serve/popup"
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
	transport := &http.Transport{DisableKeepAlives: true}
	url := "http://" + address + path
	if file, ok := strings.CutPrefix(address, unixPrefix); ok {
		url = "http://localhost" + path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", file)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return answer.StatusCode, body, err
}
