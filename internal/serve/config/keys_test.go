package config

import (
	"reflect"
	"testing"

	"spillway/internal/yaml"
)

// eachKey calls yield for each key of the configuration.
func eachKey(yield func(path string, v reflect.Value, tag reflect.StructTag)) {
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			field, tag := v.Field(i), v.Type().Field(i).Tag
			at := yaml.Join(path, tag.Get("yaml"))
			yield(at, field, tag)
			if field.Kind() == reflect.Struct {
				walk(at, field)
			} else if field.Kind() != reflect.Slice {
				continue
			} else if block, ok := Preset(field.Type().Elem()); ok {
				walk(at+"[]", block)
			}
		}
	}
	walk("", reflect.ValueOf(Default()))
}

// Each key has a meaning. Numbers and durations also say what happens beyond the limit.
func TestKeysAreDescribed(t *testing.T) {
	t.Parallel()
	eachKey(func(path string, _ reflect.Value, tag reflect.StructTag) {
		if _, bounded := tag.Lookup("range"); bounded != (tag.Get("over") != "") {
			t.Errorf("%s: bounded %v, and beyond it %q", path, bounded, tag.Get("over"))
		}
		if tag.Get("doc") == "" {
			t.Errorf("%s has no meaning", path)
		}
	})
}
