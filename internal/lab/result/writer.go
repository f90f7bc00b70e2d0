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

// A Writer writes the record stream: WriteHeader once; for each step WriteStep, WriteSlice every second and WriteTotal;
// then WriteEnd and Close. WriteWatch and WriteSample may be called anywhere in between. Each record is one line and one
// write, so that records survive the death of the process. The order is checked by Read only. A Writer is not safe for
// concurrent use.
type Writer struct {
	out  io.Writer
	gzip *gzip.Writer // nil if not compressed
	file *os.File
}

// Create creates or truncates the file at path. A file with a name that ends in ".gz" is compressed.
func Create(path string) (*Writer, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create result file: %w", err)
	}
	w := &Writer{out: file, file: file}
	if strings.HasSuffix(path, ".gz") {
		w.gzip = gzip.NewWriter(file)
		w.out = w.gzip
	}
	return w, nil
}

// WriteHeader writes the first record. It sets Format and Version.
func (w *Writer) WriteHeader(h Header) error {
	h.Format, h.Version = Format, fmt.Sprintf("%d.%d", VersionMajor, VersionMinor)
	return w.write(record{Kind: KindHeader, Header: &h})
}

// WriteStep begins a step.
func (w *Writer) WriteStep(s Step) error { return w.write(record{Kind: KindStep, Step: &s}) }

// WriteSlice writes one second of the current step.
func (w *Writer) WriteSlice(s *Slice) error { return w.write(record{Kind: KindSlice, Slice: s}) }

// WriteWatch describes a watched host. It precedes the samples of the host.
func (w *Writer) WriteWatch(watch Watch) error {
	return w.write(record{Kind: KindWatch, Watch: &watch})
}

// WriteSample writes a reading. NaN and infinities are left out.
func (w *Writer) WriteSample(s *Sample) error {
	return w.write(record{Kind: KindSample, Sample: s.finite()})
}

// WriteTotal ends a step.
func (w *Writer) WriteTotal(t *Total) error { return w.write(record{Kind: KindTotal, Total: t}) }

// WriteEnd writes the last record.
func (w *Writer) WriteEnd(e End) error { return w.write(record{Kind: KindEnd, End: &e}) }

// WriteFile writes a whole run to the file at path, as Create.
func WriteFile(path string, run *Run) error {
	w, err := Create(path)
	if err != nil {
		return err
	}
	return errors.Join(w.WriteRun(run), w.Close())
}

// WriteRun writes a whole run.
func (w *Writer) WriteRun(run *Run) error {
	if err := w.WriteHeader(run.Header); err != nil {
		return err
	}
	for i := range run.Watches {
		if err := w.WriteWatch(run.Watches[i]); err != nil {
			return err
		}
	}
	for i := range run.Steps {
		if err := w.writeStepRun(&run.Steps[i]); err != nil {
			return err
		}
	}
	for i := range run.Samples {
		if err := w.WriteSample(&run.Samples[i]); err != nil {
			return err
		}
	}
	if run.CutOff != "" {
		return nil
	}
	return w.WriteEnd(run.End)
}

func (w *Writer) writeStepRun(step *StepRun) error {
	if err := w.WriteStep(step.Step); err != nil {
		return err
	}
	for i := range step.Slices {
		if err := w.WriteSlice(&step.Slices[i]); err != nil {
			return err
		}
	}
	return w.WriteTotal(&step.Total)
}

// Close closes the file.
func (w *Writer) Close() error {
	if w.gzip != nil {
		if err := w.gzip.Close(); err != nil {
			return fmt.Errorf("close result file: %w", err)
		}
	}
	if err := w.file.Close(); err != nil {
		return fmt.Errorf("close result file: %w", err)
	}
	return nil
}

func (w *Writer) write(r record) error {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false) // keep "p99<70ms" readable
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write %s record: %w", r.Kind, err)
	}
	if _, err := w.out.Write(line.Bytes()); err != nil {
		return fmt.Errorf("write %s record: %w", r.Kind, err)
	}
	if w.gzip == nil {
		return nil
	}
	if err := w.gzip.Flush(); err != nil {
		return fmt.Errorf("write %s record: %w", r.Kind, err)
	}
	return nil
}

// Kinds of records.
const (
	KindHeader = "header"
	KindStep   = "step"
	KindSlice  = "slice"
	KindTotal  = "total"
	KindEnd    = "end"
	KindWatch  = "watch"
	KindSample = "sample"
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
