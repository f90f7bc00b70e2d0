package main

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"spillway/internal/lab/result"
)

// samplesMax is how many samples are kept in memory for the summary: half an
// hour of a process, a database and a host. Beyond it every second one of each
// subject is forgotten, again and again; the result file has all.
const samplesMax = 20_000

// record keeps a run while it goes on, and writes it to a file where there is
// one. Load and watch tell of it from different goroutines: whoever uses it
// holds its lock.
type record struct {
	sync.Mutex
	run    result.Run
	writer *result.Writer // nil without a result file
	said   map[string]bool
	out    io.Writer // for what samplers say; a writer that fails is ignored
	clear  func()    // takes a line that changes away before anything is said
	limit  int       // of samples; 0: samplesMax
}

// create begins the file at path, "" for none.
func (r *record) create(path string) error {
	if path == "" {
		return nil
	}
	var err error
	if r.writer, err = result.Create(path); err != nil {
		return usageError{err}
	}
	if err := r.writer.WriteHeader(r.run.Header); err != nil {
		return err
	}
	for i := range r.run.Watches {
		if err := r.writer.WriteWatch(r.run.Watches[i]); err != nil {
			return err
		}
	}
	return nil
}

// sample keeps and writes what a sampler told. It takes the lock.
func (r *record) sample(s *result.Sample) error {
	r.Lock()
	defer r.Unlock()
	r.say(s)
	r.run.Samples = append(r.run.Samples, *s)
	if r.limit == 0 {
		r.limit = samplesMax
	}
	if len(r.run.Samples) >= r.limit {
		r.thin()
	}
	if r.writer == nil {
		return nil
	}
	return r.writer.WriteSample(s)
}

// thinned is the note in a summary made from part of the samples.
const thinned = "the summary's means are of part of the samples, to bound memory; growth and extremes are of all, and so is the result file"

func (r *record) thin() {
	var starts []float64
	for i := range r.run.Steps {
		starts = append(starts, r.run.Steps[i].Start)
	}
	if len(r.run.Header.Notes) == 0 {
		r.run.Header.Notes = append(r.run.Header.Notes, thinned)
	}
	r.run.Samples = result.Downsample(r.run.Samples, starts)
	r.limit = max(r.limit, 2*len(r.run.Samples)) // many steps keep many extremes
}

// say tells each thing that keeps a sampler from reading once.
func (r *record) say(s *result.Sample) {
	if s.Error == "" {
		return
	}
	name := strings.Join(strings.Fields(s.Host+" "+s.Sampler+" "+s.Subject), " ")
	text := fmt.Sprintf("watch: %s: %s", name, s.Error)
	if r.said[text] {
		return
	}
	if r.said == nil {
		r.said = make(map[string]bool)
	}
	r.said[text] = true
	if r.clear != nil {
		r.clear()
	}
	fmt.Fprintln(r.out, text)
}

// close ends the file.
func (r *record) close() error {
	if r.writer == nil {
		return nil
	}
	if err := r.writer.WriteEnd(r.run.End); err != nil {
		return err
	}
	return r.writer.Close()
}
