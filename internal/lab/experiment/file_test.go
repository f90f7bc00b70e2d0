package experiment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spillway/internal/yaml"
)

// engineSmall is a whole file; tests add to it and change it.
const engineSmall = `name: small
settings: {workers: 1}
services:
  web: {command: [web, "{{.setting.mode}}"], ports: [http]}
  front: {command: [front, "{{.service.web.addr.http}}"], ports: [http], after: [web]}
factors:
  mode:
    values:
      one: {settings: {mode: 1}}
      two: {settings: {mode: 2}}
  proxy:
    values:
      without: {settings: {entry: "{{.service.web.addr.http}}"}}
      with: {services: [front], settings: {entry: "{{.service.front.addr.http}}"}}
variants:
  base: {values: {mode: one, proxy: without}}
  second: {values: {mode: two}}
  proxied: {values: {proxy: with}}
load: {url: "http://{{.setting.entry}}/", duration: 2s}
levels:
  - {rate: 100}
  - {rate: 200, connections: 8}
`

func engineRead(t *testing.T, text string) *File {
	t.Helper()
	f, err := Read("small.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// enginePlan reads and plans a file beside which nothing is.
func enginePlan(text string) (*Plan, error) {
	f, err := Read("small.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	return f.Plan(".", Options{Seed: 1})
}

func TestReadDefaults(t *testing.T) {
	f := engineRead(t, engineSmall)
	if f.Baseline != "base" || f.variant("second").Baseline != "base" || f.Blocks != 10 || f.service("web").Stop.Signal != "TERM" {
		t.Errorf("defaults: %+v", f)
	}
	if f.Levels[0].Name != "rate-100" || f.Levels[1].Name != "rate-200-connections-8" {
		t.Errorf("levels are named %q and %q", f.Levels[0].Name, f.Levels[1].Name)
	}
	if facts := f.facts(f.variant("proxied")); strings.Join(facts.Services, " ") != "web front" || strings.Join(facts.Differs, " ") != "proxy" {
		t.Errorf("proxied: %+v", facts)
	}
}

// TestMistakes changes the small file in one place and wants that told, with its line.
func TestMistakes(t *testing.T) {
	for _, c := range []struct{ old, fresh, want string }{
		{"workers: 1", "workers: 1}\nsetings: {a: 1", "small.yaml:3:1: setings: unknown key; did you mean settings?"},
		{"name: small", "name: small\nname: again", "small.yaml:2:1: name: duplicate key, first in line 1"},
		{"name: small", "name: a/b", "small.yaml:1:7: name: must be a word"},
		{"name: small", "name: small\nblocks: many", "small.yaml:2:9: blocks: must be a whole number"},
		{"ports: [http]}\n", "ports: [http], ready: {timeout: 5}}\n", "services.web.ready.timeout: must be a duration"},
		{"ports: [http], after: [web]", "after: [db]", `small.yaml:5:66: services.front.after: "db" is not another service`},
		{"command: [web,", "after: [front], command: [web,", "wait for each other in a circle"},
		{"command: [web,", "stop: {signal: STOPIT}, command: [web,", "must be a signal's name"},
		{"command: [web,", "fill: [[seed]], command: [web,", "fill and keep need scope: experiment"},
		{"command: [front,", "scope: experiment, command: [front,", "a service of the factor proxy cannot have scope: experiment"},
		{"command: [web,", "files: {../x: y}, command: [web,", "must be a path inside the service's folder"},
		{"{rate: 100}", "{rate: 200, connections: 8}", "another level is also named rate-200-connections-8"},
		{"{rate: 100}", "{}", "give a name"},
		{"{rate: 100}", "{rate: '100,200'}", "one value, not a list"},
		{"duration: 2s", "duration: 2s, host: client", `"client" is no host of this file`},
		{"levels:", "peak: {start: 10}\nlevels:", "peak: needs an slo"},
		{"levels:", "watch: {processes: {app: [web, front]}}\nlevels:", "web and front run together in proxied"},
		{"levels:", "charts: [{metric: speed}]\nlevels:", `"speed" is no metric`},
		// One factor at a time.
		{"{values: {mode: two}}", "{values: {mode: two}, settings: {workers: 2}}", "what differs between variants is declared under factors"},
		{"{values: {mode: two}}", "{values: {mode: two, proxy: with}}", "differs from base in 2 factors (mode, proxy): change one at a time, name another baseline, or say factors: 2"},
		{"{values: {mode: two}}", "{values: {mode: two}, factors: 2}", "says 2, but it differs from base in 1 (mode)"},
		{"{values: {mode: two}}", "{values: {mode: one}}", "does not differ from base; for an A/A pair say aa: true"},
		{"{values: {mode: two}}", "{values: {proxy: with}}", "proxied: is the same as second"},
		{"{values: {mode: two}}", "{values: {mode: three}}", `"three" is no value of this factor`},
		{"{values: {mode: two}}", "{values: {speed: two}}", "variants.second.values.speed: is no factor"},
		{"{values: {mode: two}}", "{values: {mode: two}, baseline: second}", "circle"},
		{"{mode: one, proxy: without}", "{mode: one}", "neither it nor its baseline gives the factor proxy a value"},
		{"two: {settings: {mode: 2}}", "two: {settings: {mode: 1}}", "factors.mode.values.two: is the same as one"},
		{"two: {settings: {mode: 2}}", "two: {settings: {mode: 2, entry: x}}", "sets entry, which other values of this factor do not"},
		{"workers: 1", "mode: 1", "is also in settings: put what varies into its factor only"},
		{"{services: [front], ", "{services: [front], settings: {mode: 3}}\n      third: {", "already belongs to the factor mode"},
	} {
		if !strings.Contains(engineSmall, c.old) {
			t.Fatalf("%q is not in the file", c.old)
		}
		_, err := enginePlan(strings.Replace(engineSmall, c.old, c.fresh, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s -> %s\n got %v\nwant %s", c.old, c.fresh, err, c.want)
		}
	}
}

func TestTwoFactorsWhenSaid(t *testing.T) {
	both := strings.Replace(engineSmall, "{values: {mode: two}}", "{values: {mode: two, proxy: with}, factors: 2}", 1)
	if _, err := enginePlan(both); err != nil {
		t.Error(err)
	}
	chain := strings.Replace(engineSmall, "{values: {mode: two}}", "{values: {mode: two}, baseline: proxied}", 1)
	f := engineRead(t, chain)
	if facts := f.facts(f.variant("second")); facts.Values["proxy"] != "with" || strings.Join(facts.Differs, " ") != "mode" {
		t.Errorf("second behind proxied: %+v", facts)
	}
}

// isMistake reports whether err is a mistake in the experiment's file.
func isMistake(err error) bool {
	var one yaml.Error
	var many yaml.Errors
	return errors.As(err, &one) || errors.As(err, &many)
}

// TestTemplateMistakes wants unknown values told when the file is checked, with their place.
func TestTemplateMistakes(t *testing.T) {
	for _, c := range []struct{ old, fresh, want string }{
		{"{{.setting.mode}}", "{{.setting.mod}}", `small.yaml:4:24: services.web.command[1]: .setting.mod: there is no "mod" here`},
		{"{{.setting.mode}}", "{{.variant}}", `.variant: there is no "variant" here`},
		{"{{.setting.mode}}", "{{.setting.mode", "unclosed action"},
		{"{{.setting.mode}}", "{{.service.front.addr.http}}", `there is no "front" here`},
		{"[front, ", "[front, '{{.port.admin}}', ", `there is no "admin" here`},
		{"settings: {workers: 1}", "settings: {workers: '{{.setting.other}}', other: '{{.setting.workers}}'}", "in a circle"},
		{"http://{{.setting.entry}}/", "http://{{.address}}/", `small.yaml:19:13: load.url: .address: there is no "address" here`},
		{"duration: 2s", "duration: '{{.setting.workers}}'", `"1" is no duration`},
		{"command: [web, ", "scope: experiment, command: [web, ", `services.web.command[1]: .setting.mode: there is no "mode" here`},
		{"ports: [http]}\n", "ports: [http], files: {a: missing.conf}}\n", "missing.conf: no such file"},
	} {
		_, err := enginePlan(strings.Replace(engineSmall, c.old, c.fresh, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) || !isMistake(err) {
			t.Errorf("%s -> %s\n got %v\nwant %s", c.old, c.fresh, err, c.want)
		}
	}
}

// TestLoadMistakes wants the argument named that spillway load refuses.
func TestLoadMistakes(t *testing.T) {
	refuse := func(args []string) error {
		for _, a := range args {
			if a == "--rate=100" || strings.HasPrefix(a, "http://127.0.0.1:1/") {
				return errors.New("load: no\nsuch thing")
			}
		}
		return nil
	}
	for _, c := range []struct{ old, fresh, want string }{
		{"rate: 100", "rate: 100", "small.yaml:21:12: levels[0].rate: no such thing"},
		{"http://{{.setting.entry}}/", "http://127.0.0.1:1/", "small.yaml:19:13: load.url: no such thing"},
		{"rate: 100", "rate: 99", ""},
	} {
		_, err := engineRead(t, strings.Replace(engineSmall, c.old, c.fresh, 1)).Plan(".", Options{Seed: 1, CheckLoad: refuse})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !isMistake(err)) {
			t.Errorf("%s: %v, want %s", c.fresh, err, c.want)
		}
	}
}

// TestLoadMistakesHideSecrets: what spillway load refuses may quote a secret.
func TestLoadMistakesHideSecrets(t *testing.T) {
	t.Setenv("LAB_TOKEN", "s3cret value")
	quote := func(args []string) error { return fmt.Errorf("load: %q has a space", args[0]) }
	_, err := engineRead(t, strings.Replace(engineSmall, "entry}}/", "entry}}/?x=${LAB_TOKEN}", 1)).Plan(".", Options{Seed: 1, CheckLoad: quote})
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "/?x=xxxxx") {
		t.Error(err)
	}
}

func TestTemplateFilePlace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "web.conf")
	if err := os.WriteFile(path, []byte("listen {{.addr.http}}\nmode {{.setting.mode}}\nx {{.setting.gone}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := engineRead(t, strings.Replace(engineSmall, "ports: [http]}", "ports: [http], files: {etc/web.conf: web.conf}}", 1))
	_, err := f.Plan(dir, Options{Seed: 1})
	if want := path + `:3:13: .setting.gone: there is no "gone" here`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// TestDocumentedExample reads the example of docs/reference/experiments.md.
func TestDocumentedExample(t *testing.T) {
	text, err := os.ReadFile("testdata/hello-ladder.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read("hello-ladder.yaml", text); err != nil {
		t.Error(err)
	}
}

func FuzzReadExperiment(f *testing.F) {
	for _, src := range []string{
		engineSmall, "", "name: a", "{", "a:\n\t- b", "name: &x a\nb: *x", "services: {a: }", "services: {a: {command: [x]}}", "levels: [{rate: [1]}]",
		"variants: {a: {baseline: b}, b: {baseline: a}}\nbaseline: c", "factors: {f: {values: {a: , b: }}}", "hosts: {a: , b: {ports: 1-2, sysctl: {net.x.y: 1}}}",
		"quick: {peak: {start: -1}}\npeak:\n", "? {a: b}\n: c", "settings: {? : x}", "blocks: 99999999999999999999", "- a", "---\n---\n", "name: \"\\x00\"",
	} {
		f.Add(src)
	}
	line := regexp.MustCompile(`^f\.yaml:[1-9][0-9]*:[1-9][0-9]*: [^\n]+$`)
	f.Fuzz(func(t *testing.T, src string) {
		file, err := Read("f.yaml", []byte(src))
		if err == nil {
			if !strings.Contains(src, "printf") { // its width can ask for gigabytes
				_, _ = file.Plan("/nonexistent", Options{Seed: 1}) // must not panic
			}
			return
		}
		var mistakes yaml.Errors
		if !errors.As(err, &mistakes) || len(mistakes) == 0 {
			t.Fatalf("error of type %T: %v", err, err)
		}
		for _, m := range mistakes {
			if !line.MatchString(m.Error()) {
				t.Fatalf("not one line with its place: %q", m.Error())
			}
		}
	})
}
