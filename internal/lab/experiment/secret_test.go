package experiment

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReferences wants values where a process starts, and references where a run is recorded.
func TestReferences(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte(" file-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LAB_SECRET", "{{.env}} secret")
	text := strings.NewReplacer("{workers: 1}", "{workers: 1, db_password: file:pw, url: 'pg://u:${LAB_SECRET}@h', own_password: \"{{.setting.mode}}-literal\", plain: '$${X}'}",
		`command: [web, "{{.setting.mode}}"]`, `command: [web, "--x={{.setting.db_password}}", "-p{{.setting.own_password}}", "{{.setting.url}}", "{{.setting.plain}}", "${HOME}"], env: {A_PASSWORD: lite ral}`).Replace(engineSmall)
	f := engineRead(t, text)
	facts := f.facts(f.variant("base"))
	data, err := f.variantData(f.placeholders(dir), &facts, &f.Levels[0])
	if err != nil {
		t.Fatal(err)
	}
	p, err := data.process(f.service("web"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := expandAll(append(p.command, p.env...))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"web", "--x=file-secret", "-p1-literal", "pg://u:{{.env}} secret@h", "${X}", "${HOME}", "A_PASSWORD=lite ral"}, got); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
	want := []string{"web", "--x=file:" + filepath.Join(dir, "pw"), "-p1xxxxx", "pg://u:${LAB_SECRET}@h", "${X}", "${HOME}", "A_PASSWORD=xxxxx"}
	if diff := cmp.Diff(want, redactArgs(append(p.command, p.env...))); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(secrets{"{{.env}} secret", "file-secret", "-literal", "lite ral"}, f.secrets(dir)); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	for _, c := range [][2]string{
		{"file:pw", "file:none: read secret: "}, {"file:pw", "file:/dev/zero: it is no regular file"}, {"${LAB_SECRET}", "${LAB_NONE}: the environment variable LAB_NONE is not set"},
	} {
		fresh, message, _ := strings.Cut(c[1], ": ")
		_, err := engineRead(t, strings.Replace(text, c[0], fresh, 1)).Plan(dir, Options{})
		if err == nil || !strings.Contains(err.Error(), message) || !strings.Contains(err.Error(), "small.yaml:2:") {
			t.Errorf("%s: %v", fresh, err)
		}
	}
}

// TestRedactedSource wants the secrets of a file gone from its copy, and everything else kept.
// Secrets that are written in the file are also removed from what other programs print.
func TestSecretsOfTheFile(t *testing.T) {
	f := engineRead(t, strings.NewReplacer(
		"command: [web,", `env: {api_key: plain-1111, DSN: "mysql://u:plain-2222@h/d?token=plain-3333&x=1"}, command: [web, --token=plain-4444, --password, plain-5555,`,
		"duration: 2s", `duration: 2s, header: ["Authorization: Bearer plain-6666"], body: '{"secret": "plain-7777"}'`,
	).Replace(engineSmall))
	text := f.secrets(".").hide("plain-1111 plain-2222 plain-3333 plain-4444 plain-5555 Bearer plain-6666 plain-7777 web 2s")
	if text != strings.Repeat(redacted+" ", 7)+"web 2s" {
		t.Error(text)
	}
}

func TestRedactedSource(t *testing.T) {
	const text = `name: x # --password=pw-comment
settings:
  db_password: pw-plain  # stays
  token: 'pw-quoted'
  api_key: "${KEY}"
  url: "postgres://app:pw-url@{{.host.db}}/shop?x=1"
  other: postgres://app:${PW}@db/shop
services:
  db:
    command: [db, --password, pw-next, "--secret=pw-flag", "-ppw-plain", "ü: pw"]
    env: {PGPASSWORD: pw-env, PORT: 5432}
load: {header: ["Authorization: Bearer pw-header", "Accept: a"]}
`
	want := strings.NewReplacer("pw-comment", "xxxxx", "pw-plain", "xxxxx", "pw-quoted", "xxxxx", "pw-url", "xxxxx", "pw-next", "xxxxx", "pw-flag", "xxxxx",
		"pw-env", "xxxxx", "Bearer pw-header", "xxxxx").Replace(text)
	read := func(text string) *File {
		f := &File{}
		if _, err := f.parse("x.yaml", []byte(text)); err != nil {
			t.Fatal(err)
		}
		return f
	}
	if diff := cmp.Diff(want, read(text).redactedSource()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	escaped := read(strings.Replace(text, "'pw-quoted'", `"pw\u0041escaped"`, 1)).redactedSource()
	if strings.Contains(escaped, "pw") || !strings.HasPrefix(escaped, "# The file has a secret at settings.token in a form") {
		t.Errorf("an escaped secret: %s", escaped)
	}
	if got := slices.Sorted(maps.Keys(read(text).redactions())); len(got) != 7 {
		t.Errorf("redactions of %v", got)
	}
}
