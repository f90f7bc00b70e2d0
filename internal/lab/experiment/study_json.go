package experiment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// summaryMax bounds a summary that is read.
const summaryMax = 64 << 20

// ErrNotSummary says that a file is not the summary of a study.
var ErrNotSummary = errors.New("not the summary of a study")

// WriteSummary writes the study as JSON: one line for each element of a list, so that a change of it is small in a
// diff. The plan, the experiment's text and the timelines are left out.
func (s *Study) WriteSummary(w io.Writer) error {
	short := *s
	short.Manifest.Plan, short.Manifest.File = nil, ""
	var out bytes.Buffer
	separator := "{\n"
	v := reflect.ValueOf(short)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		fmt.Fprintf(&out, "%s%q: ", separator, name)
		separator = ",\n"
		if err := writeValue(&out, v.Field(i)); err != nil {
			return fmt.Errorf("write summary: %s: %w", name, err)
		}
	}
	out.WriteString("\n}\n")
	if _, err := out.WriteTo(w); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}

// writeValue writes a list line by line and anything else on one line.
func writeValue(out *bytes.Buffer, v reflect.Value) error {
	if v.Kind() != reflect.Slice {
		return writeLine(out, v.Interface())
	}
	out.WriteString("[")
	for i := range v.Len() {
		if i > 0 {
			out.WriteString(",")
		}
		out.WriteString("\n ")
		if err := writeLine(out, v.Index(i).Interface()); err != nil {
			return err
		}
	}
	out.WriteString("]")
	return nil
}

func writeLine(out *bytes.Buffer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false) // "p99<70ms" stays readable
	if err := encoder.Encode(v); err != nil {
		return err
	}
	out.Truncate(out.Len() - 1) // the newline of Encode
	return nil
}

// ReadSummary reads what WriteSummary wrote: a Study without timelines. Another file is ErrNotSummary.
func ReadSummary(r io.Reader) (*Study, error) {
	var s Study
	if err := json.NewDecoder(io.LimitReader(r, summaryMax)).Decode(&s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSummary, err)
	}
	if s.Format != StudyFormat {
		return nil, ErrNotSummary
	}
	return &s, checkVersion("summary", s.Version, StudyVersion)
}

// checkVersion refuses another major version.
func checkVersion(what, got, ours string) error {
	major, _, _ := strings.Cut(got, ".")
	want, _, _ := strings.Cut(ours, ".")
	if major != want {
		return fmt.Errorf("%s is of version %q, this program reads %s.x: use the release that wrote it", what, got, want)
	}
	return nil
}
