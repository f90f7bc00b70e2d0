package watch

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"spillway/internal/lab/result"
)

// Limits of a watch that is read from other hosts.
const (
	ServeReaders    = 8                // streams at a time; more are answered 503
	ServeTokenMin   = 16               // characters of a token
	ServeBuffer     = 1 << 20          // bytes of samples that wait for one reader; the oldest go first
	ServeTimeout    = 10 * time.Second // to read a request, and to write what waits to a reader; one that takes longer is cut off
	ServeBlankEvery = 2 * time.Second  // an empty line into a stream that is silent, to show that it lives
)

// ServeConfig is what Serve tells, and to whom.
type ServeConfig struct {
	Watcher *Watcher
	Token   string           // asked of every request; "" allows a loopback listener only
	Clock   func() time.Time // read once; nil is this host's
}

// Listen listens for Serve on a HOST:PORT. An address that other hosts reach is refused without a token of
// ServeTokenMin characters: samples tell who runs what on this host.
func Listen(ctx context.Context, address, token string) (net.Listener, error) {
	if host, port, found := strings.Cut(address, ":"); found && host == "" {
		if token == "" {
			address = "127.0.0.1:" + port
		}
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("watch --listen %q: write HOST:PORT, as 127.0.0.1:9191 or :9191", address)
	}
	if err := checkToken(address, token, host == "localhost" || isLoopback(host)); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for readers of the watch: %w", err)
	}
	return listener, nil
}

func checkToken(address, token string, loopback bool) error {
	switch {
	case token == "" && !loopback:
		return fmt.Errorf("watch --listen %s: other hosts can reach this address, and no token is set: "+
			"set a token of %d characters or more, or listen on 127.0.0.1", address, ServeTokenMin)
	case token != "" && len(token) < ServeTokenMin:
		return fmt.Errorf("watch --listen %s: the token has %d characters; take %d or more", address, len(token), ServeTokenMin)
	}
	return nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Serve answers readers on listener, which it closes, until ctx ends:
//
//	GET /watch    the result.Watch, and when its samples' time 0 was by the clock of /clock
//	GET /clock    what time it is here
//	GET /samples  the samples from now on, one JSON object a line; empty lines show that the stream lives
//
// The samplers run only while someone reads, and once for all readers: a watch that nobody reads costs nothing. A reader
// that is too slow loses the oldest samples waiting for it, is told how many, and takes no more than twice ServeBuffer.
// The clock is this host's wall clock when Serve began and its monotonic clock from there, so that it never steps.
// Close of the watcher is the caller's.
func Serve(ctx context.Context, listener net.Listener, config ServeConfig) error {
	tcp, ok := listener.Addr().(*net.TCPAddr)
	if err := checkToken(listener.Addr().String(), config.Token, ok && tcp.IP.IsLoopback()); err != nil {
		return errors.Join(err, listener.Close())
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	s := &server{config: config, started: config.Clock().Add(-time.Since(config.Watcher.start)), broadcast: newBroadcast(config.Watcher)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	httpServer := &http.Server{
		Handler:           s.handler(),
		MaxHeaderBytes:    16 << 10,
		ReadHeaderTimeout: ServeTimeout,
		ReadTimeout:       ServeTimeout,
		WriteTimeout:      ServeTimeout, // a stream puts off its own
		IdleTimeout:       2 * clockEvery,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		s.broadcast.run(ctx)
	}()
	failed := make(chan error, 1)
	go func() { failed <- httpServer.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serve the watch: %w", err)
		cancel()
		httpServer.Close() // its error is the listener's, which is known
	case <-ctx.Done():
		drain, stop := context.WithTimeout(context.WithoutCancel(ctx), ServeTimeout)
		defer stop()
		if httpServer.Shutdown(drain) != nil { // a reader holds on
			httpServer.Close()
		}
		<-failed
	}
	<-sampled
	return err
}

type server struct {
	config    ServeConfig
	started   time.Time // time 0 of the samples, by config.Clock
	broadcast *broadcast
}

// servedWatch is the answer to /watch, servedClock to /clock.
type (
	servedWatch struct {
		Watch     result.Watch `json:"watch"`
		StartedAt time.Time    `json:"started_at"`
	}
	servedClock struct {
		Now time.Time `json:"now"`
	}
)

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /watch", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, servedWatch{Watch: s.config.Watcher.Watch(), StartedAt: s.started})
	})
	mux.HandleFunc("GET /clock", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, servedClock{Now: s.started.Add(time.Since(s.config.Watcher.start))})
	})
	mux.HandleFunc("GET /samples", s.samples)
	return s.guarded(mux)
}

func writeJSON(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a reader that has gone needs no answer
}

// guarded asks for the token. Without one it answers to loopback's names only: a web page whose own name resolves to 127.0.0.1
// would otherwise read the samples through the user's browser.
func (s *server) guarded(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(s.config.Token)) // of equal length: the comparison tells nothing of the token's
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if s.config.Token == "" {
			host, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				host = strings.Trim(r.Host, "[]") // no port
			}
			if host != "localhost" && !isLoopback(host) {
				http.Error(w, "without a token this watch answers to 127.0.0.1, [::1] and localhost only", http.StatusMisdirectedRequest)
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(token)))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="spillway watch"`)
			http.Error(w, `send the header "Authorization: Bearer TOKEN" with the token of watch --listen`, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// samples streams to one reader until it goes or the server ends.
func (s *server) samples(w http.ResponseWriter, r *http.Request) {
	reader, ok := s.broadcast.join()
	if !ok {
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d others read this watch; that is the limit", ServeReaders), http.StatusServiceUnavailable)
		return
	}
	defer s.broadcast.leave(reader)
	w.Header().Set("Content-Type", "application/x-ndjson")
	controller := http.NewResponseController(w)
	blank := time.NewTicker(ServeBlankEvery)
	defer blank.Stop()
	lines := []byte("\n") // the first empty line tells that the stream has begun
	for {
		if controller.SetWriteDeadline(time.Now().Add(ServeTimeout)) != nil {
			return
		}
		if _, err := w.Write(lines); err != nil {
			return
		}
		if controller.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-reader.ready:
			lines = reader.take(time.Since(s.config.Watcher.start))
		case <-blank.C:
			lines = []byte("\n")
		}
	}
}
