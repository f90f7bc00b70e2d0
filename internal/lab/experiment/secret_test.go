package experiment

import (
	"os"
	"path/filepath"
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
	text := strings.NewReplacer("{workers: 1}", "{workers: 1, db_password: file:pw, url: 'pg://u:${LAB_SECRET}@h', plain: '$${X}'}",
		`command: [web, "{{.setting.mode}}"]`, `command: [web, "--x={{.setting.db_password}}", "{{.setting.url}}", "{{.setting.plain}}", "${HOME}"], env: {A_PASSWORD: "${LAB_SECRET}"}`).Replace(engineSmall)
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
	filled := append(p.command, p.env...)
	want := []string{"web", "--x=file-secret", "pg://u:{{.env}} secret@h", "${X}", "${HOME}", "A_PASSWORD={{.env}} secret"}
	if diff := cmp.Diff(want, data.layout.secrets.expandAll(filled)); diff != "" {
		t.Errorf("started (-want +got):\n%s", diff)
	}
	want = []string{"web", "--x=file:" + filepath.Join(dir, "pw"), "pg://u:${LAB_SECRET}@h", "${X}", "${HOME}", "A_PASSWORD=${LAB_SECRET}"}
	if diff := cmp.Diff(want, unmarkAll(filled)); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"{{.env}} secret", "file-secret"}, data.layout.secrets.hidden()); diff != "" {
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

// TestLiteralSecrets wants the secrets that stand in a file refused, with their line.
func TestLiteralSecrets(t *testing.T) {
	t.Parallel()
	at := func(fresh string) error {
		_, err := Read("small.yaml", []byte(strings.Replace(engineSmall, "command: [web,", fresh, 1)))
		return err
	}
	for _, c := range [][2]string{
		{"command: [web, --password=x-1,", "services.web.command[1]"},
		{"command: [web, --password, x-1,", "services.web.command[2]"},
		{"command: [env, PGPASSWORD=x-1, web,", "services.web.command[1]"},
		{"prepare: [[seed, 'mysql://u:x-1@h/d']], command: [web,", "services.web.prepare[0][1]"},
		{"env: {PGPASSWORD: x-1}, command: [web,", "services.web.env.PGPASSWORD"},
		{"env: {client_secret: x-1}, command: [web,", "services.web.env.client_secret"},
		{"env: {DSN: 'postgres://{{.user}}:x-1@h/d?x=1'}, command: [web,", "services.web.env.DSN"},
		{"command: [curl, -H, 'Authorization: Bearer x-1',", "services.web.command[2]"},
		{"command: [web, --api-key=x-1,", "services.web.command[1]"},
		{"command: [env, DEPLOY_TOKEN=x-1, web,", "services.web.command[1]"},
		{"command: [web, 'http://h/?user={{.user}}&api_key=x-1',", "services.web.command[1]"},
		{"command: [web, '{\"password\": \"x-1\"}',", "services.web.command[1]"},
		{"env: {DB: 'host=db password=x-1'}, command: [web,", "services.web.env.DB"},
		{"env: {DB: 'u:x-1@tcp(h:3306)/db'}, command: [web,", "services.web.env.DB"},
		{"env: {DB: 'postgres://u:${PW}@h/d?sslpassword=x-1'}, command: [web,", "services.web.env.DB"},
	} {
		err := at(c[0])
		if err == nil || !strings.HasPrefix(err.Error(), "small.yaml:4:") || !strings.Contains(err.Error(), c[1]+": has a secret; write ${NAME}") ||
			strings.Contains(err.Error(), "x-1") {
			t.Errorf("%s: %v, want %s", c[0], err, c[1])
		}
	}
	for _, fresh := range []string{
		"env: {PGPASSWORD: '${PW}', A_PASSWORD: file:pw, DSN: 'postgres://u:${PW}@h/d'}, command: [web, '--password={{.setting.workers}}',",
		"command: [web, --password, '{{.setting.workers}}', --password-file=pw, 'http://{{.address}}:80/a@b', 'http://h:80/', password,",
		"env: {TOKEN_URL: 'http://h/token', PASSWORDS: none}, command: [web,",
		"command: [web, 'http://h/?token=none&password={file:t.csv:password}&limit=2', '{\"password\": \"${PW}\"}', 'Cookie: session=none', 'tokens=7', --bypass=x,",
	} {
		if err := at(fresh); err != nil {
			t.Errorf("%s: %v", fresh, err)
		}
	}
}
