package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"spillway/internal/serve/param"
	"spillway/internal/yaml"
)

// Load reads the file at path as Read does, with the environment and the files of the process,
// over defaults: those with which the process has started, because the number of cores may have
// changed since. If partial, a variable that is not set and a file of a secret that cannot be
// read are no mistakes. Such a value stays as written, or at its default if it is no text, and
// breaks no rule.
func Load(path string, defaults Config, partial bool, checks ...Check) (Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return decode(path, src, defaults, yaml.Options{Env: os.LookupEnv, ReadFile: os.ReadFile, Partial: partial}, checks)
}

// Read reads a configuration from YAML. name stands for the file in errors; env looks up
// an environment variable for ${NAME}; readFile reads the file of a secret written as
// file:PATH.
//
// The error is yaml.Errors with every mistake found: those of the file's form, those of
// Validate, and those of the checks. It quotes no secret.
func Read(name string, src []byte, env func(string) (string, bool), readFile func(string) ([]byte, error), checks ...Check) (Config,
	error,
) {
	return decode(name, src, Default(), yaml.Options{Env: env, ReadFile: readFile}, checks)
}

// decode reads a configuration over its defaults.
func decode(name string, src []byte, c Config, options yaml.Options, checks []Check) (Config, error) {
	options.Empty, options.Preset = "; for the built-in configuration give no file", Preset
	document, err := yaml.Parse(name, src, options)
	if err != nil {
		return Config{}, err
	}
	document.Decode(&c)
	if found, ok := errors.AsType[Mistakes](c.Validate(checks...)); ok {
		for _, m := range found {
			document.Reject(m.Path, m.Rule, m.Value)
		}
	}
	if err := document.Err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// DecodeYAML reads "name", "name asc", or a list of these.
func (k *Keys) DecodeYAML(n yaml.Node) {
	*k = nil
	for _, item := range n.Items() {
		var text string
		if !item.Decode(&text) {
			continue
		}
		words := strings.Fields(text)
		column := KeyColumn{Ascending: len(words) == 2 && strings.EqualFold(words[1], "asc")}
		if len(words) != 1 && (len(words) != 2 || !column.Ascending && !strings.EqualFold(words[1], "desc")) {
			item.Reject("must be a column's name, alone or followed by asc or desc", text)
			continue
		}
		column.Name = words[0]
		*k = append(*k, column)
	}
}

// DecodeYAML reads a mapping of durations to counts.
func (c *Caps) DecodeYAML(n yaml.Node) {
	*c = nil
	for _, pair := range n.Pairs() {
		var one Cap
		if !pair.Value.Decode(&one.Shows) {
			continue
		}
		var err error
		if one.Within, err = time.ParseDuration(pair.Key); err != nil {
			pair.Value.Fail(fmt.Sprintf("%.100q must be a duration with its unit, as in {24h: 1}", pair.Key))
			continue
		}
		*c = append(*c, one)
	}
}

// DecodeNull takes null as the value.
func (l *Literals) DecodeNull() { *l = Literals{param.Absent} }

// DecodeYAML reads one value or a list of values.
func (l *Literals) DecodeYAML(n yaml.Node) {
	*l = Literals{}
	for _, item := range n.Items() {
		if text, ok := item.Literal(); ok {
			*l = append(*l, text)
		}
	}
}

// DecodeYAML reads a number, a text, true or false.
func (l *Literal) DecodeYAML(n yaml.Node) { l.Text, l.Given = n.Literal() }
