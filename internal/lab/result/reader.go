package result

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Limits of a file that Read accepts. They allow for runs of several days.
const (
	MaxLineBytes = 4 << 20 // per record
	MaxFileBytes = 1 << 30 // in total, uncompressed
)

// ErrNotResult means that the data is not a result file.
var ErrNotResult = errors.New("not a spillway result file")

// ErrVersion means that the file has a format of a newer version of spillway.
var ErrVersion = errors.New("unknown version of the result format")

// ReadFile reads the result file at path, compressed or not.
func ReadFile(path string) (*Run, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open result file: %w", err)
	}
	defer file.Close()
	run, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return run, nil
}

// Read reads a whole stream, compressed with gzip or not. A stream that ends early is not an error: Run.CutOff says what
// is missing. A complete but invalid line is an error with its number. Unknown fields are skipped.
func Read(in io.Reader) (*Run, error) {
	plain, err := decompress(in)
	if err != nil {
		return nil, err
	}
	b := builder{run: &Run{}}
	lines := lineReader{in: bufio.NewReaderSize(plain, 64<<10)}
	for {
		line, whole, err := lines.next()
		if errors.Is(err, io.EOF) {
			return b.finish()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", lines.number, err)
		}
		err = b.line(line)
		if err != nil && !whole && b.header {
			b.run.CutOff = fmt.Sprintf("line %d is cut off", lines.number)
			return b.finish()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", lines.number, err)
		}
	}
}

func decompress(in io.Reader) (io.Reader, error) {
	buffered := bufio.NewReader(in)
	magic, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read result: %w", err)
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return buffered, nil
	}
	plain, err := gzip.NewReader(buffered)
	if err != nil {
		return nil, fmt.Errorf("read compressed result: %w", err)
	}
	return plain, nil
}

// A lineReader returns lines within the limits.
type lineReader struct {
	in     *bufio.Reader
	number int // of the last line, from 1
	bytes  int64
}

// next returns the next line that is not blank. whole is false if the stream ended before a newline.
func (r *lineReader) next() (line []byte, whole bool, err error) {
	for {
		r.number++
		line, whole, err = r.line()
		if err != nil || len(bytes.TrimSpace(line)) > 0 {
			return line, whole, err
		}
	}
}

func (r *lineReader) line() (line []byte, whole bool, err error) {
	for {
		part, err := r.in.ReadSlice('\n')
		line = append(line, part...)
		r.bytes += int64(len(part))
		switch {
		case len(line) > MaxLineBytes:
			return nil, false, fmt.Errorf("longer than %d bytes", MaxLineBytes)
		case r.bytes > MaxFileBytes:
			return nil, false, fmt.Errorf("file longer than %d bytes", MaxFileBytes)
		case err == nil:
			return line, true, nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the latter from truncated gzip
			if len(line) == 0 {
				return nil, false, io.EOF
			}
			return line, false, nil
		}
		return nil, false, err
	}
}

// A builder assembles a Run line by line and rejects records out of order.
type builder struct {
	run    *Run
	header bool // was read
	open   bool // a step has no total yet
	ended  bool
}

func (b *builder) line(line []byte) error {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		if !b.header {
			return ErrNotResult
		}
		return fmt.Errorf("read record: %w", err)
	}
	switch {
	case !b.header:
		return b.first(&r)
	case b.ended:
		return errors.New("a record after the end record")
	case r.Kind == kindStep && r.Step != nil:
		return b.step(r.Step)
	case r.Kind == kindSlice && r.Slice != nil:
		return b.slice(r.Slice)
	case r.Kind == kindTotal && r.Total != nil:
		return b.total(r.Total)
	case r.Kind == kindEnd && r.End != nil:
		b.run.End, b.ended = *r.End, true
		return nil
	case r.Kind == kindWatch && r.Watch != nil:
		b.run.Watches = append(b.run.Watches, *r.Watch)
		return r.Watch.check()
	case r.Kind == kindSample && r.Sample != nil:
		if err := r.Sample.check(); err != nil {
			return err
		}
		b.run.Samples = append(b.run.Samples, *r.Sample)
		return nil
	case r.Kind == kindHeader:
		return errors.New("a second header: a file holds one run")
	}
	return nil // unknown kind of a later minor version
}

func (b *builder) first(r *record) error {
	if r.Kind != kindHeader || r.Header == nil || r.Header.Format != Format {
		return ErrNotResult
	}
	major, _, _ := strings.Cut(r.Header.Version, ".")
	if n, err := strconv.Atoi(major); err != nil || n != VersionMajor {
		return fmt.Errorf("%w %q: this spillway reads %d.x", ErrVersion, r.Header.Version, VersionMajor)
	}
	b.run.Header, b.header = *r.Header, true
	return r.Header.Part.check()
}

func (b *builder) step(s *Step) error {
	if b.open {
		return fmt.Errorf("step %d begins before the total of step %d", s.Index, len(b.run.Steps)-1)
	}
	if s.Index != len(b.run.Steps) {
		return fmt.Errorf("step %d follows step %d", s.Index, len(b.run.Steps)-1)
	}
	if err := s.check(); err != nil {
		return err
	}
	b.run.Steps = append(b.run.Steps, StepRun{Step: *s})
	b.open = true
	return nil
}

func (b *builder) slice(s *Slice) error {
	if !b.open || s.Step != len(b.run.Steps)-1 {
		return fmt.Errorf("a slice of step %d outside it", s.Step)
	}
	step := &b.run.Steps[s.Step]
	if n := len(step.Slices); n > 0 && s.Second <= step.Slices[n-1].Second {
		return fmt.Errorf("second %d follows second %d", s.Second, step.Slices[n-1].Second)
	}
	if err := s.check(); err != nil {
		return err
	}
	step.Slices = append(step.Slices, *s)
	return nil
}

func (b *builder) total(t *Total) error {
	if !b.open || t.Step != len(b.run.Steps)-1 {
		return fmt.Errorf("the total of step %d outside it", t.Step)
	}
	if err := t.check(); err != nil {
		return err
	}
	b.run.Steps[t.Step].Total = *t
	b.open = false
	return nil
}

// finish completes the run.
func (b *builder) finish() (*Run, error) {
	if !b.header {
		return nil, ErrNotResult
	}
	if !b.ended && b.run.CutOff == "" {
		b.run.CutOff = "there is no end record: the run is still going or was killed"
	}
	if !b.open {
		return b.run, nil
	}
	step := &b.run.Steps[len(b.run.Steps)-1]
	total, err := sumSlices(step)
	if err != nil {
		return nil, fmt.Errorf("sum step %d: %w", step.Index, err)
	}
	step.Total = *total
	return b.run, nil
}

// sumSlices computes the total of a step that was cut off.
func sumSlices(step *StepRun) (*Total, error) {
	total := &Total{
		Step: step.Index, Validity: Unjudged,
		Reasons: []Reason{{Code: CutOff, Text: fmt.Sprintf("cut off: the total is the sum of %d slices", len(step.Slices))}},
	}
	latencies := make([]Latency, len(step.Slices))
	for i := range step.Slices {
		total.addSlice(&step.Slices[i])
		latencies[i] = step.Slices[i].Latency
	}
	var err error
	total.Latency, err = mergeLatencies(latencies)
	return total, err
}

// addSlice adds a second without its latencies.
func (t *Total) addSlice(s *Slice) {
	t.Elapsed += s.Length
	t.Add(&s.Counters)
	t.Cost.CPUUser += s.CPUUser
	t.Cost.CPUSystem += s.CPUSystem
	t.Connections.ParallelMax = max(t.Connections.ParallelMax, s.Connections)
}

// MaxSeconds bounds every duration in a file: 30 days.
const MaxSeconds = 30 * 24 * 3600

var errNegative = errors.New("a count or a time is negative")

// check rejects impossible values, so that other code need not. A whole load has no part.
func (p *Part) check() error {
	switch {
	case p == nil:
		return nil
	case p.Number < 1 || p.Number > p.Of || p.Of > PartsMax:
		return fmt.Errorf("there is no part %d of %d", p.Number, p.Of)
	}
	return checkSeconds(p.Clock.Error)
}

// check rejects impossible values, as do those of the other records.
func (s *Step) check() error {
	if s.Connections < 0 || s.PerConnection < 0 || s.OfferedHz < 0 || s.Requests < 0 {
		return fmt.Errorf("step %d: %w", s.Index, errNegative)
	}
	return checkSeconds(s.Start, s.Duration, s.Warmup, s.TimeoutLimit, s.Late)
}

func (s *Slice) check() error {
	if s.Second < 0 || s.Second > MaxSeconds {
		return fmt.Errorf("second %d is outside of any run", s.Second)
	}
	if s.Connections < 0 || s.InFlight < 0 || s.Backlog < 0 {
		return fmt.Errorf("second %d: %w", s.Second, errNegative)
	}
	if err := s.Counters.check(); err != nil {
		return fmt.Errorf("second %d: %w", s.Second, err)
	}
	return checkSeconds(s.Length)
}

func (t *Total) check() error {
	if err := t.Counters.check(); err != nil {
		return fmt.Errorf("total of step %d: %w", t.Step, err)
	}
	return checkSeconds(t.Elapsed)
}

func (c *Counters) check() error {
	counts := []int64{c.Due, c.Sent, c.Done, c.Completed, c.BytesIn, c.BytesOut, c.Connects, c.Reconnects, c.Reads, c.Writes, c.Others}
	if slices.Min(append(counts, c.Errors[:]...)) < 0 {
		return errNegative
	}
	return nil
}

func checkSeconds(times ...float64) error {
	for _, t := range times {
		if t < 0 || t > MaxSeconds {
			return fmt.Errorf("%g s is outside of any run", t)
		}
	}
	return nil
}
