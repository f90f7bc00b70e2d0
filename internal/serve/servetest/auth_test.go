package servetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

const sharedSecret = "0123456789abcdef0123456789abcdef"

// authenticated is a configuration. %s is replaced by the URL of a key set.
const authenticated = `auth:
  reads: jwt
  keys: [a-read-key-of-24-letters]
  jwt:
    issuer: https://issuer.example
    audience: spillway
    keys: [{kid: shared, algorithm: HS256, key: ` + sharedSecret + `}]
  jwks: {url: "%s", pause: 200ms, timeout: 2s}
feeds:
  - path: /parcels
    aliases: [/v1/parcels]
    sql: SELECT id, owner FROM parcels WHERE owner = :claim.sub
    key: id
    params: {claim.sub: text}
    window: 3
  - path: /all
    auth: open
    sql: SELECT id FROM parcels
    key: id
  - path: /staff
    auth: any
    sql: SELECT id, owner FROM parcels
    key: id
queries:
  - path: /weights
    sql: SELECT owner, weight FROM parcels WHERE owner = :claim.sub AND weight >= :least
    params: {claim.sub: text, least: integer}
    ttl: 1h
  - path: /numbered
    sql: SELECT id, owner FROM parcels WHERE id = :claim.number
    params: {claim.number: integer}
streams:
  - path: /positions
    table: positions
    auth: jwt
    columns: {courier: {type: text, claim: sub, max_length: 10}, place: {type: integer, required: true}}
`

// createParcels creates the tables of authenticated.
func createParcels(t *testing.T, db storetest.Database) {
	t.Helper()
	for _, sql := range []string{
		"CREATE TABLE parcels (id bigint NOT NULL PRIMARY KEY, owner varchar(20), weight bigint)",
		"CREATE INDEX parcels_owner ON parcels (owner, id)",
		"CREATE TABLE positions (courier varchar(20), place bigint)",
	} {
		db.Query(t, sql)
	}
}

// keyIssuer serves a key set over HTTP.
type keyIssuer struct {
	*httptest.Server
	mu      sync.Mutex
	keys    map[string]*ecdsa.PrivateKey
	secret  bool // the set has the shared key too
	broken  atomic.Bool
	fetches atomic.Int64
}

func newKeyIssuer(t *testing.T, kids ...string) *keyIssuer {
	t.Helper()
	i := &keyIssuer{keys: make(map[string]*ecdsa.PrivateKey)}
	for _, kid := range kids {
		i.add(t, kid)
	}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		if i.broken.Load() {
			http.Error(w, "away", http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": i.set()})
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *keyIssuer) add(t *testing.T, kid string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys[kid] = key
}

func (i *keyIssuer) set() []map[string]any {
	i.mu.Lock()
	defer i.mu.Unlock()
	text := base64.RawURLEncoding.EncodeToString
	var all []map[string]any
	for kid, key := range i.keys {
		point, err := key.PublicKey.Bytes()
		if err != nil {
			panic(err) // the test has made it
		}
		all = append(all, map[string]any{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": kid, "x": text(point[1:33]), "y": text(point[33:])})
	}
	if i.secret {
		all = append(all, map[string]any{"kty": "oct", "alg": "HS256", "kid": "leaked", "k": text([]byte(sharedSecret))})
	}
	return all
}

// token returns the header of a user's token, signed with a key of the set.
func (i *keyIssuer) token(t *testing.T, kid, user string, change jwt.MapClaims) []string {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	return bearerOf(t, jwt.SigningMethodES256, kid, i.keys[kid], user, change)
}

func bearerOf(t *testing.T, method jwt.SigningMethod, kid string, key any, user string, change jwt.MapClaims) []string {
	t.Helper()
	claims := jwt.MapClaims{"sub": user, "iss": "https://issuer.example", "aud": "spillway", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range change {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	token := jwt.NewWithClaims(method, claims)
	token.Header["kid"] = kid
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"Authorization", "Bearer " + text}
}

// parcels are the rows of a page, and the cursor of the next one.
type parcels struct {
	Data []struct {
		ID     int
		Owner  string
		Weight int
	}
	Next string
}

// owned requests a page, fails the test if another user's row is in it, and returns it.
func owned(t *testing.T, url, user string, rows int, headers ...string) parcels {
	t.Helper()
	a, err := apptest.Get(t.Context(), url, headers...)
	var p parcels
	if err != nil || a.Status != http.StatusOK || json.Unmarshal(a.Body, &p) != nil || len(p.Data) != rows {
		t.Errorf("%s of %s: %d %s, %v; want %d rows", url, user, a.Status, a.Body, err, rows)
	}
	for _, row := range p.Data {
		if row.Owner != user {
			t.Errorf("%s of %s has a row of %s", url, user, row.Owner)
		}
	}
	if c := a.Header.Get("Cache-Control"); !strings.Contains(c, "private") || !strings.Contains(strings.Join(a.Header.Values("Vary"), ","), "Authorization") {
		t.Errorf("%s: Cache-Control %q, Vary %q", url, c, a.Header.Values("Vary"))
	}
	return p
}

// TestAuthentication reads and writes as two users. Each sees the own rows only.
func TestAuthentication(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]storetest.Database{"sqlite": storetest.SQLiteDatabase(t), "postgres": storetest.PostgresDatabase(t, postgres.Get(t))} {
		t.Run(name, func(t *testing.T) {
			createParcels(t, db)
			db.Query(t, "INSERT INTO parcels VALUES (1, 'ann', 10), (2, 'bob', 20), (3, 'ann', 30), (4, 'bob', 40), (5, 'ann', 50), (6, 'ann', 60), (7, 'ann', 70), (8, 'bob', 80), (9, 'bob', 90), (10, 'bob', 95)")
			issuer := newKeyIssuer(t, "one")
			issuer.secret = true
			s := apptest.ServePatiently(t, &binary, fmt.Sprintf(authenticated, issuer.URL), db.URL)
			testOwnRows(t, s, issuer)
			testRefusedTokens(t, s, issuer)
			testCouriers(t, s, issuer, db)
			testRotation(t, s, issuer)
		})
	}
}

func testOwnRows(t *testing.T, s *apptest.Spillway, issuer *keyIssuer) {
	t.Helper()
	tokens := map[string][]string{"ann": issuer.token(t, "one", "ann", nil), "bob": bearerOf(t, jwt.SigningMethodHS256, "shared", []byte(sharedSecret), "bob", nil)}
	var group sync.WaitGroup
	for i := range 40 {
		user := []string{"ann", "bob"}[i%2]
		group.Go(func() {
			owned(t, s.URL("parcels"), user, 5, tokens[user]...)
			owned(t, s.URL("v1/parcels?offset=3&limit=2"), user, 2, tokens[user]...)
			owned(t, s.URL("weights?least=20"), user, map[string]int{"ann": 4, "bob": 5}[user], tokens[user]...)
		})
	}
	group.Wait()
	// A cursor of one user shows the other one no foreign rows.
	page := owned(t, s.URL("parcels?limit=4"), "ann", 4, tokens["ann"]...)
	owned(t, s.URL("parcels?limit=4&before="+page.Next), "bob", 1, tokens["bob"]...)
	if a, err := apptest.Get(t.Context(), s.URL("weights?least=20"), tokens["ann"]...); err != nil || a.Header.Get("Spillway-Source") != "memory" {
		t.Errorf("not cached: %v %v", a.Header, err)
	}
	first, _ := apptest.Get(t.Context(), s.URL("parcels?limit=2"), tokens["ann"]...)
	again, err := apptest.Get(t.Context(), s.URL("parcels?limit=2"), append(tokens["ann"], "If-None-Match", first.Header.Get("ETag"))...)
	if err != nil || again.Status != http.StatusNotModified {
		t.Errorf("%d, %v", again.Status, err)
	}
	if p := owned(t, s.URL("numbered"), "bob", 1, issuer.token(t, "one", "ann", jwt.MapClaims{"number": 9})...); p.Data[0].ID != 9 {
		t.Errorf("%+v", p)
	}
}

func testRefusedTokens(t *testing.T, s *apptest.Spillway, issuer *keyIssuer) {
	t.Helper()
	ann := issuer.token(t, "one", "ann", nil)
	for _, c := range []struct {
		path, want string
		status     int
		headers    []string
	}{
		{"parcels", "unauthorized", 401, nil},
		{"parcels", "unauthorized", 401, []string{"Authorization", "Bearer a-read-key-of-24-letters"}},
		{"parcels", "unauthorized", 401, []string{"Authorization", "Basic " + ann[1]}},
		{"parcels", "unauthorized", 401, issuer.token(t, "one", "ann", jwt.MapClaims{"exp": time.Now().Add(-time.Hour).Unix()})},
		{"parcels", "unauthorized", 401, issuer.token(t, "one", "ann", jwt.MapClaims{"exp": nil})},
		{"parcels", "unauthorized", 401, issuer.token(t, "one", "ann", jwt.MapClaims{"nbf": time.Now().Add(time.Hour).Unix()})},
		{"parcels", "unauthorized", 401, issuer.token(t, "one", "ann", jwt.MapClaims{"aud": "other"})},
		{"parcels", "unauthorized", 401, issuer.token(t, "one", "ann", jwt.MapClaims{"iss": "https://evil.example"})},
		{"parcels", "unauthorized", 401, bearerOf(t, jwt.SigningMethodHS256, "leaked", []byte(sharedSecret), "ann", nil)},
		{"parcels", "unauthorized", 401, bearerOf(t, jwt.SigningMethodHS256, "one", []byte(sharedSecret), "ann", nil)},
		{"parcels", "unauthorized", 401, bearerOf(t, jwt.SigningMethodNone, "one", jwt.UnsafeAllowNoneSignatureType, "ann", nil)},
		{"parcels", "claim-missing", 403, issuer.token(t, "one", "ann", jwt.MapClaims{"sub": nil})},
		{"parcels", "claim-missing", 403, issuer.token(t, "one", "", nil)},
		{"parcels", "claim-missing", 403, issuer.token(t, "one", "ann", jwt.MapClaims{"sub": []string{"ann"}})},
		{"parcels", "claim-missing", 403, issuer.token(t, "one", "ann\x00", nil)},
		{"numbered", "claim-missing", 403, ann},
		{"numbered", "claim-missing", 403, issuer.token(t, "one", "ann", jwt.MapClaims{"number": "1 OR 1=1"})},
		{"parcels?claim.sub=bob", "bad-request", 400, ann},
		{"parcels?claim%2Esub=bob", "bad-request", 400, ann},
		{"parcels?limit=1&claim.sub", "bad-request", 400, ann},
		{"parcels?limit=1&claim.sub=", "bad-request", 400, ann},
		{"weights?least=1&claim.sub=ann", "bad-request", 400, ann},
		{"weights?claim.other=1&least=1", "bad-request", 400, ann},
	} {
		a, err := apptest.Get(t.Context(), s.URL(c.path), c.headers...)
		if err != nil || a.Status != c.status || !strings.Contains(string(a.Body), "urn:spillway:problem:"+c.want) {
			t.Errorf("%s with %.40s: %d %s, %v; want %d %s", c.path, c.headers, a.Status, a.Body, err, c.status, c.want)
		}
		if (a.Status == 401) != (a.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s: %d with WWW-Authenticate %q", c.path, a.Status, a.Header.Get("WWW-Authenticate"))
		}
	}
	for path, headers := range map[string][]string{"all": nil, "all?claim.sub=x": nil, "staff": ann, "staff?limit=1": {"Authorization", "bearer a-read-key-of-24-letters"}} {
		if a, err := apptest.Get(t.Context(), s.URL(path), headers...); err != nil || a.Status != http.StatusOK {
			t.Errorf("%s: %d %s, %v", path, a.Status, a.Body, err)
		}
	}
}

// testCouriers posts positions as two couriers. None can post as the other one.
func testCouriers(t *testing.T, s *apptest.Spillway, issuer *keyIssuer, db storetest.Database) {
	t.Helper()
	ann, bob := issuer.token(t, "one", "ann", nil), issuer.token(t, "one", "bob", nil)
	large := `[{"place":7},{"courier":"bob","place":7` + strings.Repeat(" ", 8<<10) + `}]`
	for _, c := range []struct {
		body, want string
		status     int
		headers    []string
	}{
		{`{"place":1}`, `"stored":1`, 200, ann},
		{`{"place":2,"courier":"ann"}`, `"stored":1`, 200, ann},
		{`{"courier":"bob","place":3}`, "must be the claim sub of the JWT", 422, ann},
		{`{"courier":null,"place":3}`, "must be the claim sub of the JWT", 422, ann},
		{`{"courier":"","place":3}`, "must be the claim sub of the JWT", 422, ann},
		{`{"courier":"bob","courier":"ann","place":3}`, "is there twice", 422, ann},
		{`{"\u0063ourier":"bob","place":3}`, "must be the claim sub of the JWT", 422, ann},
		{large, `"stored":2`, 200, bob},
		{large, `must be the claim sub of the JWT`, 200, ann},
		{`{"place":3}`, "unauthorized", 401, nil},
		{large, "unauthorized", 401, nil},
		{large, "unauthorized", 401, []string{"Authorization", "Bearer a.b.c"}},
		{`{"place":3}`, "claim-missing", 403, issuer.token(t, "one", "ann", jwt.MapClaims{"sub": nil})},
		{`{"place":3}`, "claim-missing", 403, issuer.token(t, "one", "ann is too long", nil)},
		{`{"place":4}`, `"stored":1`, 200, append(ann, "Idempotency-Key", "k")},
		{`{"place":4}`, `"stored":1`, 200, append(bob, "Idempotency-Key", "k")},
		{`{"place":4}`, `"replayed":true`, 200, append(issuer.token(t, "one", "ann", jwt.MapClaims{"jti": "x"}), "Idempotency-Key", "k")},
	} {
		a := apptest.Post(t, s.URL("positions"), c.body, c.headers...)
		if a.Status != c.status || !strings.Contains(string(a.Body), c.want) {
			t.Errorf("%.60s: %d %s; want %d %s", c.body, a.Status, a.Body, c.status, c.want)
		}
	}
	if a := apptest.Post(t, s.URL("positions?claim.sub=bob"), `{"place":3}`, ann...); a.Status != 400 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	var found []string
	for _, row := range db.Query(t, "SELECT courier, place FROM positions ORDER BY courier, place") {
		found = append(found, strings.Join(row, " "))
	}
	if want := []string{"ann 1", "ann 2", "ann 4", "ann 7", "bob 4", "bob 7", "bob 7"}; !slices.Equal(found, want) {
		t.Errorf("stored %q, want %q", found, want)
	}
}

// testRotation changes the key set, and then takes it away.
func testRotation(t *testing.T, s *apptest.Spillway, issuer *keyIssuer) {
	t.Helper()
	status := func(headers []string) int {
		a, err := apptest.Get(t.Context(), s.URL("parcels"), headers...)
		if err != nil {
			t.Fatal(err)
		}
		return a.Status
	}
	issuer.add(t, "two")
	ann := issuer.token(t, "two", "ann", nil)
	apptest.Await(t, "the new key is used", func() bool { return status(ann) == http.StatusOK })

	begin, before := time.Now(), issuer.fetches.Load()
	stranger := newKeyIssuer(t, "unknown").token(t, "unknown", "ann", nil)
	const tokens = 100
	for range tokens {
		if got := status(stranger); got != http.StatusUnauthorized {
			t.Fatalf("an unknown key: %d", got)
		}
	}
	if n, most := issuer.fetches.Load()-before, 2+int64(time.Since(begin)/(200*time.Millisecond)); n > most {
		t.Errorf("%d fetches for %d tokens in %v", n, tokens, time.Since(begin))
	}

	issuer.broken.Store(true)
	apptest.Await(t, "an unknown key is not the client's fault", func() bool { return status(stranger) == http.StatusServiceUnavailable })
	issuer.Close()
	if got := status(ann); got != http.StatusOK {
		t.Errorf("a known key while the issuer is away: %d", got)
	}
	if n := apptest.Metric(t, s, "spillway_jwks_keys"); n != 2 {
		t.Errorf("%v keys", n)
	}
	if apptest.Metric(t, s, "spillway_jwks_errors_total") == 0 || apptest.Metric(t, s, "spillway_jwks_unavailable_total") == 0 || apptest.Metric(t, s, "spillway_jwks_age_seconds") <= 0 {
		t.Error("metrics of the key set are missing")
	}
}

// Without its issuer the server starts, and answers 503 until the keys are there.
func TestKeySetAway(t *testing.T) {
	t.Parallel()
	issuer := newKeyIssuer(t, "one")
	issuer.broken.Store(true)
	db := storetest.SQLiteDatabase(t)
	createParcels(t, db)
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf(authenticated, issuer.URL), db.URL)
	ann := issuer.token(t, "one", "ann", nil)
	a, err := apptest.Get(t.Context(), s.URL("parcels"), ann...)
	if err != nil || a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), "token-keys-down") {
		t.Errorf("%d %s, %v", a.Status, a.Body, err)
	}
	if a, err := apptest.Get(t.Context(), s.URL("parcels"), bearerOf(t, jwt.SigningMethodHS256, "shared", []byte(sharedSecret), "ann", nil)...); err != nil || a.Status != http.StatusOK {
		t.Errorf("a configured key: %d %s, %v", a.Status, a.Body, err)
	}
	issuer.broken.Store(false)
	apptest.Await(t, "the keys are fetched", func() bool {
		a, err := apptest.Get(t.Context(), s.URL("parcels"), ann...)
		return err == nil && a.Status == http.StatusOK
	})
}

// Each user has a budget, and each address.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	createParcels(t, db)
	issuer := newKeyIssuer(t, "one")
	s := apptest.ServePatiently(t, &binary, fmt.Sprintf(authenticated, issuer.URL)+"http: {rate_per_minute: 1, rate_burst: 3, trusted_proxies: [127.0.0.0/8]}\n", db.URL)
	spend := func(path string, headers ...string) {
		t.Helper()
		for i := range 4 {
			a, err := apptest.Get(t.Context(), s.URL(path), headers...)
			if err != nil || i < 3 && a.Status == http.StatusTooManyRequests {
				t.Errorf("request %d of %s: %d %s, %v", i, path, a.Status, a.Body, err)
			}
			if i == 3 && (a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), "rate-limited")) {
				t.Errorf("request %d of %s: %d %v %s", i, path, a.Status, a.Header, a.Body)
			}
		}
	}
	spend("parcels", issuer.token(t, "one", "ann", nil)...)
	spend("v1/parcels", issuer.token(t, "one", "bob", nil)...)
	spend("staff", "Authorization", "Bearer a-read-key-of-24-letters")
	spend("parcels", "X-Forwarded-For", "192.0.2.1") // without a token
	spend("all", "X-Forwarded-For", "192.0.2.2")
	spend("all", "X-Forwarded-For", "192.0.2.1, 192.0.2.3")
	spend("all", "X-Forwarded-For", "192.0.2.4", "X-Forwarded-For", "192.0.2.5") // the proxy adds a line of its own
	spend("all", "X-Forwarded-For", "2001:db8::1")
	if a, err := apptest.Get(t.Context(), s.URL("all"), "X-Forwarded-For", "2001:db8::ffff:2"); err != nil || a.Status != http.StatusTooManyRequests {
		t.Errorf("another address of the network: %d, %v", a.Status, err)
	}
	if a, err := apptest.Get(t.Context(), s.URL("all"), "X-Forwarded-For", "192.0.2.6", "X-Forwarded-For", "192.0.2.5"); err != nil || a.Status != http.StatusTooManyRequests {
		t.Errorf("the first line is the client's: %d, %v", a.Status, err)
	}
	if n := apptest.Metric(t, s, "spillway_http_rate_limited_total"); n != 10 {
		t.Errorf("%v requests limited", n)
	}
	if n := apptest.Metric(t, s, "spillway_http_rate_clients"); n != 8 {
		t.Errorf("%v clients", n)
	}
}

// A listener that other hosts reach warns about reads without authentication, at the start and
// after a reload.
func TestOpenReadsWarning(t *testing.T) {
	t.Parallel()
	db := storetest.SQLiteDatabase(t)
	createParcels(t, db)
	text := fmt.Sprintf(authenticated, newKeyIssuer(t, "one").URL)
	file := filepath.Join(t.TempDir(), "spillway.yaml")
	for listen, want := range map[string]bool{"0.0.0.0:0": true, "127.0.0.1:0": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s := apptest.Serve(t, binary.Path(t), "--database", db.URL, "--listen", listen, file)
		s.WaitReady(t)
		log := s.Log(t)
		if got := strings.Contains(log, "without authentication"); got != want || want && !strings.Contains(log, "paths=/all") {
			t.Errorf("%s: %s", listen, log)
		}
		if err := syscall.Kill(s.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		apptest.Await(t, "the file is loaded again", func() bool { return strings.Contains(s.Log(t), "configuration reloaded") })
		if want {
			apptest.Await(t, "a reload warns again", func() bool { return strings.Count(s.Log(t), "without authentication") == 2 })
		}
	}
}
