// Package watch samples what happens on a host while a load is put on it: process trees, the host's CPUs and pressure,
// TCP and its ports, and the databases, all on one clock. It tells records of package result and writes no file.
//
// A sampler reads one subject and returns figures; the package knows which of them are counters by their names (see
// result.Sample) and computes no rates: whoever reads the records does. What a sampler costs, and what keeps it from
// reading, are samples too; a sampler that fails says so once, goes on trying, and never stops the others.
//
// Samplers only read. They change no setting of the host, lock nothing in a database, and list no sockets one by one but
// those that listen and those that hold an ephemeral port, the latter within a budget (tcpPorts).
//
// A reading costs, in CPU time of this process, on an EPYC core of a host with 120 processes:
//
//	host                                     22 µs
//	tcp                                      60 µs, with 20,000 sockets in TIME_WAIT as with none
//	its count of ports in use                0.5 ms + 0.3 µs a socket of the range: 6.3 ms with 20,000; at most 0.5 % of a core
//	listeners                                22 µs
//	a process with 6 threads                 0.16 ms
//	a tree of 51 processes                   1.5 ms
//
// Host, tcp and listeners at 5 Hz and the tree at 1 Hz are 0.2 % of a core, and 0.7 % with 20,000 ports to count.
package watch

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"spillway/internal/lab/result"
)

// Intervals between two readings.
const (
	FastEvery = 200 * time.Millisecond // host and TCP: queues fill and drain within a second
	SlowEvery = time.Second            // processes and databases, whose reading costs more
)

// ReadTimeout bounds one reading: a database that hangs must not hang the watch.
const ReadTimeout = 2 * time.Second

// A Sampler reads one subject, or all subjects of one kind (every listener).
type Sampler struct {
	Kind    string        // result.SamplerProcess, …
	Subject string        // as the user calls it; "" for the host itself
	Detail  string        // what that is, as a plain sentence
	Every   time.Duration // FastEvery or SlowEvery
	// Read returns what it saw, Kind and Subject left empty unless they differ from the sampler's own. It is called from
	// one goroutine at a time. The samples' At, Host and Error are set by the watcher.
	Read func(ctx context.Context) ([]result.Sample, error)
	// Close frees what the sampler holds; nil when there is nothing.
	Close func()
}

// A Watcher runs samplers.
type Watcher struct {
	samplers []*Sampler
	start    time.Time // time 0 of the samples
}

// New returns a watcher of the samplers; times are counted from start. Close closes the samplers.
func New(start time.Time, samplers ...*Sampler) *Watcher {
	return &Watcher{samplers: samplers, start: start}
}

// Watch is the record that goes before the samples.
func (w *Watcher) Watch() result.Watch {
	watch := result.Watch{Machine: result.ReadMachine()}
	for _, s := range w.samplers {
		watch.Subjects = append(watch.Subjects, result.Subject{Sampler: s.Kind, Name: s.Subject, Detail: s.Detail})
	}
	return watch
}

// Close frees what the samplers hold. Run must have returned.
func (w *Watcher) Close() {
	for _, s := range w.samplers {
		if s.Close != nil {
			s.Close()
		}
	}
}

// Run reads every sampler at its interval until ctx ends, and then once more. emit is called from one goroutine at a
// time; an error of it ends the watch and is returned. Each sampler has a goroutine and misses a turn rather than
// reading late twice.
func (w *Watcher) Run(ctx context.Context, emit func(*result.Sample) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group sync.WaitGroup
		mutex sync.Mutex
	)
	var emitErr error
	tell := func(s *result.Sample) {
		mutex.Lock()
		defer mutex.Unlock()
		if emitErr != nil {
			return
		}
		if emitErr = emit(s); emitErr != nil {
			cancel()
		}
	}
	for _, s := range w.samplers {
		group.Go(func() { w.run(ctx, s, tell) })
	}
	group.Wait()
	return emitErr
}

// turns is what a sampler's own record is made of.
type turns struct {
	reads, failures int
	cpu             time.Duration
	said            string // the error told last
}

func (w *Watcher) run(ctx context.Context, s *Sampler, tell func(*result.Sample)) {
	ticker := time.NewTicker(s.Every)
	defer ticker.Stop()
	var t turns
	for {
		w.turn(context.WithoutCancel(ctx), s, &t, tell)
		if ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done(): // the last turn shows the state at the end
		case <-ticker.C:
		}
	}
}

// turn reads once and tells what was seen, and what it cost: the CPU time of the thread that reads, which is all there
// is for files and netlink and leaves out what a database's own process spends.
func (w *Watcher) turn(ctx context.Context, s *Sampler, t *turns, tell func(*result.Sample)) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	runtime.LockOSThread()
	before, begin := threadCPU(), time.Now()
	samples, err := s.Read(ctx)
	at, took := time.Since(w.start), time.Since(begin)
	t.cpu += threadCPU() - before
	runtime.UnlockOSThread()
	t.reads++
	if err != nil {
		t.failures++
		samples = append(samples, result.Sample{Error: once(&t.said, err.Error())})
	} else {
		t.said = ""
	}
	for i := range samples {
		one := &samples[i]
		if one.Values == nil && one.Error == "" {
			continue
		}
		one.At = (at - took/2).Seconds()
		if one.Sampler == "" {
			one.Sampler = s.Kind
		}
		if one.Subject == "" {
			one.Subject = s.Subject
		}
		tell(one)
	}
	tell(&result.Sample{At: at.Seconds(), Sampler: result.SamplerWatch, Subject: name(s), Values: map[string]float64{
		"reads_total": float64(t.reads), "failures_total": float64(t.failures),
		"cpu_seconds_total": t.cpu.Seconds(), "read_seconds": took.Seconds(),
	}})
}

// once returns the text, or "" when it was said last time.
func once(said *string, text string) string {
	if *said == text {
		return ""
	}
	*said = text
	return text
}

func name(s *Sampler) string {
	if s.Subject == "" {
		return s.Kind
	}
	return fmt.Sprintf("%s %s", s.Kind, s.Subject)
}
