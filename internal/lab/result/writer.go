package result

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// A writer writes records: the header; for each step its step record, a slice every second and its total; then the end. Watches and
// samples may be anywhere in between. Each record is one line and one write, so that records survive the death of the process. The
// order is checked by Read only. A nil writer writes nothing. It is not safe for concurrent use.
type writer struct {
	out  io.Writer
	gzip *gzip.Writer // nil if not compressed
	file *os.File
}

// create creates or truncates the file at path. A file with a name that ends in ".gz" is compressed.
func create(path string) (*writer, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create result file: %w", err)
	}
	w := &writer{out: file, file: file}
	if strings.HasSuffix(path, ".gz") {
		w.gzip = gzip.NewWriter(file)
		w.out = w.gzip
	}
	return w, nil
}

// WriteFile writes a whole run to the file at path, compressed if its name ends in ".gz".
func WriteFile(path string, run *Run) error {
	w, err := create(path)
	if err != nil {
		return err
	}
	return errors.Join(w.write(run.records()...), w.close())
}

// preamble is the records before the first step.
func (r *Run) preamble() []record {
	header := r.Header
	header.Format, header.Version = Format, fmt.Sprintf("%d.%d", VersionMajor, VersionMinor)
	all := []record{{Kind: kindHeader, Header: &header}}
	for i := range r.Watches {
		all = append(all, record{Kind: kindWatch, Watch: &r.Watches[i]})
	}
	return all
}

// records are those of a whole run.
func (r *Run) records() []record {
	all := r.preamble()
	for i := range r.Steps {
		step := &r.Steps[i]
		all = append(all, record{Kind: kindStep, Step: &step.Step})
		for k := range step.Slices {
			all = append(all, record{Kind: kindSlice, Slice: &step.Slices[k]})
		}
		all = append(all, record{Kind: kindTotal, Total: &step.Total})
	}
	for i := range r.Samples {
		all = append(all, record{Kind: kindSample, Sample: &r.Samples[i]})
	}
	if r.CutOff == "" {
		all = append(all, record{Kind: kindEnd, End: &r.End})
	}
	return all
}

// close closes the file.
func (w *writer) close() error {
	if w == nil {
		return nil
	}
	var err error
	if w.gzip != nil {
		err = w.gzip.Close()
	}
	if err = errors.Join(err, w.file.Close()); err != nil {
		return fmt.Errorf("close result file: %w", err)
	}
	return nil
}

// write writes records. NaN and infinities of samples are left out.
func (w *writer) write(records ...record) error {
	if w == nil {
		return nil
	}
	for _, r := range records {
		if r.Sample != nil {
			r.Sample = r.Sample.finite()
		}
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false) // keep "p99<70ms" readable
		err := encoder.Encode(r)
		if err == nil {
			_, err = w.out.Write(line.Bytes())
		}
		if err == nil && w.gzip != nil {
			err = w.gzip.Flush()
		}
		if err != nil {
			return fmt.Errorf("write %s record: %w", r.Kind, err)
		}
	}
	return nil
}

// Kinds of records.
const (
	kindHeader = "header"
	kindStep   = "step"
	kindSlice  = "slice"
	kindTotal  = "total"
	kindEnd    = "end"
	kindWatch  = "watch"
	kindSample = "sample"
)

// A record is one line of a file: {"record":"slice","slice":{…}}.
type record struct {
	Kind   string  `json:"record"`
	Header *Header `json:"header,omitempty"`
	Step   *Step   `json:"step,omitempty"`
	Slice  *Slice  `json:"slice,omitempty"`
	Total  *Total  `json:"total,omitempty"`
	End    *End    `json:"end,omitempty"`
	Watch  *Watch  `json:"watch,omitempty"`
	Sample *Sample `json:"sample,omitempty"`
}
