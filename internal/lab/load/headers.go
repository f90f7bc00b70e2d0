package load

import (
	"errors"
	"fmt"
	"strings"

	"spillway/internal/lab/target"
	"spillway/internal/yaml"
)

// headers returns the headers of the flags and of the file. Errors quote no value.
func (o *HTTP) headers(env func(string) (string, bool)) ([]target.Header, error) {
	var headers []target.Header
	for _, line := range o.Header {
		h, err := parseHeader(line, env)
		if err != nil {
			return nil, err
		}
		headers = append(headers, h)
	}
	if o.HeaderFile == "" {
		return headers, nil
	}
	text, err := target.ReadFile(o.HeaderFile)
	if err != nil {
		return nil, fmt.Errorf("--header-file: %w", err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if name, _, found := strings.Cut(line, ":"); !found || strings.ContainsAny(name, " \t") {
			return nil, fmt.Errorf("%s: line %d: write 'Name: value'", o.HeaderFile, number)
		}
		h, err := parseHeader(line, env)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", o.HeaderFile, number, err)
		}
		headers = append(headers, h)
	}
	return headers, nil
}

// parseHeader reads a header and replaces ${NAME} in its value. What a variable
// holds is sent as it is, also braces.
func parseHeader(line string, env func(string) (string, bool)) (target.Header, error) {
	h, err := target.ParseHeader(line)
	if err != nil {
		return h, err
	}
	broken := false
	h.Value, err = yaml.Expand(h.Value, func(name string) (string, bool) {
		value, set := env(name)
		broken = broken || strings.ContainsAny(value, "\r\n\x00")
		return strings.ReplaceAll(value, "{", "{{"), set
	})
	if err == nil && broken {
		err = errors.New("a variable contains a line end")
	}
	if err != nil {
		return h, fmt.Errorf("header %s: %w", h.Name, err)
	}
	return h, nil
}
