package yaml

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

type service struct {
	Name    string            `yaml:",key"`
	Command []string          `yaml:"command"`
	Env     map[string]string `yaml:"env"`
	Grace   time.Duration     `yaml:"grace"`
}

func (service) UnknownKeyHint() string { return "see the manual" }

type limits struct {
	Rate float64 `yaml:"rate"`
	Max  int     `yaml:"max"`
}

type file struct {
	Title    string    `yaml:"title"`
	On       bool      `yaml:"on"`
	Services []service `yaml:"services"`
	Quick    *limits   `yaml:"quick"`
	limits   `yaml:",inline"`
}

func decode(text string, o Options) (file, error) {
	document, err := Parse("f.yaml", []byte(text), o)
	if err != nil {
		return file{}, err
	}
	f := file{}
	f.Max = 7 // a default
	document.Decode(&f)
	return f, document.Err()
}

func TestDecode(t *testing.T) {
	got, err := decode("title: 1.50\non: true\nrate: 3\nservices:\n  web: {command: [a, 010], env: {b: true}, grace: 1m}\n  db:\nquick: {max: '5'}\n", Options{Loose: true})
	if err != nil {
		t.Fatal(err)
	}
	want := file{
		Title: "1.50", On: true, Quick: &limits{Max: 5}, limits: limits{Rate: 3, Max: 7},
		Services: []service{{Name: "web", Command: []string{"a", "010"}, Env: map[string]string{"b": "true"}, Grace: time.Minute}, {Name: "db"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(file{})); diff != "" {
		t.Error(diff)
	}
}

func TestKeepEmpty(t *testing.T) {
	for _, keep := range []bool{false, true} {
		f, err := decode("services: {a: {command: []}}\n", Options{KeepEmpty: keep})
		if err != nil || (f.Services[0].Command != nil) != keep {
			t.Errorf("keep %v: %#v, %v", keep, f.Services, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"titel: x", "f.yaml:1:1: titel: unknown key; did you mean title?"},
		{"services: {web: {zzzzzzz: 1}}", "f.yaml:1:18: services.web.zzzzzzz: unknown key; the keys here are command, env, grace; see the manual"},
		{"services: {web: {command: [a, {}]}}", "f.yaml:1:31: services.web.command[1]: must be one value, not a block of keys and values"},
		{"max: -1", `f.yaml:1:6: max: must be a whole number, not "-1"`},
		{"services: {a: {grace: -1s}}", `f.yaml:1:23: services.a.grace: must be a duration with its unit, as 100ms, 2s or 5m, not "-1s"`},
		{"quick: {rate: .inf}", `f.yaml:1:15: quick.rate: must be a number, not ".inf"`},
		{"title: 5", "f.yaml:1:8: title: must be text, not a number; put it in quotes"},
		{"services: {a: {}, a: {}}", "f.yaml:1:19: services.a: duplicate key, first in line 1"},
		{"services: {\"a\\nb\": {command: x}}", "f.yaml:1:30: ?: must be a list, not text"},
		{"", "f.yaml:1:1: the file is empty"},
	} {
		_, err := decode(c.text, Options{Unsigned: true})
		if err == nil || err.Error() != c.want {
			t.Errorf("%q\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

// TestReject finds the place of a rule that the caller checks, and skips what was misread.
func TestReject(t *testing.T) {
	env := func(string) (string, bool) { return "hidden", true }
	document, err := Parse("f.yaml", []byte("title: ${T}\nmax: many\nservices: {a: {command: [x]}}\n"), Options{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	var f file
	document.Decode(&f)
	document.Reject("title", "must be short", f.Title)
	document.Reject("max", "must be positive", "0")
	document.Reject("services.a.command[3]", "must be there", "")
	want := "f.yaml:1:8: title: must be short, not \"${T}\"\nf.yaml:2:6: max: must be a whole number, not \"many\"\nf.yaml:3:25: services.a.command[3]: must be there"
	if err := document.Err(); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// FuzzDecode: any bytes give a value or errors of one line each, without a panic and
// without a variable's value.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"title: x\nservices: {web: {command: [a], env: {b: c}, grace: 1s}}\nquick: {rate: 1}", "services: {a: }", "title: ${X}", "title: file:x",
		"a: &x [1]\nb: *x\n<<: *x", "? {a: b}\n: c", "!!binary aaaa", "%YAML 1.2\n---\non: a", "---\n...\n---\n", "{", "[", "'", "\"\\x", "|", "- -", "max: >9\n  a",
	} {
		f.Add(text, true)
	}
	const secret = "Zq7-hidden-9Xz"
	line := regexp.MustCompile(`^f\.yaml:[1-9][0-9]*:[1-9][0-9]*: [^\n]+$`)
	f.Fuzz(func(t *testing.T, text string, loose bool) {
		o := Options{
			Env:      func(string) (string, bool) { return secret, true },
			ReadFile: func(string) ([]byte, error) { return nil, os.ErrNotExist },
			Loose:    loose, Unsigned: loose, KeepEmpty: loose,
		}
		got, err := decode(text, o)
		if err == nil {
			again, err := decode(text, o)
			if diff := cmp.Diff(got, again, cmp.AllowUnexported(file{}), cmpopts.EquateNaNs()); diff != "" || err != nil {
				t.Fatalf("%q reads differently again: %v %s", text, err, diff)
			}
			return
		}
		var errs Errors
		if !errors.As(err, &errs) || len(errs) == 0 {
			t.Fatalf("error of type %T", err)
		}
		for _, e := range errs {
			if !line.MatchString(e.Error()) {
				t.Fatalf("%q: not one line with its place: %q", text, e.Error())
			}
		}
		if strings.Contains(err.Error(), secret) && !strings.Contains(text, secret) {
			t.Fatalf("%q: shows a secret: %v", text, err)
		}
	})
}
