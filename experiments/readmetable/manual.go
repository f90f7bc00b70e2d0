package main

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"spillway/internal/serve/config"
	"spillway/internal/yaml"
)

// manual returns the tables of docs/reference/configuration.md: one for each block, with the type,
// the default and the meaning of each key.
func manual() string {
	var b strings.Builder
	writeTable(&b, "", "The top level of the file.", reflect.ValueOf(config.Default()))
	return b.String()
}

// block is a struct below another one.
type block struct {
	path, doc string
	value     reflect.Value
}

// writeTable writes the table of one block, and those of the blocks in it.
func writeTable(b *strings.Builder, path, doc string, v reflect.Value) {
	if path != "" {
		fmt.Fprintf(b, "\n### %s\n\n", path)
	}
	var below []block
	var rows [][]string
	limits := false // some row has a last cell
	for i := range v.NumField() {
		field, tag := v.Field(i), v.Type().Field(i).Tag
		at := yaml.Join(path, tag.Get("yaml"))
		meaning := tag.Get("doc")
		switch preset, isList := elementPreset(field.Type()); {
		case field.Kind() == reflect.Struct:
			below = append(below, block{at, sentence(meaning), field})
			continue
		case isList:
			below = append(below, block{at + "[]", sentence(meaning), preset})
			continue
		}
		over := strings.NewReplacer("'spillway_", "`", "'", "`").Replace(tag.Get("over"))
		limits = limits || over != ""
		rows = append(rows, []string{"`" + tag.Get("yaml") + "`", values(field.Type(), tag), fallback(at, field), meaning, over})
	}
	heads := []string{"key", "values", "default", "meaning", "beyond it"}
	if !limits {
		heads = heads[:4]
	}
	fmt.Fprintf(b, "%s\n\n| %s |\n%s|\n", doc, strings.Join(heads, " | "), strings.Repeat("|---", len(heads)))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row[:len(heads)], " | "))
	}
	for _, one := range below {
		writeTable(b, one.path, one.doc, one.value)
	}
}

// elementPreset returns the defaults of a list of blocks; false if t is no such list.
func elementPreset(t reflect.Type) (reflect.Value, bool) {
	if t.Kind() != reflect.Slice {
		return reflect.Value{}, false
	}
	return config.Preset(t.Elem())
}

// sentence writes a doc tag as a sentence.
func sentence(doc string) string { return strings.ToUpper(doc[:1]) + doc[1:] + "." }

// values says which values a key takes.
func values(t reflect.Type, tag reflect.StructTag) string {
	if low, high, ok := strings.Cut(tag.Get("range"), ".."); ok {
		return low + " to " + high
	}
	if allowed, ok := tag.Lookup("enum"); ok {
		last := strings.LastIndexByte(allowed, ',')
		return strings.ReplaceAll(allowed[:last], ",", ", ") + " or " + allowed[last+1:]
	}
	switch t {
	case reflect.TypeFor[config.Secret]():
		return "secret"
	case reflect.TypeFor[config.Address]():
		return "address"
	case reflect.TypeFor[[]config.Secret]():
		return "secrets"
	case reflect.TypeFor[config.Keys]():
		return "column or columns"
	case reflect.TypeFor[config.Params](), reflect.TypeFor[config.Types]():
		return "names and types"
	case reflect.TypeFor[config.Statements]():
		return "names and statements"
	case reflect.TypeFor[config.Caps]():
		return "durations and counts"
	case reflect.TypeFor[config.Columns]():
		return "columns"
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[[]string]():
		return "texts"
	}
	return "text"
}

// fallback returns the default of a key.
func fallback(path string, v reflect.Value) string {
	text := ""
	switch x := v.Interface().(type) {
	case time.Duration:
		text = duration(x)
	case int, float64, bool:
		text = fmt.Sprint(x)
	case string:
		text = x
	}
	switch {
	case path == "pool.max":
		return "(cores x 2) + 1"
	case text == "":
		return ""
	}
	return "`" + text + "`"
}

// duration writes 5m0s as 5m and 1h0m0s as 1h.
func duration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
