package result

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"spillway/internal/exit"
)

// samplesMax is the number of samples kept in memory: those of half an hour of a
// process, a database and a host. Beyond it, every second sample of each subject
// is dropped, repeatedly.
const samplesMax = 20_000

// downsampledNote is the note in a run whose samples were downsampled.
const downsampledNote = "means are computed from part of the samples, to limit memory; growth and extremes are exact, and the result " +
	"file has all samples"

// NewHeader returns the header of a run on this host. tool is the program's version
// and args is the command line, without the program's name.
func NewHeader(tool string, args []string) Header {
	return Header{
		Format: Format, Version: fmt.Sprintf("%d.%d", VersionMajor, VersionMinor), StartedAt: time.Now().UTC(),
		Command: RedactArgs(append([]string{"spillway"}, args...)), Tool: tool, Go: runtime.Version(), Machine: ReadMachine(),
	}
}

// Recorder collects a run in memory and writes it to a result file. It is safe
// for concurrent use.
type Recorder struct {
	report func(text string)
	known  knownSecrets

	mu       sync.Mutex
	run      Run
	writer   *writer         // nil: no result file
	reported map[string]bool // errors of samplers
	limit    int             // of samples in memory
	followed *followed       // nil: nobody reads the run while it is under way
}

// NewRecorder starts a run. It removes the secrets of RedactVariable from the header, from reasons, which quote answers, and from
// errors of samplers. path is the result file, or "" for none. report receives each error of a sampler once, and each gap.
func NewRecorder(path string, header Header, watches []Watch, report func(text string)) (*Recorder, error) {
	var known knownSecrets
	_ = json.Unmarshal([]byte(os.Getenv(RedactVariable)), &known) // only an experiment sets it
	header.Target, header.Command = known.hide(header.Target), slices.Clone(header.Command)
	for i, word := range header.Command {
		header.Command[i] = known.hide(word)
	}
	r := &Recorder{
		report: report, known: known, run: Run{Header: header, Watches: watches}, reported: make(map[string]bool),
		limit: samplesMax,
	}
	if path == "" {
		return r, nil
	}
	var err error
	if r.writer, err = create(path); err != nil {
		return nil, exit.UsageError(err)
	}
	if err := r.writer.write(r.run.preamble()...); err != nil {
		return nil, err
	}
	return r, nil
}

// Step adds the beginning of a step.
func (r *Recorder) Step(s *Step) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run.Steps = append(r.run.Steps, StepRun{Step: *s})
	return r.writer.write(record{Kind: kindStep, Step: s})
}

// Slice writes a second of the current step. Slices are only in the file, so that
// memory does not grow with the length of the run, except for those that Follow
// keeps.
func (r *Recorder) Slice(s *Slice) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.followed != nil {
		if err := r.followed.add(&r.run, s); err != nil {
			return err
		}
	}
	return r.writer.write(record{Kind: kindSlice, Slice: s})
}

// Total adds the totals of the current step, after it has removed secrets from its reasons.
func (r *Recorder) Total(t *Total) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Reasons = slices.Clone(t.Reasons)
	for i := range t.Reasons {
		t.Reasons[i].Text = r.known.hide(t.Reasons[i].Text)
	}
	r.run.Steps[len(r.run.Steps)-1].Total = *t
	return r.writer.write(record{Kind: kindTotal, Total: t})
}

// Sample adds a sample.
func (r *Recorder) Sample(s *Sample) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Error = r.known.hide(s.Error)
	r.reportErrorLocked(s)
	r.run.Samples = append(r.run.Samples, *s)
	if len(r.run.Samples) >= r.limit {
		r.downsampleLocked()
	}
	return r.writer.write(record{Kind: kindSample, Sample: s})
}

func (r *Recorder) downsampleLocked() {
	var starts []float64
	for i := range r.run.Steps {
		starts = append(starts, r.run.Steps[i].Start)
	}
	if !slices.Contains(r.run.Header.Notes, downsampledNote) {
		r.run.Header.Notes = append(r.run.Header.Notes, downsampledNote)
	}
	r.run.Samples = Downsample(r.run.Samples, starts)
	r.limit = max(r.limit, 2*len(r.run.Samples)) // the extremes of many steps stay
}

func (r *Recorder) reportErrorLocked(s *Sample) {
	problem := s.Error
	if s.Gap != nil {
		problem = fmt.Sprintf("not read from %.1f s to %.1f s: %s", s.Gap.From, s.At, s.Gap.Reason)
	}
	if problem == "" {
		return
	}
	name := strings.Join(strings.Fields(s.Host+" "+s.Sampler+" "+s.Subject), " ")
	text := fmt.Sprintf("watch: %s: %s", name, problem)
	if !r.reported[text] {
		r.reported[text] = true
		r.report(text)
	}
}

// Recent returns the usage between two times, in seconds since the start; nil if
// there are no samples.
func (r *Recorder) Recent(from, to float64) *Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	samples := r.run.Samples
	for i := range samples {
		if samples[i].At >= from-1.5 { // includes one reading before from
			samples = samples[i:]
			break
		}
	}
	recent := Run{Watches: r.run.Watches, Samples: samples}
	return UsageOf(recent.Series(), from, to, 0)
}

// Close ends the run and the file. It returns the run; the recorder must not be
// used afterwards.
func (r *Recorder) Close(end End) (*Run, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.run.End = end
	if err := r.writer.write(record{Kind: kindEnd, End: &end}); err != nil {
		return nil, err
	}
	return &r.run, r.writer.close()
}

// Downsample removes about every second sample of each subject, so that samples kept in memory stay bounded.
//
// starts are the times at which phases begin, in ascending order. In each phase, Downsample keeps the first and last sample of a
// subject, the extremes of each gauge, and samples with an error, after a gap or at the border of a step. Growth and extremes do not
// change; means are of fewer samples. The order of samples does not change.
func Downsample(samples []Sample, starts []float64) []Sample {
	type key struct {
		host, sampler, subject string
		phase                  int
	}
	groups := make(map[key][]int)
	for i := range samples {
		s := &samples[i]
		k := key{s.Host, s.Sampler, s.Subject, sort.SearchFloat64s(starts, s.At)}
		groups[k] = append(groups[k], i)
	}
	keep := make([]bool, len(samples))
	for _, group := range groups {
		keepOf(samples, group, keep)
	}
	kept := make([]Sample, 0, len(samples)/2)
	for i := range samples {
		if keep[i] {
			kept = append(kept, samples[i])
		}
	}
	return kept
}

// keepOf marks the samples of one subject in one phase that stay.
func keepOf(samples []Sample, group []int, keep []bool) {
	highest, lowest := make(map[string]int), make(map[string]int) // by gauge
	for n, i := range group {
		keep[i] = n%2 == 0 || n == len(group)-1 || samples[i].Error != "" || samples[i].Gap != nil || samples[i].Border
		for name, v := range samples[i].Values {
			if Counter(name) {
				continue
			}
			if top, seen := highest[name]; !seen || v > samples[top].Values[name] {
				highest[name] = i
			}
			if bottom, seen := lowest[name]; !seen || v < samples[bottom].Values[name] {
				lowest[name] = i
			}
		}
	}
	for _, extremes := range []map[string]int{highest, lowest} {
		for _, i := range extremes {
			keep[i] = true
		}
	}
}
