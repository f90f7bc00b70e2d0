package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"spillway/internal/netstat"
	"spillway/internal/serve/param"
	"spillway/internal/yaml"
)

// OpenReads returns the paths of feeds and queries that other hosts can read without a key
// or a JWT.
func (c Config) OpenReads() []string {
	if !openToOthers(c.Listen) {
		return nil
	}
	var paths []string
	for _, f := range c.Feeds {
		if c.ReadAccess(f.Auth) == "open" {
			paths = append(paths, f.Path)
		}
	}
	for _, q := range c.Queries {
		if c.ReadAccess(q.Auth) == "open" {
			paths = append(paths, q.Path)
		}
	}
	return paths
}

// auth checks keys and JWTs.
func (v *validator) auth(c Config) {
	v.bearerKeys("auth.keys", c.Auth.Keys)
	v.jwtKeys("auth.jwt.keys", c.Auth)
	if strings.ContainsFunc(c.Auth.Cookie, notTokenRune) || strings.ContainsAny(c.Auth.Cookie, `()<>@,;:\"/[]?={}`) {
		v.add("auth.cookie", "must be the name of a cookie: letters, digits and !#$%&'*+-.^_`|~", c.Auth.Cookie)
	}
	if link := c.Auth.JWKS.URL; link != "" && !isKeySetURL(link.Reveal()) {
		v.add("auth.jwks.url", "must be https://HOST/PATH, or http:// with a loopback address, because who can change the answer can make tokens",
			"")
	}
	for i, f := range c.Feeds {
		v.access(c, yaml.Index("feeds", i), f.Auth, f.Params.Names())
		v.caching(yaml.Index("feeds", i), f.SMaxAge, f.Revalidate, "refresh", f.Refresh, c.ReadAccess(f.Auth))
	}
	for i, q := range c.Queries {
		v.access(c, yaml.Index("queries", i), q.Auth, q.Params.Names())
		v.caching(yaml.Index("queries", i), q.SMaxAge, q.Revalidate, "ttl", q.TTL, c.ReadAccess(q.Auth))
	}
	for i, s := range c.Streams {
		v.streamAccess(c, yaml.Index("streams", i), s)
	}
}

// bearerKeys checks keys that requests send.
func (v *validator) bearerKeys(at string, keys []Secret) {
	for i, key := range keys {
		if text := key.Reveal(); len(text) < minKey || strings.ContainsFunc(text, notTokenRune) {
			v.add(yaml.Index(at, i), fmt.Sprintf("must have at least %d characters: letters, digits and signs without spaces, as from openssl "+
				"rand -hex 16", minKey), "")
		}
	}
}

func (v *validator) jwtKeys(at string, a Auth) {
	for i, k := range a.JWT.Keys {
		path := yaml.Index(at, i)
		switch {
		case k.Kid == "" && (len(a.JWT.Keys) > 1 || a.JWKS.URL != ""):
			v.add(yaml.Join(path, "kid"), "must be given, because there are other keys", "")
		case slices.ContainsFunc(a.JWT.Keys[:i], func(other JWTKey) bool { return other.Kid == k.Kid }):
			v.add(yaml.Join(path, "kid"), "must not be repeated", k.Kid)
		}
		v.verificationKey(path, k.Algorithm, k.Key)
	}
}

// verificationKey checks the key of JWTs of one algorithm.
func (v *validator) verificationKey(at, algorithm string, secret Secret) {
	key := secret.Reveal()
	isPEM := strings.HasPrefix(key, "-----BEGIN ")
	switch {
	case key == "":
		v.add(yaml.Join(at, "key"), "must be given for JWTs", "")
	case algorithm == "HS256" && isPEM:
		v.add(yaml.Join(at, "algorithm"), "must be RS256, ES256 or EdDSA, because the key is public", algorithm)
	case algorithm == "HS256" && len(key) < signingKeyMin:
		v.add(yaml.Join(at, "key"), fmt.Sprintf("must have at least %d characters for HS256", signingKeyMin), "")
	case algorithm != "HS256" && !isPEM:
		v.add(yaml.Join(at, "key"), "must be a public key in PEM for "+algorithm+", as file:PATH", "")
	}
}

func isKeySetURL(link string) bool {
	u, err := url.Parse(link)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && netstat.IsLoopback(u.Hostname())
}

// access checks that what a feed or a query requires is configured.
func (v *validator) access(c Config, at, auth string, params []string) {
	required := c.ReadAccess(auth)
	path := yaml.Join(at, "auth")
	if auth == authDefault {
		path = "auth.reads"
	}
	v.required(c, path, required, len(c.Auth.Keys) > 0, "auth.keys")
	claim := slices.IndexFunc(params, param.IsClaim)
	if claim >= 0 && required != "jwt" {
		v.add(yaml.Join(at, "auth"), "must be jwt, because "+params[claim]+" is a claim", required)
	}
}

// required checks that there are the keys that required, the value at a path, needs.
func (v *validator) required(c Config, path, required string, hasKeys bool, keys string) {
	if (required == "key" || required == "any") && !hasKeys {
		v.add(path, "requires "+keys, required)
	}
	if (required == "jwt" || required == "any") && len(c.Auth.JWT.Keys) == 0 && c.Auth.JWKS.URL == "" {
		v.add(path, "requires auth.jwt.keys or auth.jwks.url", required)
	}
}

// streamAccess checks what a stream requires, and its columns with a claim.
func (v *validator) streamAccess(c Config, at string, s Stream) {
	if s.Auth != "key" { // without keys, key is open on loopback
		v.required(c, yaml.Join(at, "auth"), s.Auth, len(c.Keys) > 0, "keys")
	}
	for _, column := range s.Columns {
		path := yaml.Join(yaml.Join(yaml.Join(at, "columns"), yaml.Printable(column.Name)), "claim")
		switch {
		case column.Claim == "":
		case !yaml.IsIdentifier(column.Claim):
			v.add(path, "must be the name of a claim: letters, digits and _", column.Claim)
		case s.Auth != "jwt":
			v.add(yaml.Join(at, "auth"), "must be jwt, because column "+column.Name+" is a claim", s.Auth)
		}
	}
}
