package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	goccy "github.com/goccy/go-yaml"
)

func TestSecretString(t *testing.T) {
	t.Parallel()
	shows := func(secret Secret, want string) {
		t.Helper()
		if got := secret.String(); got != want {
			t.Errorf("Secret(%q) shows as %q, want %q", secret.Reveal(), got, want)
		}
	}
	shows("", "")
	shows("a token", "***")
	shows("https://token", "***")
	shows("sqlite:data/app.db", "sqlite:data/app.db")
	shows("postgres://ann:pw@db:5432/app", "postgres://ann:***@db:5432/app")
	shows("postgres://ann@db/app?sslmode=disable", "postgres://ann@db/app?***")
	shows("postgres:///app?host=/run&password=pw", "postgres:///app?***")
	shows("redis://:pw@cache:6379/1", "redis://:***@cache:6379/1")
	// Malformed: any part may belong to the password.
	shows("postgres://ann:p@w@db/app", "postgres://***")
	shows("postgres://ann:12/34@db/app", "postgres://***")
	shows("postgres://ann:12?34@db/app", "postgres://***")
	shows("postgres://ann:pw", "postgres://***")
}

// No output format shows a secret.
func TestSecretNeverShows(t *testing.T) {
	t.Parallel()
	const password = "q7s3cr3t"
	c := Default()
	c.Database = "postgres://ann:" + password + "@db/app"
	c.Redis = "redis://:" + password + "@cache"
	c.Admin.Token = password
	c.Feeds = []Feed{{Database: password}}

	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		fmt.Fprintf(&shown, verb+" "+verb+"\n", c, c.Admin.Token)
	}
	if err := json.NewEncoder(&shown).Encode(c); err != nil {
		t.Error(err)
	}
	text, err := goccy.Marshal(c)
	if err != nil {
		t.Error(err)
	}
	shown.Write(text)
	slog.New(slog.NewJSONHandler(&shown, nil)).Info("start", "config", c, "token", c.Admin.Token)
	slog.New(slog.NewTextHandler(&shown, nil)).Info("start", "config", c, "token", c.Admin.Token)
	if err := c.Print(&shown); err != nil {
		t.Error(err)
	}
	for _, form := range []string{password, fmt.Sprintf("%x", password), fmt.Sprintf("%X", password)} {
		if strings.Contains(shown.String(), form) {
			t.Errorf("%s shows in\n%s", form, shown.String())
		}
	}
	if n := strings.Count(shown.String(), "ann:***@db"); n < 10 {
		t.Errorf("the address without its password shows %d times", n)
	}
}

// A password is hidden in every part of an address.
func FuzzSecret(f *testing.F) {
	for _, before := range []string{"postgres://ann:", "redis://:", "mysql://a/b?password=", "unix://", "", "postgres://h:"} {
		for _, after := range []string{"@db/app", "/x@db", "?x@db", "#@db", "@@db", "", "&a=b", "/db"} {
			f.Add(before, "pw", after)
		}
	}
	f.Fuzz(func(t *testing.T, before, password, after string) {
		password = "Zq7" + password + "9Xz"
		text := before + password + after
		_, userinfo, isURL := strings.Cut(before, "://")
		inURL := strings.Contains(userinfo, ":") && strings.Contains(after, "@") || strings.Contains(userinfo, "?")
		if !strings.HasPrefix(text, "sqlite:") && (!isURL || inURL) && strings.Contains(Secret(text).String(), password) {
			t.Errorf("Secret(%q) shows as %q", text, Secret(text))
		}
	})
}
