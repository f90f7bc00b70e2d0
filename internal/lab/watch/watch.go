// Package watch samples a host under load: process trees, the host's CPUs and pressure, TCP and its ports, and databases, all
// on one clock. It emits records of package result and writes no file.
//
// A sampler reads one subject and returns values. Their names say which of them are counters (see result.Sample); readers of
// the records compute rates. The cost of each sampler is a sample too. A sampler that fails reports the error once, keeps
// trying, and never stops the others.
//
// Samplers only read. They change no setting, take no lock in a database, and list no sockets one by one, except those that
// listen, those that are established and those with an ephemeral port. Counting the last two has a limit (rarely).
//
// The host, TCP, a tree of 51 processes and 26,000 sockets in TIME_WAIT together cost about 1 % of a core.
package watch

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"spillway/internal/lab/result"
)

// Intervals between two readings.
const (
	FastEvery = 200 * time.Millisecond // host and TCP, whose queues fill and drain within a second
	SlowEvery = time.Second            // processes and databases, which cost more to read
)

// ReadTimeout bounds one reading, so that a database that hangs does not block the watch.
const ReadTimeout = 2 * time.Second

// A Sampler reads one subject, or all subjects of one kind (every listener).
type Sampler struct {
	Kind    string        // result.SamplerProcess, …
	Subject string        // named by the user; "" for the host itself
	Detail  string        // describes the subject
	Every   time.Duration // FastEvery or SlowEvery
	// Read returns samples. Their Sampler and Subject are empty unless they differ from the sampler's own, and they have a Gap,
	// without From, if the subject was replaced since the last reading. The watcher sets At, Host, Error and Border, and the
	// Gap after failed readings, and calls Read from one goroutine at a time.
	Read func(ctx context.Context) ([]result.Sample, error)
	// Close frees the sampler's resources; nil if it has none.
	Close func()
}

// A Watcher runs samplers.
type Watcher struct {
	samplers []*Sampler
	marks    []chan time.Time // by sampler
	start    time.Time        // time 0 of the samples
}

// marksMax is how many marks may be pending. More are dropped.
const marksMax = 64

// New returns a watcher of the samplers. Sample times count from start. Close closes the samplers.
func New(start time.Time, samplers ...*Sampler) *Watcher {
	w := &Watcher{samplers: samplers, start: start, marks: make([]chan time.Time, len(samplers))}
	for i := range w.marks {
		w.marks[i] = make(chan time.Time, marksMax)
	}
	return w
}

// Mark makes Run read every sampler once at a time, now or later, in addition to its interval. These samples have Border set.
// Mark returns at once. It is safe for concurrent use.
func (w *Watcher) Mark(at time.Time) {
	for _, marks := range w.marks {
		select {
		case marks <- at:
		default:
		}
	}
}

// Watch is the record that precedes the samples.
func (w *Watcher) Watch() result.Watch {
	watch := result.Watch{Machine: result.ReadMachine()}
	for _, s := range w.samplers {
		watch.Subjects = append(watch.Subjects, result.Subject{Sampler: s.Kind, Name: s.Subject, Detail: s.Detail})
	}
	return watch
}

// Close closes the samplers. Run must have returned.
func (w *Watcher) Close() {
	for _, s := range w.samplers {
		if s.Close != nil {
			s.Close()
		}
	}
}

// Run reads every sampler at its interval until ctx ends, and then once more. emit is called from one goroutine at a time; an
// error from it ends the watch and is returned. Each sampler has a goroutine. A sampler that is late skips readings.
func (w *Watcher) Run(ctx context.Context, emit func(*result.Sample) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group sync.WaitGroup
		mutex sync.Mutex
	)
	var emitErr error
	report := func(s *result.Sample) {
		mutex.Lock()
		defer mutex.Unlock()
		if emitErr != nil {
			return
		}
		if emitErr = emit(s); emitErr != nil {
			cancel()
		}
	}
	for i, s := range w.samplers {
		group.Go(func() { w.run(ctx, s, w.marks[i], report) })
	}
	group.Wait()
	return emitErr
}

// readings are the totals of a sampler.
type readings struct {
	reads, failures int
	cpu             time.Duration
	lastError       string
	known           float64 // when values were last read, or else first tried to be
	missing         string  // why the last reading had no values; "" if it had
}

// addGap completes the gap that ends with these samples, if there is one. It belongs to the sampler's own subject; a sampler of
// several subjects gets a sample without values.
func (r *readings) addGap(samples []result.Sample) []result.Sample {
	i := slices.IndexFunc(samples, func(s result.Sample) bool { return s.Values != nil && s.Subject == "" })
	switch {
	case i >= 0 && samples[i].Gap != nil:
		samples[i].Gap = &result.Gap{From: r.known, Reason: samples[i].Gap.Reason}
	case r.missing == "":
	case i >= 0:
		samples[i].Gap = &result.Gap{From: r.known, Reason: r.missing}
	default:
		samples = append(samples, result.Sample{Gap: &result.Gap{From: r.known, Reason: r.missing}})
	}
	return samples
}

func (w *Watcher) run(ctx context.Context, s *Sampler, marks <-chan time.Time, report func(*result.Sample)) {
	ticker := time.Tick(s.Every)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var (
		total   readings
		pending schedule
	)
	for read, border := true, false; ; {
		if read {
			w.read(context.WithoutCancel(ctx), s, &total, border, report)
		}
		if ctx.Err() != nil {
			return
		}
		read, border = true, false
		timer.Reset(pending.wait(time.Now()))
		select {
		case <-ctx.Done(): // the last reading shows the state at the end
			border = pending.receive(marks).take(time.Now())
		case at := <-marks:
			pending.add(at)
			read = false
		case <-timer.C:
			read = pending.take(time.Now())
			border = read
		case <-ticker:
			read = pending.wait(time.Now()) > markQuiet // or the mark would come late
		}
	}
}

// read reads once and reports the samples and their cost: the CPU time of the thread that reads. The cost excludes what a
// database spends.
func (w *Watcher) read(ctx context.Context, s *Sampler, total *readings, border bool, report func(*result.Sample)) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	runtime.LockOSThread()
	before, begin := threadCPU(), time.Now()
	samples, err := s.Read(ctx)
	at, took := time.Since(w.start), time.Since(begin)
	total.cpu += threadCPU() - before
	runtime.UnlockOSThread()
	total.reads++
	middle := (at - took/2).Seconds()
	if total.reads == 1 {
		total.known = middle
	}
	message := ""
	if err != nil {
		total.failures++
		message = err.Error()
	}
	read := slices.ContainsFunc(samples, func(s result.Sample) bool { return s.Values != nil })
	if read {
		samples = total.addGap(samples)
		total.missing, total.known = "", middle
	} else {
		total.missing = message
	}
	if message != total.lastError {
		total.lastError = message
		samples = append(samples, result.Sample{Error: message})
	}
	for i := range samples {
		one := &samples[i]
		if one.Values == nil && one.Error == "" && one.Gap == nil {
			continue
		}
		one.At, one.Border = middle, border
		one.Sampler = cmp.Or(one.Sampler, s.Kind)
		one.Subject = cmp.Or(one.Subject, s.Subject)
		report(one)
	}
	subject := strings.TrimSpace(s.Kind + " " + s.Subject)
	report(&result.Sample{At: at.Seconds(), Border: border, Sampler: result.SamplerWatch, Subject: subject, Values: map[string]float64{
		"reads_total": float64(total.reads), "failures_total": float64(total.failures),
		"cpu_seconds_total": total.cpu.Seconds(), "read_seconds": took.Seconds(),
	}})
}
