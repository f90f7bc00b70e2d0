package token

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestParseSet(t *testing.T) {
	t.Parallel()
	keys := take(t, someKeys)
	all := keys.set(t)
	found, err := parseSet(setJSON(t, all...))
	if err != nil || len(found) != 3 {
		t.Fatalf("%d keys, %v", len(found), err)
	}
	for _, id := range []keyID{{"rsa", RS256}, {"ec", ES256}, {"ed", EdDSA}} {
		if found[id] == nil {
			t.Errorf("%v is missing", id)
		}
	}
	changed := func(i int, name string, value any) map[string]any {
		one := maps.Clone(all[i])
		one[name] = value
		return one
	}
	for name, bad := range map[string]map[string]any{
		"secret":           {"kty": "oct", "kid": "hs", "alg": "HS256", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"},
		"encryption":       changed(0, "use", "enc"),
		"operations":       changed(0, "key_ops", []string{"encrypt"}),
		"HS256 of RSA":     changed(0, "alg", "HS256"),
		"RS512":            changed(0, "alg", "RS512"),
		"none":             changed(0, "alg", "none"),
		"short modulus":    changed(0, "n", "AQAB"),
		"exponent 1":       changed(0, "e", "AQ"),
		"even exponent":    changed(0, "e", "AQAA"),
		"large exponent":   changed(0, "e", "AQAAAAAAAAAB"),
		"no modulus":       changed(0, "n", ""),
		"not base64":       changed(0, "n", "?"),
		"P-384":            changed(1, "crv", "P-384"),
		"not on the curve": changed(1, "x", all[1]["y"]),
		"short coordinate": changed(1, "x", "AAAA"),
		"Ed448":            changed(2, "crv", "Ed448"),
		"X25519":           changed(2, "crv", "X25519"),
		"short key":        changed(2, "x", "AAAA"),
		"type":             changed(2, "kty", 7),
	} {
		if found, err := parseSet(setJSON(t, bad)); err == nil {
			t.Errorf("%s: %v", name, found)
		}
		if found, err := parseSet(setJSON(t, bad, all[1])); err != nil || len(found) != 1 {
			t.Errorf("%s keeps another key from being used: %v", name, err)
		}
	}
	for _, text := range []string{"", "[]", `{"keys":[]}`, `{"keys":{}}`, `{"keys":[7,null,[]]}`, "<html>"} {
		if found, err := parseSet([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, found)
		}
	}
}

func FuzzParseSet(f *testing.F) {
	keys := take(f, someKeys)
	f.Add(setJSON(f, keys.set(f)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := parseSet(data)
		if (err == nil) != (len(found) > 0) {
			t.Errorf("%d keys, %v", len(found), err)
		}
	})
}

// issuer is the server of a key set.
type issuer struct {
	keys    atomic.Pointer[[]byte] // nil: it fails
	slow    atomic.Int64           // nanoseconds
	fetches atomic.Int64
}

func (i *issuer) fetch(ctx context.Context) ([]byte, error) {
	i.fetches.Add(1)
	select {
	case <-time.After(time.Duration(i.slow.Load())):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if data := i.keys.Load(); data != nil {
		return *data, nil
	}
	return nil, errors.New("it is away")
}

func (i *issuer) publish(data []byte) { i.keys.Store(&data) }

// runSet returns a verifier whose key set runs until the test ends, inside a bubble.
func runSet(t *testing.T, i *issuer) (*Verifier, *Set) {
	t.Helper()
	set := NewSet(SetConfig{Fetch: i.fetch, Refresh: time.Hour, Pause: 10 * time.Second, Timeout: 5 * time.Second, Log: discard()})
	v := NewVerifier(Config{Set: set})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { set.Run(ctx); close(done) }()
	t.Cleanup(func() { stop(); <-done })
	synctest.Wait()
	return v, set
}

// A new key is used from the first token that names it, and an old one is not used any more
// once the set lacks it.
func TestSetRotates(t *testing.T) {
	t.Parallel()
	before, after := take(t, someKeys), take(t, otherKeys)
	synctest.Test(t, func(t *testing.T) {
		var i issuer
		old, fresh := before.set(t)[0], after.set(t)[0]
		fresh["kid"] = "new"
		i.publish(setJSON(t, old))
		v, set := runSet(t, &i)
		verify := func(kid string, keys testKeys) error {
			_, err := v.Verify(t.Context(), signed(t, RS256, kid, keys.rsa, claimsOf(nil)))
			return err
		}
		if err := verify("rsa", before); err != nil {
			t.Error(err)
		}
		i.publish(setJSON(t, old, fresh))
		<-time.After(11 * time.Second) // the pause is over; the refresh is an hour away
		if err := verify("new", after); err != nil || i.fetches.Load() != 2 {
			t.Errorf("%v after %d fetches", err, i.fetches.Load())
		}
		if err := verify("new", before); !errors.Is(err, ErrInvalid) {
			t.Errorf("the old key as the new one: %v", err)
		}
		i.publish(setJSON(t, fresh))
		<-time.After(time.Hour)
		synctest.Wait()
		if err := verify("rsa", before); !errors.Is(err, ErrInvalid) {
			t.Errorf("the withdrawn key: %v", err)
		}
		if stats := set.Stats(); stats.Keys != 1 || stats.Errors != 0 || stats.Fetches != uint64(i.fetches.Load()) {
			t.Errorf("%+v", stats)
		}
	})
}

// Tokens with an unknown kid cause one fetch per pause, and known keys do not wait for it.
func TestSetUnknownKeys(t *testing.T) {
	t.Parallel()
	keys := take(t, someKeys)
	synctest.Test(t, func(t *testing.T) {
		var i issuer
		i.publish(setJSON(t, keys.set(t)...))
		v, _ := runSet(t, &i)
		<-time.After(time.Minute)
		i.slow.Store(int64(4 * time.Second))
		begin := time.Now()
		bad := signed(t, EdDSA, "unknown", keys.ed, claimsOf(nil))
		answers := make(chan error, 3000)
		for range 3000 {
			go func() {
				_, err := v.Verify(t.Context(), bad)
				answers <- err
			}()
		}
		synctest.Wait()
		if _, err := v.Verify(t.Context(), signed(t, EdDSA, "ed", keys.ed, claimsOf(nil))); err != nil || time.Since(begin) > 0 {
			t.Errorf("a known key: %v after %v", err, time.Since(begin))
		}
		invalid, unavailable := 0, 0
		for range 3000 {
			switch err := <-answers; {
			case errors.Is(err, ErrInvalid):
				invalid++
			case errors.Is(err, ErrUnavailable):
				unavailable++
			default:
				t.Fatal(err)
			}
		}
		if invalid != waitersMax || unavailable != 3000-waitersMax || time.Since(begin) != 4*time.Second || i.fetches.Load() != 2 {
			t.Errorf("%d invalid, %d unavailable after %v and %d fetches", invalid, unavailable, time.Since(begin), i.fetches.Load())
		}
		for range 1000 {
			if _, err := v.Verify(t.Context(), bad); !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
		}
		if i.fetches.Load() != 2 || time.Since(begin) != 4*time.Second {
			t.Errorf("%d fetches after %v", i.fetches.Load(), time.Since(begin))
		}
		if _, err := v.Verify(t.Context(), forged(`{"alg":"HS256","kid":"unknown"}`, "{}", nil)); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	})
}

// While the issuer is away or slow, known keys are used.
func TestSetAway(t *testing.T) {
	t.Parallel()
	keys := take(t, someKeys)
	synctest.Test(t, func(t *testing.T) {
		var i issuer
		good := signed(t, ES256, "ec", keys.ec, claimsOf(nil))
		noKid := signed(t, ES256, "", keys.ec, claimsOf(nil))
		v, set := runSet(t, &i)
		for _, text := range []string{good, noKid} {
			if _, err := v.Verify(t.Context(), text); !errors.Is(err, ErrUnavailable) {
				t.Errorf("never fetched: %v", err)
			}
		}
		i.publish(setJSON(t, keys.set(t)...))
		<-time.After(11 * time.Second) // a failed fetch is repeated after the pause
		synctest.Wait()
		for _, text := range []string{good, noKid} {
			if _, err := v.Verify(t.Context(), text); err != nil {
				t.Error(err)
			}
		}
		for name, fault := range map[string]func(){
			"away":  func() { i.keys.Store(nil) },
			"empty": func() { i.publish([]byte(`{"keys":[]}`)) },
			"slow":  func() { i.publish(setJSON(t, keys.set(t)[0])); i.slow.Store(int64(time.Hour)) },
		} {
			fault()
			<-time.After(2 * time.Hour)
			begin := time.Now()
			if _, err := v.Verify(t.Context(), signed(t, ES256, "ec", keys.ec, claimsOf(nil))); err != nil || time.Since(begin) > 0 {
				t.Errorf("%s: %v after %v", name, err, time.Since(begin))
			}
			_, err := v.Verify(t.Context(), signed(t, ES256, "unknown", keys.ec, claimsOf(nil)))
			if !errors.Is(err, ErrUnavailable) || time.Since(begin) > 5*time.Second {
				t.Errorf("%s: %v for an unknown key after %v", name, err, time.Since(begin))
			}
			i.slow.Store(0)
			i.publish(setJSON(t, keys.set(t)...))
			<-time.After(time.Minute)
		}
		if stats := set.Stats(); stats.Errors == 0 || stats.Unavailable == 0 || stats.AgeSeconds == nil {
			t.Errorf("%+v", stats)
		}
	})
}
