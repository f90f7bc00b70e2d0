package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// unixPrefix begins the address of a Unix socket; its path follows.
const unixPrefix = "unix:"

// reload applies the configuration file. The answer comes when it is in force.
func (s *Server) reload(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
	if err := s.cfg.Reload(r.Context()); err != nil {
		writeProblem(w, http.StatusConflict, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

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
