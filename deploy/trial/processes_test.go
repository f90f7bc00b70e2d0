package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"spillway/internal/apptest"
)

// Process is a program that runs until End or the end of the test.
type Process struct {
	cmd   *exec.Cmd
	log   *apptest.Output
	ended chan error
}

// Start starts a program with additional variables. It is killed when this process ends.
func Start(dir string, environment []string, name string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(name, args...), log: &apptest.Output{}, ended: make(chan error, 1)}
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), environment...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// End sends SIGTERM, and SIGKILL when ctx ends before the process does. It returns how the process ended.
func (p *Process) End(ctx context.Context) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		err := <-p.ended
		p.ended <- err
		return fmt.Errorf("killed, because it did not end in time: %w", err)
	}
}

// Log returns what the process has printed.
func (p *Process) Log() string { return p.log.String() }

// Forward accepts connections at an address and passes them on to another one until ctx ends.
func Forward(ctx context.Context, from, to string) error {
	ln, err := net.Listen("tcp", from)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go pass(ctx, client, to)
		}
	}()
	return nil
}

// pass copies both ways until one of them ends.
func pass(ctx context.Context, client net.Conn, to string) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}

// Prometheus is the API of a running Prometheus.
type Prometheus struct{ URL string }

// Query returns how many series an expression has now.
func (p Prometheus) Query(ctx context.Context, expression string) (series int, err error) {
	var answer struct{ Result []json.RawMessage }
	err = p.get(ctx, "/api/v1/query?query="+url.QueryEscape(expression), &answer)
	return len(answer.Result), err
}

// Alerts returns the names of the alerts that fire.
func (p Prometheus) Alerts(ctx context.Context) (names []string, err error) {
	var answer struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	err = p.get(ctx, "/api/v1/alerts", &answer)
	for _, alert := range answer.Alerts {
		if alert.State == "firing" {
			names = append(names, alert.Labels["alertname"])
		}
	}
	return names, err
}

func (p Prometheus) get(ctx context.Context, path string, to any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status string
		Error  string
		Data   json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("read the answer of Prometheus: %w", err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: Prometheus answers %s", path, answer.Error)
	}
	return json.Unmarshal(answer.Data, to)
}

// Expressions returns the queries of a dashboard, with its variables filled in.
func Expressions(dashboard []byte) ([]string, error) {
	var d struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(dashboard, &d); err != nil {
		return nil, err
	}
	var all []string
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			all = append(all, strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m").Replace(target.Expr))
		}
	}
	return all, nil
}
