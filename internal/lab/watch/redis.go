package watch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// redisInfoMax bounds the answer to INFO, which usually has 5 to 8 kB.
const redisInfoMax = 1 << 20

// errRedisURL does not quote the address: in a malformed one, any part may be the password.
var errRedisURL = errors.New("parse Redis URL: write redis://[USER:PASSWORD@]HOST:PORT, " +
	"rediss:// for TLS or unix://[USER:PASSWORD@]/PATH; " +
	"in a password write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23 and % as %25")

// redisReader reads Redis and compatible servers with one INFO per reading. It implements the protocol itself, because a client
// library sends commands of its own, which the server counts.
type redisReader struct {
	network, address string
	shown            string // the address without its password
	tls              *tls.Config
	auth             []string // the words of AUTH; nil without a password
	conn             net.Conn
	in               *bufio.Reader
	commands         netCounter
}

// redisFigures maps fields of INFO to figures.
var redisFigures = map[string]string{
	"connected_clients":         "connections",
	"maxclients":                "connections_limit",
	"total_commands_processed":  "commands_total",
	"used_cpu_user":             "cpu_user_seconds_total",
	"used_cpu_sys":              "cpu_system_seconds_total",
	"used_cpu_user_main_thread": "main_thread_user_seconds_total",
	"used_cpu_sys_main_thread":  "main_thread_system_seconds_total",
	"used_memory":               "memory_bytes",
}

// newRedis reads the address. A database number in it has no effect, because INFO covers the whole server.
func newRedis(rawURL string) (*redisReader, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Opaque != "" || u.Fragment != "" || u.ForceQuery || (u.Scheme == "unix") != (u.Host == "") {
		return nil, errRedisURL
	}
	r := &redisReader{network: "tcp", shown: u.Scheme + "://" + u.Host + u.Path}
	if password, ok := u.User.Password(); ok {
		r.auth = []string{"AUTH", password}
		if user := u.User.Username(); user != "" {
			r.auth = []string{"AUTH", user, password}
		}
	} else if u.User.Username() != "" {
		return nil, errRedisURL // a password without a colon before it, or no password
	}
	if u.Scheme == "unix" {
		r.network, r.address = "unix", u.Path
		return r, nil
	}
	if number := strings.Trim(u.Path, "/"); number != "" {
		if _, err := strconv.ParseUint(number, 10, 16); err != nil {
			return nil, errRedisURL
		}
	}
	host, port := u.Hostname(), cmp.Or(u.Port(), "6379")
	if n, err := strconv.ParseUint(port, 10, 16); host == "" || err != nil || n == 0 {
		return nil, errRedisURL
	}
	r.address = net.JoinHostPort(host, port)
	if u.Scheme == "rediss" {
		r.tls = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, InsecureSkipVerify: u.Query().Get("skip_verify") == "true"}
	}
	return r, nil
}

func (r *redisReader) open(ctx context.Context) (err error) {
	dialer := net.Dialer{Timeout: DatabaseTimeout}
	if r.tls == nil {
		r.conn, err = dialer.DialContext(ctx, r.network, r.address)
	} else {
		r.conn, err = (&tls.Dialer{NetDialer: &dialer, Config: r.tls}).DialContext(ctx, r.network, r.address)
	}
	if err != nil {
		r.conn = nil
		return err
	}
	r.in = bufio.NewReader(r.conn)
	r.commands.reopened()
	if r.auth != nil {
		if _, err := r.ask(ctx, r.auth...); err != nil {
			return fmt.Errorf("log in: %w", r.conceal(err))
		}
	}
	if _, err := r.ask(ctx, "CLIENT", "SETNAME", DatabaseName); err != nil && !errors.As(err, new(redisError)) {
		return fmt.Errorf("name the session: %w", err) // a server may reject the name
	}
	return nil
}

// conceal removes the password from an answer that repeats it.
func (r *redisReader) conceal(err error) error {
	password := r.auth[len(r.auth)-1]
	if password == "" || !strings.Contains(err.Error(), password) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), password, "***"))
}

// redisError is an error from the server.
type redisError string

func (e redisError) Error() string { return "Redis answered: " + string(e) }

// ask sends one command and returns the answer's text.
func (r *redisReader) ask(ctx context.Context, words ...string) ([]byte, error) {
	deadline := time.Now().Add(DatabaseTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := r.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	command := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		command = fmt.Appendf(command, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := r.conn.Write(command); err != nil {
		return nil, err
	}
	r.commands.own++
	return readRedisText(r.in)
}

// readRedisText reads a simple string, a bulk string or an error.
func readRedisText(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	line = bytes.TrimRight(line, "\r\n")
	if len(line) == 0 {
		return nil, errors.New("empty answer")
	}
	switch line[0] {
	case '+':
		return bytes.Clone(line[1:]), nil
	case '-':
		return nil, redisError(line[1:])
	case '$':
		n, err := strconv.ParseUint(string(line[1:]), 10, 32)
		if err != nil || n > redisInfoMax {
			return nil, fmt.Errorf("answer of length %.20q, more than %d bytes", line[1:], redisInfoMax)
		}
		text := make([]byte, n+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		return text[:n], nil
	}
	return nil, fmt.Errorf("answer is no text: %.20q", line)
}

func (r *redisReader) read(ctx context.Context) (map[string]float64, string, error) {
	text, err := r.ask(ctx, "INFO")
	if err != nil {
		return nil, "", fmt.Errorf("read INFO: %w", err)
	}
	values := parseRedisInfo(text)
	if len(values) == 0 {
		return nil, "", errors.New("read INFO: no known field in the answer")
	}
	if n, ok := values["connections"]; ok {
		values["connections"] = max(0, n-1)
	}
	if n, ok := values["commands_total"]; ok {
		values["commands_total"] = r.commands.next(n + 1) // the server counts this INFO after answering
	}
	return values, "", nil
}

// parseRedisInfo reads the known fields of INFO, without limits that are not set.
func parseRedisInfo(text []byte) map[string]float64 {
	values := make(map[string]float64, len(redisFigures))
	for line := range bytes.Lines(text) {
		field, rest, found := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		name, known := redisFigures[string(field)]
		if !found || !known {
			continue
		}
		value, err := strconv.ParseFloat(string(rest), 64)
		if err != nil || value < 0 || value > 1<<63 || value != value {
			continue
		}
		if value == 0 && strings.Contains(name, "_limit") {
			continue
		}
		values[name] = value
	}
	return values
}

// statements returns none: what Redis runs is not looked at.
func (*redisReader) statements(context.Context) ([]statement, error) { return nil, nil }

func (r *redisReader) close() {
	if r.conn != nil {
		r.conn.Close() // the session ends even if this fails
		r.conn = nil
	}
}
