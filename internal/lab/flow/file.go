package flow

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"spillway/internal/lab/target"
	"spillway/internal/yaml"
)

// file is a flow as written.
type file struct {
	Cookies   string     `yaml:"cookies"`    // iteration (default), user or none
	Think     string     `yaml:"think"`      // of the steps that have none
	OnFailure string     `yaml:"on_failure"` // of the steps that have none
	Headers   fields     `yaml:"headers"`    // of every step
	Data      []dataSpec `yaml:"data"`
	Values    fields     `yaml:"values"`
	Steps     []stepSpec `yaml:"steps"`
}

type dataSpec struct {
	Name string `yaml:",key"`
	File string `yaml:"file"`
	Rows string `yaml:"rows"` // in_order (default), random or once
}

type stepSpec struct {
	Name      string        `yaml:"name"`
	Method    string        `yaml:"method"`
	Path      string        `yaml:"path"`
	Headers   fields        `yaml:"headers"`
	Body      *string       `yaml:"body"`
	BodyFile  string        `yaml:"body_file"`
	JSON      *tree         `yaml:"json"`
	Form      fields        `yaml:"form"`
	Checks    []string      `yaml:"checks"`
	Extract   []extractSpec `yaml:"extract"`
	Think     string        `yaml:"think"`
	OnFailure string        `yaml:"on_failure"`
}

type extractSpec struct {
	Name   string `yaml:",key"`
	JSON   string `yaml:"json"`
	Header string `yaml:"header"`
	Regex  string `yaml:"regex"`
	Pick   string `yaml:"pick"` // first (default) or random
}

// fields are names and texts in the file's order.
type fields []field

type field struct{ path, name, text string }

// DecodeYAML implements yaml.Decoder.
func (f *fields) DecodeYAML(n yaml.Node) {
	for _, pair := range n.Pairs() {
		one := field{path: pair.Value.Path(), name: pair.Key}
		if pair.Value.Decode(&one.text) {
			*f = append(*f, one)
		}
	}
}

// tree is a JSON value whose texts are templates.
type tree struct {
	path  string
	kind  yaml.Kind
	text  string // of a scalar
	keys  []string
	items []tree
}

// DecodeYAML implements yaml.Decoder.
func (t *tree) DecodeYAML(n yaml.Node) {
	t.path, t.kind = n.Path(), n.Kind()
	switch t.kind {
	case yaml.Mapping:
		for _, pair := range n.Pairs() {
			t.add(pair.Key, pair.Value)
		}
	case yaml.List:
		for _, item := range n.Items() {
			t.add("", item)
		}
	case yaml.Null:
		t.text = "null"
	case yaml.Text:
		n.Decode(&t.text)
	case yaml.Number, yaml.Bool:
		t.text, _ = n.Literal()
	default:
		n.Fail("has no form in JSON; write it as text")
	}
}

func (t *tree) add(key string, n yaml.Node) {
	var item tree
	item.DecodeYAML(n)
	t.keys, t.items = append(t.keys, key), append(t.items, item)
}

// Read reads the flow at path. Files that it names are relative to it, and ${NAME} is an environment variable. The error has
// a line per mistake.
func Read(path string) (*Flow, error) {
	source, err := target.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read flow: %w", err)
	}
	return parse(path, source, os.LookupEnv)
}

func parse(name string, source []byte, env func(string) (string, bool)) (*Flow, error) {
	document, err := yaml.Parse(name, source, yaml.Options{
		Loose: true, Unsigned: true, Empty: "; write the steps of a user",
		Env: func(name string) (string, bool) {
			value, set := env(name)
			return strings.ReplaceAll(value, "{", "{{"), set // literal in a template
		},
	})
	if err != nil {
		return nil, err
	}
	var spec file
	document.Decode(&spec)
	if err := document.Err(); err != nil {
		return nil, err
	}
	b := newBuilder(document, filepath.Dir(name))
	b.build(&spec)
	if err := document.Err(); err != nil {
		return nil, err
	}
	return b.flow, nil
}

// parseThink reads 500ms, 1s..3s or exponential(2s); "" is no pause.
func parseThink(s string) (Think, bool) {
	if s == "" {
		return Think{}, true
	}
	if inner, found := strings.CutPrefix(s, "exponential("); found {
		mean, err := time.ParseDuration(strings.TrimSuffix(inner, ")"))
		return Think{mean: mean}, err == nil && mean > 0 && strings.HasSuffix(inner, ")")
	}
	from, to, isRange := strings.Cut(s, "..")
	if !isRange {
		to = from
	}
	low, errLow := time.ParseDuration(from)
	high, errHigh := time.ParseDuration(to)
	return Think{low: low, high: high}, errLow == nil && errHigh == nil && low >= 0 && low <= high
}

// oneOf returns the position of value in list; the first is the default.
func oneOf(value string, list ...string) (int, bool) {
	i := slices.Index(list, cmp.Or(value, list[0]))
	return max(i, 0), i >= 0
}
