package config

import "time"

// Auth configures keys and JWTs. Feeds, queries and streams say which they require.
type Auth struct {
	Reads  string   `yaml:"reads" enum:"open,key,jwt,any" doc:"what feeds and queries require: nothing (open), one of auth.keys, a JWT, or either (any)"`
	Keys   []Secret `yaml:"keys" doc:"bearer keys of feeds and queries, at least 16 characters each"`
	Cookie string   `yaml:"cookie" doc:"cookie that may carry the key or the JWT in GET requests for feeds and queries; empty: none"`
	JWT    JWT      `yaml:"jwt" doc:"which JWTs (JSON Web Tokens) are accepted"`
	JWKS   JWKS     `yaml:"jwks" doc:"public keys of an issuer that rotate (JSON Web Key Set); kid selects the key"`
}

// JWT says which tokens are accepted.
type JWT struct {
	Keys      []JWTKey      `yaml:"keys" doc:"keys that do not rotate"`
	Issuer    string        `yaml:"issuer" doc:"required iss; empty: any"`
	Audience  string        `yaml:"audience" doc:"required in aud; empty: any, also for other services"`
	Exp       string        `yaml:"exp" enum:"required,optional" doc:"whether a token needs an expiry"`
	Nbf       string        `yaml:"nbf" enum:"required,optional" doc:"whether a token needs a begin"`
	ClockSkew time.Duration `yaml:"clock_skew" range:"0s..10m" doc:"permitted difference between the issuer's clock and this one" over:"401"`
}

// JWTKey is one key of JWTs.
type JWTKey struct {
	Kid       string `yaml:"kid" doc:"kid of its tokens; required if there are several keys or a key set; empty: any"`
	Algorithm string `yaml:"algorithm" enum:"HS256,RS256,ES256,EdDSA" doc:"its only signature"`
	Key       Secret `yaml:"key" doc:"HS256: the key, at least 32 characters; otherwise the public key in PEM"`
}

// JWKS says where a key set is fetched.
type JWKS struct {
	URL     string        `yaml:"url" doc:"https://, or http:// on a loopback address; empty: none"`
	Refresh time.Duration `yaml:"refresh" range:"1s..24h" doc:"time from one fetch to the next" over:"known keys stay valid while fetches fail; 'spillway_jwks_age_seconds'"`
	Pause   time.Duration `yaml:"pause" range:"100ms..1h" doc:"shortest time between fetches for tokens with an unknown kid" over:"401, or 503 'token-keys-down' if the last fetch failed"`
	Timeout time.Duration `yaml:"timeout" range:"10ms..1m" doc:"of a fetch, and of a request's wait for one" over:"503 'token-keys-down'; 'spillway_jwks_errors_total'"`
}

// DefaultAuth returns the defaults: no authentication.
func DefaultAuth() Auth {
	return Auth{
		Reads: "open",
		JWT:   JWT{Exp: "required", Nbf: "optional", ClockSkew: 30 * time.Second},
		JWKS:  JWKS{Refresh: 5 * time.Minute, Pause: 10 * time.Second, Timeout: 5 * time.Second},
	}
}

// ReadAccess returns what a feed or a query with that auth requires: open, key, jwt or any.
func (c Config) ReadAccess(auth string) string {
	if auth == authDefault {
		return c.Auth.Reads
	}
	return auth
}

// authDefault stands for auth.reads.
const authDefault = "default"
