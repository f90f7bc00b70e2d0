package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/server"
	"spillway/internal/serve/token"
)

// warnOfOpenReads logs which reads of a configuration are open to other hosts.
func (a *app) warnOfOpenReads(cfg *config.Config) {
	if open := cfg.OpenReads(); len(open) > 0 {
		a.log.Warn("other hosts can read these paths without authentication: set auth.reads, or let only your own back end reach the listener",
			"listen", cfg.Listen, "paths", strings.Join(open, ", "))
	}
}

// openAuth creates what verifies JWTs, and warns about reads that are open to other hosts.
func (a *app) openAuth() error {
	c := &a.cfg.Auth
	a.warnOfOpenReads(&a.cfg)
	if len(c.JWT.Keys) == 0 && c.JWKS.URL == "" {
		return nil
	}
	settings := token.Config{
		Issuer: c.JWT.Issuer, Audience: c.JWT.Audience, Leeway: c.JWT.ClockSkew,
		ExpiryOptional: c.JWT.Exp == "optional", NotBeforeRequired: c.JWT.Nbf == "required",
	}
	for _, k := range c.JWT.Keys {
		key, err := token.NewKey(k.Kid, k.Algorithm, []byte(k.Key.Reveal()))
		if err != nil {
			return exit.UsageError(fmt.Errorf("auth.jwt.keys: %w", err))
		}
		settings.Keys = append(settings.Keys, key)
	}
	if c.JWKS.URL != "" {
		if c.JWT.Audience == "" {
			a.log.Warn("JWTs that the issuer made for other services are accepted: set auth.jwt.audience")
		}
		client := &http.Client{
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
		a.keySet = token.NewSet(token.SetConfig{
			Fetch:   func(ctx context.Context) ([]byte, error) { return fetchKeySet(ctx, client, c.JWKS.URL.Reveal()) },
			Refresh: c.JWKS.Refresh, Pause: c.JWKS.Pause, Timeout: c.JWKS.Timeout, Log: a.log,
		})
		settings.Set = a.keySet
	}
	a.tokens = token.NewVerifier(settings)
	return nil
}

// keySetBytesMax is the maximum size of a key set.
const keySetBytesMax = 1 << 20

// fetchKeySet fetches a key set. It follows no redirect, which could lead to a server that
// the configuration does not name.
func fetchKeySet(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, err // names the URL
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, keySetBytesMax+1))
	if err == nil && len(body) > keySetBytesMax {
		err = fmt.Errorf("%s answers with more than %d bytes", url, keySetBytesMax)
	}
	return body, err
}

// accessOf returns the kind of access that a configuration names.
func accessOf(name string) server.Access {
	access, ok := map[string]server.Access{"open": server.Open, "key": server.Key, "jwt": server.Token, "any": server.Any}[name]
	if !ok {
		panic("bug: unknown kind of access " + name)
	}
	return access
}

// checkAuth rejects keys of JWTs that cannot be read.
func checkAuth(c config.Config) []config.Mistake {
	var found []config.Mistake
	for i, k := range c.Auth.JWT.Keys {
		if _, err := token.NewKey(k.Kid, k.Algorithm, []byte(k.Key.Reveal())); err != nil {
			found = append(found, config.Mistake{Path: fmt.Sprintf("auth.jwt.keys[%d].key", i), Rule: "cannot be used: " + err.Error()})
		}
	}
	return found
}
