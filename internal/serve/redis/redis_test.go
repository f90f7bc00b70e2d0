package redis_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
	"spillway/internal/serve/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, url string) *redis.DB {
	t.Helper()
	db, err := redis.OpenPatient(url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// command sends one command without quoting and returns the first line of the answer.
func command(t *testing.T, addr, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := make([]byte, 256)
	if _, err := fmt.Fprintf(conn, "%s\r\n", text); err != nil {
		t.Fatal(err)
	}
	n, err := conn.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(answer[:n]), "\r\n")
	return line
}

func TestGet(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	db := open(t, server.URL("0"))
	other := open(t, server.URL("3"))
	for _, text := range []string{`SET text hello`, `SET empty ""`, `SET bytes "a\x00\xff\r\n"`, `RPUSH list x`} {
		if answer := command(t, server.Addr(), text); strings.HasPrefix(answer, "-") {
			t.Fatalf("%s: %s", text, answer)
		}
	}
	for key, want := range map[string]string{"text": "hello", "empty": "", "bytes": "a\x00\xff\r\n"} {
		value, found, err := db.Get(t.Context(), key)
		if err != nil || !found || string(value) != want {
			t.Errorf("%s: %q, %t, %v", key, value, found, err)
		}
	}
	for _, key := range []string{"missing", "", "a b", "x\x00y"} {
		if value, found, err := db.Get(t.Context(), key); err != nil || found || value != nil {
			t.Errorf("%q: %q, %t, %v", key, value, found, err)
		}
	}
	if _, found, err := other.Get(t.Context(), "text"); err != nil || found {
		t.Errorf("in database 3: %t, %v", found, err)
	}
	if _, found, err := db.Get(t.Context(), "list"); err == nil || found || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("a list: %t, %v", found, err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	db := open(t, server.URL("0"))
	command(t, server.Addr(), "SET key value")
	var readers sync.WaitGroup
	for i := range 32 {
		readers.Go(func() {
			for j := range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+j)%50 == 0 {
					cancel()
				}
				value, _, err := db.Get(ctx, "key")
				if ctx.Err() == nil && (err != nil || string(value) != "value") || ctx.Err() != nil && err == nil {
					t.Errorf("%q, %v", value, err)
				}
				cancel()
			}
		})
	}
	readers.Wait()
}

// TestDown opens a server that does not run yet, starts, stops and restarts it. Each call
// reports the current state and does not wait for a timeout, which would be a minute.
func TestDown(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	db, err := redis.OpenPatient("redis://:hidden@"+server.Addr(), slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if text := logged.String(); !strings.Contains(text, server.Addr()) || strings.Contains(text, "hidden") {
		t.Errorf("logged %q", text)
	}
	for range 2 {
		for i := range 8 { // the first ones may find connections that the server has closed
			_, found, err := db.Get(t.Context(), "key")
			if err == nil || found || !strings.Contains(err.Error(), server.Addr()) || i == 7 && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("down: %t, %v", found, err)
			}
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		command(t, server.Addr(), "CONFIG SET requirepass hidden")
		for range 5 {
			if _, _, err := db.Get(t.Context(), "key"); err != nil {
				t.Errorf("up again: %v", err)
			}
		}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
		command(t, server.Addr(), "CONFIG SET requirepass hidden")
		for range 5 {
			if _, _, err := db.Get(t.Context(), "key"); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		}
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTimeout sends requests to a server that accepts them but does not answer. Once that is known,
// they are refused at once.
func TestTimeout(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	db, err := redis.Open(fixed(server.URL("0")), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	answers := func(what string) {
		t.Helper()
		apptest.AwaitState(t, what, func() (string, bool) { // within the timeout, which a slow machine may exceed
			_, _, err := db.Get(t.Context(), "key")
			return fmt.Sprint(err), err == nil
		})
	}
	answers("the server answers")
	if err := syscall.Kill(server.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	get := func(ctx context.Context, what string) {
		t.Helper()
		ended := make(chan error, 1)
		go func() {
			_, _, err := db.Get(ctx, "key")
			ended <- err
		}()
		if err := apptest.Receive(t, "the end of "+what, ended); err == nil {
			t.Errorf("%s: a stopped server answered", what)
		}
	}
	get(t.Context(), "a request")
	if _, _, err := db.Get(t.Context(), "key"); err == nil || !strings.Contains(err.Error(), "does not answer; it is asked again") {
		t.Errorf("a second request: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	get(ctx, "a request with a deadline")
	if err := syscall.Kill(server.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	answers("the server answers again")
}

func TestPassword(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t, "--rename-command", "CONFIG", "SETTINGS")
	command(t, server.Addr(), "SETTINGS SET requirepass p@ss:w/rd")
	good := open(t, "redis://:p%40ss%3Aw%2Frd@"+server.Addr()+"/0")
	if err := good.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for _, url := range []string{"redis://:hidden@" + server.Addr(), "redis://user:hidden@" + server.Addr(), "redis://" + server.Addr()} {
		err := open(t, url).Ping(t.Context())
		if err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestPasswordIsNotRepeated logs in to a server whose error would repeat the password.
func TestPasswordIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t, "--rename-command", "HELLO", "", "--rename-command", "AUTH", "")
	err := open(t, "redis://:hidden@"+server.Addr()).Ping(t.Context())
	if err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "no command AUTH") {
		t.Errorf("error %v", err)
	}
	var reads atomic.Int64
	db, err := redis.Open(func() (string, error) { // it is replaced again and again
		return fmt.Sprintf("redis://:hidden-%d@%s", reads.Add(1), server.Addr()), nil
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Ping(t.Context()); err == nil || strings.Contains(err.Error(), "hidden") || !strings.Contains(err.Error(), "no command AUTH") {
		t.Errorf("error %v", err)
	}
}

func TestUnixSocketAndTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "redis.sock")
	certificate, key := selfSigned(t, dir)
	secure := ""
	redisWithPort(t, func(port string) []string {
		secure = net.JoinHostPort("127.0.0.1", port)
		return []string{
			"--unixsocket", socket, "--tls-port", port, "--tls-auth-clients", "no",
			"--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate,
		}
	})
	for _, url := range []string{"unix://" + socket, "unix://" + socket + "?db=2", "rediss://" + secure + "/0?skip_verify=true", "rediss://" + secure + "/0?cacert=" + certificate} {
		if err := open(t, url).Ping(t.Context()); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	err := open(t, "rediss://"+secure).Ping(t.Context())
	if unknown := new(x509.UnknownAuthorityError); !errors.As(err, unknown) {
		t.Errorf("an untrusted certificate: %v", err)
	}
}

func TestURLErrors(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "localhost:6379", "http://localhost", "redis:localhost", "redis://", "unix://", "unix://host/path", "redis://localhost/x",
		"redis://localhost/-1", "redis://localhost/0/1", "redis://localhost:port", "redis://localhost?timeout=1s", "redis://localhost#0",
		"redis://:hid/den@localhost", "redis://:hid#den@localhost", "redis://:hid?den@localhost", "redis://:hid%zz@localhost",
		"redis://user:1/hidden@localhost:6379", "redis://user:1?hidden@localhost:6379", "redis://local host", "redis://localhost:99999/0", "redis://localhost:0", "redis://h\x00st",
	} {
		db, err := redis.Open(fixed(url), slog.New(slog.DiscardHandler))
		if err == nil {
			db.Close()
			t.Errorf("%q: opened", url)
			continue
		}
		if text := err.Error(); !strings.Contains(text, "redis://[USER:PASSWORD@]HOST:PORT/DB") || strings.Contains(text, "hid") {
			t.Errorf("%q: %s", url, text)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	server := apptest.Redis(b)
	db := open(b, server.URL("0"))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, _, err := db.Get(b.Context(), "key"); err != nil {
				b.Error(err)
			}
		}
	})
}

// redisWithPort starts a server whose arguments have a second port. It tries others if that is
// in use.
func redisWithPort(t *testing.T, args func(port string) []string) *apptest.Server {
	t.Helper()
	var last error
	for range 10 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err := errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		var server *apptest.Server
		if server, last = apptest.StartRedis(args(port)...); last == nil {
			t.Cleanup(func() {
				if err := server.Close(); err != nil {
					t.Error(err)
				}
			})
			return server
		}
	}
	t.Fatal(last)
	return nil
}

// selfSigned writes a certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T, dir string) (certificate, key string) {
	t.Helper()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	public, private := apptest.Certificate(t, "127.0.0.1")
	if err := errors.Join(os.WriteFile(certificate, public, 0o600), os.WriteFile(key, private, 0o600)); err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// TestClaim: only the owner of a claim can hold and release it.
func TestClaim(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	db, err := redis.OpenPatient(server.URL("0"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx := t.Context()
	is := func(what string, got bool, err error, want bool) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	got, err := db.Claim(ctx, "k", "one", time.Minute)
	is("claim", got, err, true)
	got, err = db.Claim(ctx, "k", "two", time.Minute)
	is("claim what another has", got, err, false)
	got, err = db.Hold(ctx, "k", "two", time.Minute)
	is("hold what another has", got, err, false)
	if err := db.Release(ctx, "k", "two"); err != nil {
		t.Error(err)
	}
	got, err = db.Hold(ctx, "k", "one", time.Minute)
	is("hold", got, err, true)
	if err := db.Release(ctx, "k", "one"); err != nil {
		t.Error(err)
	}
	got, err = db.Hold(ctx, "k", "one", time.Minute)
	is("hold what was released", got, err, false)
	got, err = db.Claim(ctx, "k", "two", time.Minute)
	is("claim what was released", got, err, true)
}

// fixed is an address that does not change.
func fixed(url string) redis.Address { return func() (string, error) { return url, nil } }
