package config

import (
	"fmt"
	"reflect"
	"runtime"
	"time"
)

// Default returns the default configuration, without feeds. Only Pool.Max depends on the
// machine: (cores x 2) + 1, at most 17.
func Default() Config {
	c := Defaults[Config]()
	c.Pool.Max = 2*runtime.GOMAXPROCS(0) + 1
	return c
}

// Defaults returns a block of the configuration with the defaults of its keys.
func Defaults[Block any]() Block {
	block, _ := Preset(reflect.TypeFor[Block]())
	return block.Interface().(Block)
}

// IsBlock reports whether a type is that of a block of keys.
func IsBlock(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	name := t.Field(0).Tag.Get("yaml")
	return name != "" && name != ",key"
}

// Preset is Defaults for the type of a block; false if t is no such type.
func Preset(t reflect.Type) (reflect.Value, bool) {
	if !IsBlock(t) {
		return reflect.Value{}, false
	}
	v := reflect.New(t).Elem()
	for i := range t.NumField() {
		if block, ok := Preset(t.Field(i).Type); ok {
			v.Field(i).Set(block)
		}
		if text, ok := t.Field(i).Tag.Lookup("default"); ok {
			setDefault(v.Field(i), text)
		}
	}
	return v, true
}

// setDefault sets a duration, a number, a bool or a word.
func setDefault(v reflect.Value, text string) {
	var err error
	if duration, ok := v.Addr().Interface().(*time.Duration); ok {
		*duration, err = time.ParseDuration(text)
	} else {
		_, err = fmt.Sscan(text, v.Addr().Interface())
	}
	if err != nil {
		panic("BUG: the default " + text + ": " + err.Error())
	}
}
