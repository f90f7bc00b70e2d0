package watch

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"spillway/internal/netstat"
)

// tokenMin is the least number of characters in a token.
const tokenMin = 16

// listenOption names the address in errors.
const listenOption = "watch --listen"

// Listen listens for Serve on HOST:PORT. :PORT is loopback if there is no token. An address that other hosts can reach requires a
// token of 16 characters, because samples show what runs on this host. Without TLS the token travels unencrypted.
func Listen(ctx context.Context, address, token string) (net.Listener, error) {
	if host, port, found := strings.Cut(address, ":"); found && host == "" && token == "" {
		address = "127.0.0.1:" + port
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("%s %q: write HOST:PORT, such as 127.0.0.1:9191 or :9191", listenOption, address)
	}
	if err := checkToken(address, token, netstat.IsLoopback(host)); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", listenOption, address, err)
	}
	return listener, nil
}

func checkToken(address, token string, loopback bool) error {
	switch {
	case token == "" && !loopback:
		return fmt.Errorf("%s %s: other hosts can reach this address and no token is set: "+
			"set a token of at least %d characters, or listen on 127.0.0.1", listenOption, address, tokenMin)
	case token != "" && len(token) < tokenMin:
		return fmt.Errorf("%s %s: the token has %d characters: use at least %d", listenOption, address, len(token), tokenMin)
	}
	return nil
}

// guard requires the token of every request. Without one it answers requests for
// loopback's names only, and none that a web page of another origin makes the user's
// browser send, other than reads. Otherwise such a page, or one whose own name resolves
// to 127.0.0.1, could talk to the listener.
func guard(token string, next http.Handler) http.Handler {
	ofThisHost := http.NewCrossOriginProtection().Handler(next)
	want := sha256.Sum256([]byte(token)) // of equal length, so that the comparison does not reveal the token's length
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if token == "" {
			if named := (&url.URL{Host: r.Host}).Hostname(); !netstat.IsLoopback(named) {
				http.Error(w, fmt.Sprintf("without a token, %s answers requests for 127.0.0.1, [::1] and localhost only", listenOption),
					http.StatusMisdirectedRequest)
				return
			}
			ofThisHost.ServeHTTP(w, r)
			return
		}
		scheme, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(sent)))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q", "spillway "+listenOption))
			http.Error(w, fmt.Sprintf(`send the header "Authorization: Bearer TOKEN" with the token of %s`, listenOption), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
