package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"spillway/internal/yaml"
)

// Print writes the configuration as YAML with all defaults. Secrets are printed as
// Secret.String shows them. Read refuses hidden secrets; with them replaced, it returns the
// same configuration.
func (c Config) Print(w io.Writer) error {
	p := &printer{}
	p.block(reflect.ValueOf(c), "")
	if _, err := w.Write(p.out.Bytes()); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return nil
}

// Text returns a value of a configuration as Print writes it.
func Text(v reflect.Value) string {
	p := &printer{}
	p.value(v, "")
	return strings.TrimSpace(p.out.String())
}

type printer struct {
	out bytes.Buffer
}

// block writes the fields of a struct, each line after indent.
func (p *printer) block(v reflect.Value, indent string) {
	for i := range v.NumField() {
		fmt.Fprintf(&p.out, "%s%s:", indent, v.Type().Field(i).Tag.Get("yaml"))
		p.value(v.Field(i), indent)
	}
}

// value writes the value of a key.
func (p *printer) value(v reflect.Value, indent string) {
	columns, _ := v.Interface().(Columns)
	switch {
	case v.Type() == reflect.TypeFor[string]():
		p.text(v.String(), indent)
	case IsBlock(v.Type()):
		p.out.WriteByte('\n')
		p.block(v, indent+"  ")
	case v.Kind() == reflect.Slice && IsBlock(v.Type().Elem()):
		p.blocks(v, indent)
	case len(columns) > 0:
		p.out.WriteByte('\n')
		for i := range columns {
			fmt.Fprintf(&p.out, "%s  %s\n", indent, inline(v.Index(i)))
		}
	default:
		p.line(inline(v))
	}
}

// inline returns a value as it is written on one line.
func inline(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return shortDuration(x)
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64)
	case string:
		return scalar(x)
	case Literal:
		return string(quoteJSON(escape(x.Text)))
	case Literals:
		if x.isNull() {
			return "null"
		}
	case fmt.Stringer:
		return scalar(x.String())
	}
	switch v.Kind() {
	case reflect.Slice:
		texts := make([]string, v.Len())
		for i := range texts {
			texts[i] = inline(v.Index(i))
		}
		text := strings.Join(texts, ", ")
		if v.Type().Elem().Kind() == reflect.Struct && !v.Type().Elem().Implements(reflect.TypeFor[fmt.Stringer]()) {
			return "{" + text + "}"
		}
		return "[" + text + "]"
	case reflect.Struct:
		return entry(v)
	}
	return fmt.Sprint(v)
}

// entry returns NAME: VALUE, or NAME: {KEY: VALUE} if there is more than what the short form has.
func entry(v reflect.Value) string {
	var all []string
	value, isShort := "", true
	for i := 1; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			continue
		}
		text, tag := inline(v.Field(i)), v.Type().Field(i).Tag
		if tag.Get("short") == "" {
			isShort = false
		} else {
			value = text
		}
		all = append(all, tag.Get("yaml")+": "+text)
	}
	if !isShort {
		value = "{" + strings.Join(all, ", ") + "}"
	}
	return inline(v.Field(0)) + ": " + value
}

func (p *printer) line(text string) { p.out.WriteString(" " + text + "\n") }

// blocks writes a list of blocks.
func (p *printer) blocks(v reflect.Value, indent string) {
	if v.Len() == 0 {
		p.line("[]")
		return
	}
	p.out.WriteByte('\n')
	for i := range v.Len() {
		var feed printer
		feed.block(v.Index(i), indent+"    ")
		p.out.WriteString(indent + "  - " + strings.TrimLeft(feed.out.String(), " "))
	}
}

// blockLines matches texts that a YAML block scalar preserves: no line ends with a space,
// and the first does not start with one.
var blockLines = regexp.MustCompile(`^[!-~](?:[ -~]*[!-~])?(?:\n+[ -~]*[!-~])*$`)

// text writes a text of several lines, such as SQL, as a block scalar if that preserves it.
func (p *printer) text(text, indent string) {
	body, end := strings.CutSuffix(text, "\n")
	if !strings.Contains(body, "\n") || !blockLines.MatchString(body) {
		p.line(scalar(text))
		return
	}
	if end {
		p.line("|")
	} else {
		p.line("|-")
	}
	for _, line := range strings.Split(escape(body), "\n") {
		p.out.WriteString(strings.TrimRight(indent+"  "+line, " ") + "\n")
	}
}

var plain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9_./: -]*[A-Za-z0-9_/]$`)

// scalar writes a text on one line: without quotes if it reads back as the same text.
func scalar(text string) string {
	if plain.MatchString(text) && yaml.IsPlain(text) {
		return text
	}
	return string(quoteJSON(escape(text)))
}

// escape keeps Read from expanding ${NAME} in text.
func escape(text string) string { return strings.ReplaceAll(text, "${", "$${") }

// quoteJSON writes text as a JSON string, which is also valid YAML.
func quoteJSON(text string) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string into memory: no error is possible
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// shortDuration writes 5m0s as 5m and 1h0m0s as 1h.
func shortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
