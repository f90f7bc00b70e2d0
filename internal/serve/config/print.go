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
	switch x := v.Interface().(type) {
	case []string:
		p.line("[" + join(x, scalar) + "]")
	case []Secret:
		p.line("[" + join(x, func(s Secret) string { return scalar(s.String()) }) + "]")
	case Keys:
		p.line("[" + join(x, func(k KeyColumn) string { return scalar(k.String()) }) + "]")
	case Types:
		p.line("{" + join(x, func(one Typed) string { return scalar(one.Name) + ": " + scalar(one.Type) }) + "}")
	case Statements:
		p.line("{" + join(x, func(one Statement) string { return scalar(one.Name) + ": " + string(quoteJSON(escape(one.SQL))) }) + "}")
	case Caps:
		p.line("{" + join(x, Cap.String) + "}")
	case Params:
		p.line("{" + join(x, Param.String) + "}")
	case Columns:
		p.columns(x, indent)
	case Secret:
		p.line(scalar(x.String()))
	case Address:
		p.line(scalar(x.String()))
	case time.Duration:
		p.line(shortDuration(x))
	case string:
		p.text(x, indent)
	case float64:
		p.line(strconv.FormatFloat(x, 'f', -1, 64))
	default:
		if v.Kind() == reflect.Struct {
			p.out.WriteByte('\n')
			p.block(v, indent+"  ")
			return
		}
		if v.Kind() == reflect.Slice {
			p.blocks(v, indent)
			return
		}
		p.line(fmt.Sprint(x))
	}
}

// join writes values one after the other.
func join[T any](values []T, text func(T) string) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = text(v)
	}
	return strings.Join(texts, ", ")
}

// columns writes one line per column of a stream.
func (p *printer) columns(columns Columns, indent string) {
	if len(columns) == 0 {
		p.line("{}")
		return
	}
	p.out.WriteByte('\n')
	for _, c := range columns {
		text := "type: " + scalar(c.Type)
		if c.Required {
			text += ", required: true"
		}
		for i, l := range []Literal{c.Default, c.Min, c.Max} {
			if l.Given {
				text += ", " + []string{"default", "min", "max"}[i] + ": " + string(quoteJSON(escape(l.Text)))
			}
		}
		if c.MaxLength != 0 {
			text += fmt.Sprintf(", max_length: %d", c.MaxLength)
		}
		if c.Claim != "" {
			text += ", claim: " + scalar(c.Claim)
		}
		if c.Format != "" {
			text += ", format: " + scalar(c.Format)
		}
		if c.Round {
			text += ", round: true"
		}
		fmt.Fprintf(&p.out, "%s  %s: {%s}\n", indent, scalar(c.Name), text)
	}
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
