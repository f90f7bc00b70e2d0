// Package peer holds what two lab processes on different hosts need to work
// together: who may talk to a listener, and how far two clocks are apart.
//
// A listener on loopback needs no token. One that other hosts can reach requires a
// token of TokenMin characters of every request. Without TLS the token travels
// unencrypted.
package peer

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"spillway/internal/netstat"
)

// Limits on a connection to a peer.
const (
	TokenMin = 16              // characters in a token
	Timeout  = 5 * time.Second // to connect, for the TLS handshake and for the header of an answer
)

// Listen listens on HOST:PORT. :PORT is loopback if there is no token. An address
// that other hosts can reach requires a token. option names the address in errors.
func Listen(ctx context.Context, option, address, token string) (net.Listener, error) {
	if host, port, found := strings.Cut(address, ":"); found && host == "" && token == "" {
		address = "127.0.0.1:" + port
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%s %q: write HOST:PORT, such as 127.0.0.1:9191 or :9191", option, address)
	}
	if err := checkToken(option, address, token, netstat.IsLoopback(host)); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", option, address, err)
	}
	return listener, nil
}

// CheckListener returns the error of Listen for a listener that exists.
func CheckListener(option string, listener net.Listener, token string) error {
	tcp, ok := listener.Addr().(*net.TCPAddr)
	return checkToken(option, listener.Addr().String(), token, ok && tcp.IP.IsLoopback())
}

func checkToken(option, address, token string, loopback bool) error {
	switch {
	case token == "" && !loopback:
		return fmt.Errorf("%s %s: other hosts can reach this address and no token is set: "+
			"set a token of at least %d characters, or listen on 127.0.0.1", option, address, TokenMin)
	case token != "" && len(token) < TokenMin:
		return fmt.Errorf("%s %s: the token has %d characters: use at least %d", option, address, len(token), TokenMin)
	}
	return nil
}

// Guard requires the token of every request. Without one it answers requests for
// loopback's names only, and none that a web page of another origin makes the user's
// browser send, other than reads. Otherwise such a page, or one whose own name resolves
// to 127.0.0.1, could talk to the listener. name is the listener's, as in "watch --listen".
func Guard(name, token string, next http.Handler) http.Handler {
	ofThisHost := http.NewCrossOriginProtection().Handler(next)
	want := sha256.Sum256([]byte(token)) // of equal length, so that the comparison does not reveal the token's length
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if token == "" {
			host, _, err := net.SplitHostPort(r.Host)
			if err != nil {
				host = strings.Trim(r.Host, "[]") // no port
			}
			if !netstat.IsLoopback(host) {
				http.Error(w, fmt.Sprintf("without a token, %s answers requests for 127.0.0.1, [::1] and localhost only", name),
					http.StatusMisdirectedRequest)
				return
			}
			ofThisHost.ServeHTTP(w, r)
			return
		}
		scheme, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(sent)))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q", "spillway "+name))
			http.Error(w, fmt.Sprintf(`send the header "Authorization: Bearer TOKEN" with the token of %s`, name), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// NewTransport returns a transport to a peer. It uses no proxy, which would be
// measured too.
func NewTransport() *http.Transport {
	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: Timeout}).DialContext,
		TLSHandshakeTimeout:    Timeout,
		ResponseHeaderTimeout:  Timeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
}

// NoRedirect keeps a client from following redirects: a token is for one host only.
func NoRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
