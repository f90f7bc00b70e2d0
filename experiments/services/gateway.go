package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// runGateway is the gateway of a microservice framework, small: it takes an HTTP request, reads the session cookie, looks
// the service up in the registry and calls it by gRPC. How it keeps connections and reads cookies are flags: the seed tuned these.
func runGateway(ctx context.Context, flags *flag.FlagSet, args []string) error {
	address := flags.String("listen", "127.0.0.1:8091", "address to serve on; several gateways may share it")
	ready := flags.String("ready", "", "address that accepts connections once this gateway serves")
	registry := flags.String("registry", "http://127.0.0.1:8090", "URL of the registry")
	lookup := flags.Duration("lookup", time.Minute, "a service's addresses are kept for this long; 0: asked per request")
	client := flags.String("client", "each", "connections to the service: each (one a request), pool or shared (one for all)")
	size := flags.Int("pool", 10, "connections that --client pool keeps")
	cookies := flags.String("cookies", "split", "how the session is found: split (take everything apart) or search")
	if err := flags.Parse(args); err != nil {
		return err
	}

	g := &gateway{places: newPlaces(*registry, *lookup)}
	switch *client {
	case "each":
		g.client = newPool(0)
	case "pool":
		g.client = newPool(*size)
	case "shared":
		g.client = newShared()
	default:
		return fmt.Errorf("--client %q: each, pool or shared", *client)
	}
	defer g.client.close()
	switch *cookies {
	case "split":
		g.session = sessionBySplit
	case "search":
		g.session = sessionBySearch
	default:
		return fmt.Errorf("--cookies %q: split or search", *cookies)
	}
	return serveShared(ctx, *address, *ready, g)
}

// serveShared serves until ctx ends. The listener shares its port: the kernel spreads connections over all gateways there.
func serveShared(ctx context.Context, address, ready string, handler http.Handler) error {
	sharing := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	listener, err := sharing.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if ready != "" {
		sign, err := net.Listen("tcp", ready)
		if err != nil {
			return errors.Join(fmt.Errorf("listen: %w", err), listener.Close())
		}
		defer sign.Close()
	}
	return serveHTTP(ctx, listener, handler)
}

// gateway answers every path by one call of the service.
type gateway struct {
	places  *places
	client  client
	session func(header string) (string, bool)
}

// ServeHTTP calls the service for one request.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	session, ok := g.session(r.Header.Get("Cookie"))
	if !ok {
		http.Error(w, "no session cookie", http.StatusUnauthorized)
		return
	}
	text, err := g.call(r.Context(), session)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text)) // the client may have left
}

func (g *gateway) call(ctx context.Context, session string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	address, err := g.places.next(ctx, greeterService)
	if err != nil {
		return "", fmt.Errorf("look up the service: %w", err)
	}
	conn, err := g.client.take(address)
	if err != nil {
		return "", fmt.Errorf("connect to the service: %w", err)
	}
	answer := &wrapperspb.StringValue{}
	err = conn.Invoke(ctx, greeterHello, wrapperspb.String(session), answer)
	g.client.put(address, conn, err)
	if err != nil {
		return "", fmt.Errorf("call the service: %w", err)
	}
	return answer.Value, nil
}

// client gives out connections to services. Its methods may be called concurrently.
type client interface {
	take(address string) (*grpc.ClientConn, error)
	put(address string, conn *grpc.ClientConn, failed error) // every connection taken, with how its call went
	close()                                                  // when no call runs any more
}

// dial opens a connection by the address as it is, without a resolver's work.
func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// pool lends each connection to one call at a time and keeps a few for the next. It never makes a call wait: when all are
// lent, it opens one more, and closes what it has no place for afterwards. So a pool of 10 under 100 concurrent calls
// still connects for most of them, as the pools of early microservice frameworks do; one of size 0 connects for each.
type pool struct {
	size int

	mu   sync.Mutex
	idle map[string][]*grpc.ClientConn
}

func newPool(size int) *pool { return &pool{size: size, idle: map[string][]*grpc.ClientConn{}} }

func (p *pool) take(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	if idle := p.idle[address]; len(idle) > 0 {
		conn := idle[len(idle)-1]
		p.idle[address] = idle[:len(idle)-1]
		p.mu.Unlock()
		return conn, nil
	}
	p.mu.Unlock()
	return dial(address)
}

func (p *pool) put(address string, conn *grpc.ClientConn, failed error) {
	p.mu.Lock()
	if failed == nil && len(p.idle[address]) < p.size {
		p.idle[address] = append(p.idle[address], conn)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	_ = conn.Close() // nothing is left to be said on it
}

func (p *pool) close() {
	for _, idle := range p.idle {
		for _, conn := range idle {
			_ = conn.Close()
		}
	}
}

// shared has one connection for each address, over which all calls go at once: HTTP/2 was made for that.
type shared struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func newShared() *shared { return &shared{conns: map[string]*grpc.ClientConn{}} }

func (s *shared) take(address string) (*grpc.ClientConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn := s.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := dial(address)
	if err == nil {
		s.conns[address] = conn
	}
	return conn, err
}

// put leaves the connection open: it mends itself.
func (s *shared) put(string, *grpc.ClientConn, error) {}

func (s *shared) close() {
	for _, conn := range s.conns {
		_ = conn.Close()
	}
}

// sessionCookie is the name of the cookie that holds the session.
const sessionCookie = "sid"

// sessionBySplit finds the session by taking the whole header apart, one slice for the cookies and one for each cookie,
// until the right one comes.
func sessionBySplit(header string) (string, bool) {
	for _, cookie := range strings.Split(header, ";") {
		parts := strings.Split(cookie, "=")
		if strings.Trim(parts[0], " ") == sessionCookie && len(parts) > 1 {
			return parts[1], true
		}
	}
	return "", false
}

// sessionBySearch finds the session by one search for its name, without a copy.
func sessionBySearch(header string) (string, bool) {
	const key = sessionCookie + "="
	for at := 0; ; {
		found := strings.Index(header[at:], key)
		if found < 0 {
			return "", false
		}
		begin := at + found
		at = begin + len(key)
		if before := strings.TrimRight(header[:begin], " "); before != "" && before[len(before)-1] != ';' {
			continue // the end of a longer name
		}
		value, _, _ := strings.Cut(header[at:], ";")
		value, _, _ = strings.Cut(value, "=")
		return value, true
	}
}

// places knows where services are, from the registry. Its methods may be called concurrently.
type places struct {
	registry string
	keep     time.Duration // 0: nothing is kept
	client   *http.Client
	turn     atomic.Uint64

	mu    sync.Mutex
	known map[string]known
}

type known struct {
	addresses []string
	until     time.Time
}

func newPlaces(registry string, keep time.Duration) *places {
	transport := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}
	return &places{registry: registry, keep: keep, client: &http.Client{Transport: transport}, known: map[string]known{}}
}

// next returns an address of the service, each in its turn.
func (p *places) next(ctx context.Context, service string) (string, error) {
	addresses, err := p.addresses(ctx, service)
	if err != nil {
		return "", err
	}
	if len(addresses) == 0 {
		return "", errors.New(service + " is nowhere")
	}
	return addresses[p.turn.Add(1)%uint64(len(addresses))], nil
}

func (p *places) addresses(ctx context.Context, service string) ([]string, error) {
	if p.keep == 0 {
		return p.ask(ctx, service)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k, ok := p.known[service]; ok && time.Now().Before(k.until) {
		return k.addresses, nil
	}
	addresses, err := p.ask(ctx, service)
	if err == nil && len(addresses) > 0 {
		p.known[service] = known{addresses, time.Now().Add(p.keep)}
	}
	return addresses, err
}

// ask asks the registry.
func (p *places) ask(ctx context.Context, service string) ([]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.registry+"/services/"+service, nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the registry answers %s", response.Status)
	}
	var addresses []string
	if err := json.NewDecoder(response.Body).Decode(&addresses); err != nil {
		return nil, fmt.Errorf("read the registry's answer: %w", err)
	}
	return addresses, nil
}
