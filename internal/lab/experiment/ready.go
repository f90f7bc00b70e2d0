package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"spillway/internal/lab/result"
)

const (
	readyPoll = 50 * time.Millisecond // between two checks of a service
	readyOnce = 5 * time.Second       // timeout of one check
)

// await waits until a process is ready. It returns early if the process ends.
func (r *running) await(ctx context.Context, limit time.Duration, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	poll := time.Tick(readyPoll)
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-r.done:
			return fmt.Errorf("it ended before it was ready: %s", exitText(r.state))
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("not ready after %v: %w", limit, err)
			}
			return ctx.Err()
		case <-poll:
		}
	}
}

// ready checks a service once.
func (e *engine) ready(ctx context.Context, s *service) error {
	ctx, cancel := context.WithTimeout(ctx, readyOnce)
	defer cancel()
	namespace := e.network.namespace(s.process.host)
	for _, name := range s.config.Ready.TCP {
		address := net.JoinHostPort(e.layout.address(s.process.host), strconv.Itoa(e.layout.ports[s.config.Name][name]))
		if err := accepts(ctx, namespace, address); err != nil {
			return err
		}
	}
	if s.process.http != "" {
		if err := get(ctx, namespace, e.layout.secrets.expand(s.process.http)); err != nil {
			return err
		}
	}
	if len(s.process.probe) > 0 {
		if err := run(ctx, e.spec(s, s.process.probe, os.DevNull, syscall.SIGKILL), time.Second); err != nil {
			return fmt.Errorf("run %s: %w", s.process.probe[0], err)
		}
	}
	return nil
}

// dial connects from a network namespace. The address must be numeric, so that the socket is made on this thread.
func dial(ctx context.Context, namespace, address string) (net.Conn, error) {
	var conn net.Conn
	err := inNamespace(namespace, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// accepts returns nil if a connection from a network namespace is accepted.
func accepts(ctx context.Context, namespace, address string) error {
	conn, err := dial(ctx, namespace, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// get requests a URL from a network namespace. A status other than 200 is an error.
func get(ctx context.Context, namespace, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, namespace, address) },
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", result.RedactURL(url), answer.Status)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, 1<<20))
	return err
}

// exitCode returns the exit code of a process, -1 if a signal ended it or it did not start.
func exitCode(err error) int {
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return ended.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}
