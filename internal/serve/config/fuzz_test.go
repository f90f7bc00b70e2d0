package config

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"spillway/internal/yaml"
)

// Read never panics. Its errors have one line each and contain no value from the environment
// or a secret's file, and no secret from the configuration.
func FuzzRead(f *testing.F) {
	for _, src := range []string{
		"", orders, "database: ${X}", "redis: file:/x\nadmin: {token: \"${X}\"}", "data: ${X}\nlisten: '${X}'",
		"pool: {max: ${X}}", "feeds:\n - path: ${X}\n   sql: |\n     a\n   key: [${X}]\n   params: {a: '${X}'}",
		"a: &x [1]\nb: *x\n<<: *x", "? {a: b}\n: c", "!!binary aaaa", "%YAML 1.2\n---\nlisten: a", "a:\n\t- b", "---\n...\n---\n", "{", "[", "'", "\"\\x", "|", "- -", "key: >9\n  a",
		"http: {cors_origins: ['${X}'], trusted_proxies: [${X}], tls_cert: ${X}}", "log: {level: ${X}, format: '${X}', access: '${X}'}",
	} {
		f.Add(src)
	}
	const secret = "Zq7-hidden-9Xz"
	env := func(string) (string, bool) { return secret, true }
	file := func(string) ([]byte, error) { return []byte(secret), nil }
	line := regexp.MustCompile(`^f\.yaml:[1-9][0-9]*:[1-9][0-9]*: [^\n]+$`)
	f.Fuzz(func(t *testing.T, src string) {
		c, err := Read("f.yaml", []byte(src), env, file)
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Fatalf("Read accepts a configuration that Validate refuses: %v", err)
			}
			return
		}
		var errs yaml.Errors
		if !errors.As(err, &errs) || len(errs) == 0 {
			t.Fatalf("error of type %T", err)
		}
		for _, e := range errs {
			if !line.MatchString(e.Error()) {
				t.Fatalf("%q: not one line with a position: %q", src, e.Error())
			}
		}
		if strings.Contains(err.Error(), secret) && !strings.Contains(src, secret) {
			t.Fatalf("%q: shows a secret: %v", src, err)
		}
	})
}

// Errors never contain the password of an address, even if the rest of the file is malformed.
func FuzzReadPassword(f *testing.F) {
	for _, before := range []string{"", "data: x\n", "feeds:\n  - path: /a\n    ", "a: [", "admin:\n  token: x\n", "- ", "'", "litsen: 1\n", "database: a\n"} {
		for _, after := range []string{"", "\n", "\n\tx", "'", "]", ": x\n", " : : ", "\nfeeds: 3\n", "\"", " #", "\n---\na", " *x"} {
			f.Add(before, after)
		}
	}
	const password = "Zq7-hidden-9Xz"
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, key := range []string{"database: ", "redis: ", "redis:", "database: |\n  ", "database: '", "database: [", "database: {a: "} {
			src := before + key + "postgres://ann:" + password + "@db/app" + after
			c, err := Read("f.yaml", []byte(src), testEnv, testFile)
			if err != nil && strings.Contains(err.Error(), password) && !strings.Contains(before+after, "$") {
				t.Fatalf("%q: shows the password: %v", src, err)
			}
			_ = c
		}
	})
}
