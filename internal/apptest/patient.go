package apptest

import (
	"fmt"

	"github.com/goccy/go-yaml"
)

// Patient returns the configuration with timeouts that a slow machine does not reach, where it
// sets none. A test whose requests must all succeed needs them: the defaults are for users who
// wait.
func Patient(text string) string {
	var config map[string]any
	if err := yaml.Unmarshal([]byte(text), &config); err != nil || config == nil {
		return text // a test of a mistake
	}
	set := func(block any, values map[string]string) {
		settings, _ := block.(map[string]any)
		for key, value := range values {
			if _, has := settings[key]; !has && settings != nil {
				settings[key] = value
			}
		}
	}
	for name, values := range map[string]map[string]string{
		"pool": {"connect_timeout": "1m", "acquire_timeout": "1m", "statement_timeout": "1m"},
		"http": {"read_timeout": "5m", "write_timeout": "5m", "idle_timeout": "1h", "drain_timeout": "1m"},
	} {
		if config[name] == nil {
			config[name] = map[string]any{}
		}
		set(config[name], values)
	}
	for name, values := range map[string]map[string]string{
		"feeds": {"timeout": "1m"}, "queries": {"timeout": "1m"},
		"streams": {"timeout": "2m", "wait_max": "1m", "commit_timeout": "1m"},
	} {
		parts, _ := config[name].([]any)
		for _, part := range parts {
			set(part, values)
		}
	}
	set(config["popups"], map[string]string{"timeout": "1m", "attributes_timeout": "1m"})
	patient, err := yaml.Marshal(config)
	if err != nil {
		panic(fmt.Sprintf("%v: %s", err, text))
	}
	return string(patient)
}
