package server

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/token"
)

// popupRoute returns a route with two campaigns: the first for China, the second for everybody.
func popupRoute(t *testing.T, recorder popup.Recorder) PopupRoute {
	t.Helper()
	one, two := popupCampaign(1), popupCampaign(2)
	one.Target = `country == "CN" and age > 17`
	return popupRouteOf(t, popup.Config{Store: popup.NewMemory(1000, recorder)}, one, two)
}

// popupCampaign returns a campaign for everybody.
func popupCampaign(id popup.CampaignID) popup.Campaign {
	return popup.Campaign{
		ID: id, Name: "c", Placement: "home", Order: int32(id), Status: popup.Active, Rollout: 100, Payload: json.RawMessage(`{"text":"hello"}`),
		QuietClick: popup.Period(time.Hour), QuietDismiss: popup.Period(2 * time.Hour),
	}
}

func popupRouteOf(tb testing.TB, cfg popup.Config, campaigns ...popup.Campaign) PopupRoute {
	tb.Helper()
	schema, err := popup.NewSchema([]popup.Attribute{{Name: "country", Type: popup.Text}, {Name: "age", Type: popup.Integer}, {Name: "tags", Type: popup.TextList}})
	if err != nil {
		tb.Fatal(err)
	}
	set, err := popup.NewSet(schema, campaigns)
	if err != nil {
		tb.Fatal(err)
	}
	signer := popup.NewSigner([][]byte{[]byte("0123456789abcdef0123456789abcdef")}, 24*time.Hour)
	cfg.Signer, cfg.ConvertTTL, cfg.Log = signer, 48*time.Hour, slog.New(slog.DiscardHandler)
	p, err := popup.Open(cfg, set)
	if err != nil {
		tb.Fatal(err)
	}
	return PopupRoute{Path: "/popup", Popup: p, Placements: []string{"home", "checkout"}, User: param.Text}
}

func startPopup(t *testing.T, r PopupRoute) string {
	t.Helper()
	url, _ := start(t, &rows{n: 10}, func(c *Config) { c.Popup = &r })
	return url
}

// post sends a body and returns the status and the code of the problem.
func post(t *testing.T, url, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, problemCode(string(text))
}

func problemCode(body string) string {
	var p struct{ Type string }
	if json.Unmarshal([]byte(body), &p) != nil {
		return body
	}
	return strings.TrimPrefix(p.Type, "urn:spillway:problem:")
}

type shownPopup struct {
	Campaign int
	Variant  string
	Payload  json.RawMessage
	Show     string
}

func shownOf(t *testing.T, a answer) shownPopup {
	t.Helper()
	var s shownPopup
	if err := json.Unmarshal([]byte(a.body), &s); err != nil || a.status != http.StatusOK || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s %v", a.status, a.body, a.header)
	}
	return s
}

func TestPopup(t *testing.T) {
	t.Parallel()
	r := popupRoute(t, nil)
	r.ClockOffset = true
	url := startPopup(t, r) + "/popup"
	first := request(t, "GET", url+"?user=7&country=CN&age=18&unknown=x")
	s := shownOf(t, first)
	if s.Campaign != 1 || string(s.Payload) != `{"text":"hello"}` || s.Show == "" || first.header.Get("Spillway-Reason") != "first" || first.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%+v %v", s, first.header)
	}
	waits := request(t, "GET", url+"?user=7&country=CN&age=18")
	next, err := time.Parse(time.RFC3339, waits.header.Get("Spillway-Next-At"))
	if waits.status != 204 || err != nil || time.Until(next).Round(time.Minute) != 24*time.Hour || waits.header.Get("Spillway-Reason") != "wait-shown" {
		t.Errorf("%d %v %v", waits.status, waits.header, err)
	}
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/click", `{}`, 400, "bad-request"},
		{"/click", `show`, 400, "bad-request"},
		{"/click", `{"show":"x"}`, 400, "show-malformed"},
		{"/click", fmt.Sprintf(`{"show":"%sBBBB%s"}`, s.Show[:4], s.Show[8:]), 403, "show-forged"},
		{"/click?user=8", fmt.Sprintf(`{"show":%q}`, s.Show), 403, "other-user"},
		{"/click?clock_offset=49h", fmt.Sprintf(`{"show":%q}`, s.Show), 410, "show-expired"},
		{"/click?clock_offset=x", fmt.Sprintf(`{"show":%q}`, s.Show), 400, "bad-request"},
		{"/click", fmt.Sprintf(`{"show":%q}%s`, s.Show, strings.Repeat(" ", 3000)), 413, "body-too-large"},
		{"/click?user=7", fmt.Sprintf(`{"show":%q}`, s.Show), 204, ""},
		{"/click", fmt.Sprintf(`{"show":%q}`, s.Show), 409, "show-repeated"},
		{"/dismiss", fmt.Sprintf(`{"show":%q}`, s.Show), 409, "show-repeated"},
	} {
		if status, code := post(t, url+c.path, c.body); status != c.status || code != c.code {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, status, code, c.status, c.code)
		}
	}
	if a := request(t, "GET", url+"?user=7&country=CN&age=18&clock_offset=50m"); a.status != 204 || a.header.Get("Spillway-Reason") != "wait-clicked" {
		t.Errorf("quiet time: %d %v", a.status, a.header)
	}
	if s := shownOf(t, request(t, "GET", url+"?user=7&clock_offset=61m")); s.Campaign != 2 {
		t.Errorf("after the quiet time: %+v", s)
	}
	if status, code := post(t, url+"/click", fmt.Sprintf(`{"show":%q}`, s.Show)); status != 410 || code != "show-late" {
		t.Errorf("a click on the show before: %d %s", status, code)
	}
}

// What is shown or withheld can be followed by conversions, within their own time.
func TestPopupVariantAndHoldout(t *testing.T) {
	t.Parallel()
	varied, held := popupCampaign(1), popupCampaign(2)
	varied.Variants = []popup.Variant{{Name: "never", Payload: json.RawMessage(`0`)}, {Name: "big", Weight: 1, Payload: json.RawMessage(`{"text":"HELLO"}`)}}
	held.Placement, held.Holdout = "checkout", 99.999999
	recorder := &kindRecorder{}
	r := popupRouteOf(t, popup.Config{Store: popup.NewMemory(1000, recorder)}, varied, held)
	r.ClockOffset = true
	url := startPopup(t, r) + "/popup"
	s := shownOf(t, request(t, "GET", url+"?user=7"))
	if s.Campaign != 1 || s.Variant != "big" || string(s.Payload) != `{"text":"HELLO"}` {
		t.Errorf("a variant: %+v", s)
	}
	withheld := request(t, "GET", url+"?user=7&placement=checkout")
	token := withheld.header.Get("Spillway-Show")
	if withheld.status != 204 || withheld.header.Get("Spillway-Reason") != "held-out" || token == "" || withheld.body != "" {
		t.Errorf("withheld: %d %v %s", withheld.status, withheld.header, withheld.body)
	}
	if a := request(t, "GET", url+"?user=7&placement=checkout"); a.status != 204 || a.header.Get("Spillway-Reason") != "none-left" || a.header.Get("Spillway-Show") != "" {
		t.Errorf("after it: %d %v", a.status, a.header)
	}
	for _, c := range []struct {
		path, body string
		status     int
		code       string
	}{
		{"/convert", fmt.Sprintf(`{"show":%q}`, s.Show), 204, ""},
		{"/convert", fmt.Sprintf(`{"show":%q}`, s.Show), 204, ""},
		{"/click", fmt.Sprintf(`{"show":%q}`, s.Show), 204, ""},
		{"/convert?user=7", fmt.Sprintf(`{"show":%q}`, s.Show), 204, ""},
		{"/convert?clock_offset=47h", fmt.Sprintf(`{"show":%q}`, token), 204, ""},
		{"/convert?clock_offset=49h", fmt.Sprintf(`{"show":%q}`, token), 410, "show-expired"},
		{"/convert?user=8", fmt.Sprintf(`{"show":%q}`, token), 403, "other-user"},
		{"/convert", `{"show":"x"}`, 400, "show-malformed"},
		{"/convert", `{}`, 400, "bad-request"},
		{"/convert", fmt.Sprintf(`{"show":%q}%s`, s.Show, strings.Repeat(" ", 3000)), 413, "body-too-large"},
	} {
		if status, code := post(t, url+c.path, c.body); status != c.status || code != c.code {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, status, code, c.status, c.code)
		}
	}
	if got := recorder.String(); got != "show withhold convert click convert" {
		t.Errorf("recorded: %s", got)
	}
}

// kindRecorder keeps the kinds of events.
type kindRecorder struct {
	mu    sync.Mutex
	kinds []string
}

func (r *kindRecorder) Record(_ context.Context, e popup.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds = append(r.kinds, e.Kind.String())
	return nil
}

func (r *kindRecorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.kinds, " ")
}

// A failure of attributes_sql is told with the campaigns that it concerns, without what the database
// said, which is not for clients.
func TestPopupDetail(t *testing.T) {
	t.Parallel()
	rowless, row := popupCampaign(2), popupCampaign(1)
	row.Target = `country == "CN"`
	failing := func(context.Context, string) ([]byte, error) { return nil, errors.New("dial 10.0.0.7: refused") }
	r := popupRouteOf(t, popup.Config{Store: popup.NewMemory(1000, nil), UserRow: failing}, row, rowless)
	r.Popup.RowColumns([]string{"country"})
	url := startPopup(t, r) + "/popup"
	const detail = "the user's row could not be read; not decided: campaign 1"
	a := request(t, "GET", url+"?user=7")
	if s := shownOf(t, a); s.Campaign != 2 || a.header.Get("Spillway-Detail") != detail {
		t.Errorf("%+v %v", s, a.header)
	}
	if a := request(t, "GET", url+"?user=7"); a.status != 204 || a.header.Get("Spillway-Detail") != "" {
		t.Errorf("who waits needs no row: %d %v", a.status, a.header)
	}
	r = popupRouteOf(t, popup.Config{Store: popup.NewMemory(1000, nil), UserRow: failing}, row)
	r.Popup.RowColumns([]string{"country"})
	a = request(t, "GET", startPopup(t, r)+"/popup?user=7")
	if a.status != 503 || problemCode(a.body) != "popups-down" || !strings.Contains(a.body, detail) || strings.Contains(a.body, "10.0.0.7") {
		t.Errorf("nothing else is left: %d %s", a.status, a.body)
	}
}

// Requests are decided by the time of the store.
func TestPopupClock(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	url := startPopup(t, popupRouteOf(t, popup.Config{Store: popup.NewMemory(1000, nil), Now: now}, popupCampaign(1))) + "/popup"
	shownOf(t, request(t, "GET", url+"?user=7"))
	ahead.Store(int64(25 * time.Hour))
	if a := request(t, "GET", url+"?user=7"); a.status != 200 || a.header.Get("Spillway-Reason") != "again" {
		t.Errorf("%d %v", a.status, a.header)
	}
}

func TestPopupRefuses(t *testing.T) {
	t.Parallel()
	url := startPopup(t, popupRoute(t, nil)) + "/popup"
	for query, want := range map[string]string{
		"":                            "parameter user is missing",
		"?user=":                      "parameter user is missing",
		"?user=%ff":                   "user must be UTF-8 text of 1 to 128 bytes",
		"?user=1&user=2":              "user is given twice",
		"?user=1&age=x":               "attribute age must be a whole number of at most 64 bits",
		"?user=1&placement=nowhere":   "placement must be home or checkout",
		"?user=1&country=a&country=b": "attribute country is given twice",
	} {
		a := request(t, "GET", url+query)
		if a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	if a := request(t, "HEAD", url+"?user=1"); a.status != 405 || a.header.Get("Allow") != "GET, OPTIONS" {
		t.Errorf("HEAD: %d %v", a.status, a.header)
	}
	if a := request(t, "GET", url+"?user=1&clock_offset=25h"); a.status != 200 {
		t.Errorf("a clock that may not be shifted is no attribute: %d", a.status)
	}
	if a := request(t, "GET", url+"?user=1&placement=checkout"); a.status != 204 || a.header.Get("Spillway-Next-At") != "" {
		t.Errorf("no campaigns: %d %v", a.status, a.header)
	}
}

// brokenRecorder fails while broken is set.
type brokenRecorder struct{ broken atomic.Bool }

func (r *brokenRecorder) Record(context.Context, popup.Event) error {
	if r.broken.Load() {
		return errors.New("no space left")
	}
	return nil
}

func TestPopupUnavailable(t *testing.T) {
	t.Parallel()
	recorder := &brokenRecorder{}
	url := startPopup(t, popupRoute(t, recorder)) + "/popup"
	s := shownOf(t, request(t, "GET", url+"?user=7"))
	recorder.broken.Store(true)
	if a := request(t, "GET", url+"?user=8"); a.status != 503 || problemCode(a.body) != "popups-down" || a.header.Get("Retry-After") != "1" {
		t.Errorf("%d %s %v", a.status, a.body, a.header)
	}
	if status, code := post(t, url+"/click", fmt.Sprintf(`{"show":%q}`, s.Show)); status != 503 || code != "popups-down" {
		t.Errorf("click: %d %s", status, code)
	}
	recorder.broken.Store(false)
	if status, code := post(t, url+"/click", fmt.Sprintf(`{"show":%q}`, s.Show)); status != 204 {
		t.Errorf("click: %d %s", status, code)
	}
}

// jwtOf makes a JWT; sign signs it.
func jwtOf(t *testing.T, header string, claims map[string]any, sign func([]byte) []byte) string {
	t.Helper()
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(body)
	return text + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(text)))
}

// publicPEM writes a public key.
func publicPEM(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func TestPopupIdentity(t *testing.T) {
	t.Parallel()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	edPublic, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	shared := []byte("0123456789abcdef0123456789abcdef")
	byHMAC := func(key []byte) func([]byte) []byte {
		return func(text []byte) []byte {
			mac := hmac.New(sha256.New, key)
			mac.Write(text)
			return mac.Sum(nil)
		}
	}
	byRSA := func(text []byte) []byte {
		sum := sha256.Sum256(text)
		signature, err := rsa.SignPKCS1v15(rand.Reader, rsaKey, crypto.SHA256, sum[:])
		if err != nil {
			t.Error(err)
		}
		return signature
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	byECDSA := func(text []byte) []byte {
		sum := sha256.Sum256(text)
		x, y, err := ecdsa.Sign(rand.Reader, ecKey, sum[:])
		if err != nil {
			t.Error(err)
		}
		return append(x.FillBytes(make([]byte, 32)), y.FillBytes(make([]byte, 32))...)
	}
	for _, c := range []struct {
		algorithm string
		key       []byte
		sign      func([]byte) []byte
	}{
		{"HS256", shared, byHMAC(shared)},
		{"RS256", publicPEM(t, rsaKey.Public()), byRSA},
		{"ES256", publicPEM(t, ecKey.Public()), byECDSA},
		{"EdDSA", publicPEM(t, edPublic), func(text []byte) []byte { return ed25519.Sign(edKey, text) }},
	} {
		t.Run(c.algorithm, func(t *testing.T) {
			r := popupRoute(t, nil)
			r.Identity = &Identity{Header: "Authorization", Claim: "uid"}
			url, _ := start(t, &rows{n: 10}, func(to *Config) {
				to.Popup, to.Tokens = &r, verifierOf(t, c.algorithm, c.key, token.Config{Issuer: "us", Audience: "popup"})
			})
			testIdentity(t, url+"/popup", fmt.Sprintf(`{"typ":"JWT","alg":%q}`, c.algorithm), c.sign, byHMAC(c.key))
		})
	}
}

// verifierOf returns the verifier of tokens that one key signs.
func verifierOf(t testing.TB, algorithm string, text []byte, cfg token.Config) *token.Verifier {
	t.Helper()
	key, err := token.NewKey("", algorithm, text)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Keys = []token.Key{key}
	return token.NewVerifier(cfg)
}

// testIdentity sends valid and invalid tokens. confuse signs with the public key as if it
// were a shared secret.
func testIdentity(t *testing.T, url, header string, sign, confuse func([]byte) []byte) {
	t.Helper()
	claims := func(change map[string]any) map[string]any {
		all := map[string]any{"uid": "7", "exp": time.Now().Add(time.Hour).Unix(), "iss": "us", "aud": []string{"popup", "other"}}
		for name, value := range change {
			if all[name] = value; value == nil {
				delete(all, name)
			}
		}
		return all
	}
	good := jwtOf(t, header, claims(nil), sign)
	s := shownOf(t, request(t, "GET", url, "Authorization", "Bearer "+good))
	if a := request(t, "GET", url+"?user=7", "Authorization", "bearer "+good); a.status != 204 {
		t.Errorf("the same user again: %d %s", a.status, a.body)
	}
	if a := request(t, "GET", url+"?user=8", "Authorization", "Bearer "+good); a.status != 403 || problemCode(a.body) != "other-user" {
		t.Errorf("another user's: %d %s", a.status, a.body)
	}
	numbered := jwtOf(t, header, claims(map[string]any{"uid": 12345678901234567, "aud": "popup"}), sign)
	if status, code := post(t, url+"/click", fmt.Sprintf(`{"show":%q}`, s.Show), "Authorization", "Bearer "+numbered); status != 403 || code != "other-user" {
		t.Errorf("another user's click: %d %s", status, code)
	}
	if status, code := post(t, url+"/click", fmt.Sprintf(`{"show":%q}`, s.Show)); status != 401 || code != "not-identified" {
		t.Errorf("a click by nobody: %d %s", status, code)
	}
	if status, code := post(t, url+"/click", fmt.Sprintf(`{"show":%q}`, s.Show), "Authorization", "Bearer "+good); status != 204 {
		t.Errorf("click: %d %s", status, code)
	}
	other := func(text []byte) []byte { b := sign(text); b[3] ^= 1; return b }
	for name, bad := range map[string]string{
		"none":     "",
		"basic":    "Basic " + good,
		"parts":    "Bearer a.b",
		"forged":   "Bearer " + jwtOf(t, header, claims(nil), other),
		"no alg":   "Bearer " + jwtOf(t, `{"alg":"none"}`, claims(nil), func([]byte) []byte { return nil }),
		"confused": "Bearer " + jwtOf(t, `{"alg":"HS512"}`, claims(nil), confuse),
		"critical": "Bearer " + jwtOf(t, strings.Replace(header, "}", `,"crit":["b64"]}`, 1), claims(nil), sign),
		"expired":  "Bearer " + jwtOf(t, header, claims(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), sign),
		"no end":   "Bearer " + jwtOf(t, header, claims(map[string]any{"exp": nil}), sign),
		"early":    "Bearer " + jwtOf(t, header, claims(map[string]any{"nbf": time.Now().Add(time.Minute).Unix()}), sign),
		"issuer":   "Bearer " + jwtOf(t, header, claims(map[string]any{"iss": "them"}), sign),
		"audience": "Bearer " + jwtOf(t, header, claims(map[string]any{"aud": "other"}), sign),
		"nobody":   "Bearer " + jwtOf(t, header, claims(map[string]any{"uid": nil}), sign),
		"real":     "Bearer " + jwtOf(t, header, claims(map[string]any{"uid": 1.5}), sign),
	} {
		if a := request(t, "GET", url, "Authorization", bad); a.status != 401 || problemCode(a.body) != "not-identified" || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

// An integer id keeps all its digits. The issuer's clock may differ.
func TestIdentityClaim(t *testing.T) {
	t.Parallel()
	key := []byte("0123456789abcdef0123456789abcdef")
	const leeway = 30 * time.Second
	d, verifier := &Identity{Header: "X-Token", Claim: "sub"}, verifierOf(t, token.HS256, key, token.Config{Leeway: leeway})
	in := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).Unix()) }
	for claims, want := range map[string]string{
		`"sub":"a b","exp":` + in(time.Hour):                                "a b",
		`"sub":98765432109876543210,"exp":` + in(time.Hour) + `.5`:          "98765432109876543210",
		`"sub":-7,"exp":` + in(20*time.Second-leeway):                       "-7",
		`"sub":"a","exp":` + in(-5*time.Second-leeway):                      "",
		`"sub":"a","exp":1e300,"nbf":` + in(leeway+time.Minute):             "",
		`"sub":1e3,"exp":` + in(time.Hour):                                  "",
		`"sub":"","exp":` + in(time.Hour):                                   "",
		`"sub":["a"],"exp":` + in(time.Hour):                                "",
		`"sub":"a","nbf":` + in(20*time.Second) + `,"exp":` + in(time.Hour): "a",
		`"sub":"a","exp":"` + in(time.Hour) + `"`:                           "",
	} {
		signed := signedHS256(key, "{"+claims+"}")
		if user, err := d.claimed(t.Context(), verifier, signed); user != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, errIdentity) {
			t.Errorf("%s: %q, %v; want %q", claims, user, err, want)
		}
	}
}

// signedHS256 makes a JWT of a payload that need not be JSON.
func signedHS256(key []byte, payload string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// FuzzIdentity: no token without the key causes a panic or names a user, and each accepted
// payload names one.
func FuzzIdentity(f *testing.F) {
	key := []byte("0123456789abcdef0123456789abcdef")
	d, verifier := &Identity{Header: "X-Token", Claim: "sub"}, verifierOf(f, token.HS256, key, token.Config{})
	f.Add("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIiwiZXhwIjo5OTk5OTk5OTk5fQ.AAAA", `{"sub":"1","exp":9999999999,"aud":["a"]}`)
	f.Add("a.b", `{"sub":1,"exp":1e300,"nbf":null}`)
	f.Fuzz(func(t *testing.T, text, payload string) {
		if user, err := d.claimed(t.Context(), verifier, text); err == nil {
			t.Errorf("%q is taken: %s", text, user)
		}
		if user, err := d.claimed(t.Context(), verifier, signedHS256(key, payload)); err == nil && user == "" {
			t.Errorf("%q gives nobody", payload)
		}
	})
}

// CORS allows the header of the user's token for popups.
func TestPopupCORS(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"X-User-Token", "authorization"} {
		r := popupRoute(t, nil)
		r.Identity = &Identity{Header: header, Claim: "sub"}
		url, _ := start(t, &rows{n: 10}, func(c *Config) { c.Popup, c.CORSOrigins = &r, []string{"https://app.example"} })
		for path, want := range map[string]bool{"/popup": true, "/popup/click": true, "/popup/dismiss": true, "/popup/convert": true, "/hello": strings.EqualFold(header, "Authorization")} {
			a := request(t, http.MethodOptions, url+path, "Origin", "https://app.example")
			names := strings.Split(strings.ToLower(a.header.Get("Access-Control-Allow-Headers")), ", ")
			if got := slices.Contains(names, strings.ToLower(header)); got != want || !slices.Contains(names, "content-type") || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
				t.Errorf("%s at %s: %q", header, path, names)
			}
		}
	}
}
