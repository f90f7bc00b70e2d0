package watch

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"spillway/internal/lab/result"
)

// broadcast runs a watcher while someone reads it and gives every reader its samples.
type broadcast struct {
	watcher *Watcher
	wake    chan struct{} // there may be readers

	mu      sync.Mutex
	readers map[*streamReader]bool
	stop    context.CancelFunc // of the watcher's present run; nil when it does not run
}

func newBroadcast(w *Watcher) *broadcast {
	return &broadcast{watcher: w, wake: make(chan struct{}, 1), readers: map[*streamReader]bool{}}
}

// run runs the watcher again and again, until ctx ends: from the first reader's coming to the last one's going.
func (b *broadcast) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		runCtx, cancel := context.WithCancel(ctx)
		if b.begin(cancel) {
			_ = b.watcher.Run(runCtx, b.tell) // tell has no errors
			<-runCtx.Done()                   // a watcher without samplers is done at once
		}
		cancel() // a reader that came in between has sent another wake
	}
}

// begin reports whether there are readers, and if so lets the last one end the run.
func (b *broadcast) begin(stop context.CancelFunc) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stop = nil
	if len(b.readers) > 0 {
		b.stop = stop
	}
	return b.stop != nil
}

func (b *broadcast) join() (*streamReader, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.readers) >= ServeReaders {
		return nil, false
	}
	r := &streamReader{ready: make(chan struct{}, 1), limit: ServeBuffer}
	b.readers[r] = true
	wakeUp(b.wake)
	return r, true
}

func (b *broadcast) leave(r *streamReader) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.readers, r)
	if len(b.readers) == 0 && b.stop != nil {
		b.stop()
	}
}

// tell gives a sample to every reader; it never waits for one.
func (b *broadcast) tell(s *result.Sample) error {
	line, err := json.Marshal(s)
	if err != nil { // a figure that is no number
		line, _ = json.Marshal(&result.Sample{At: s.At, Sampler: s.Sampler, Subject: s.Subject, Error: "write sample: " + err.Error()})
	}
	line = append(line, '\n')
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.readers {
		r.put(line)
	}
	return nil
}

// wakeUp wakes who waits on c, a channel of one place.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// streamReader holds what waits to be written to one reader, at most limit bytes.
type streamReader struct {
	ready chan struct{} // there are lines
	limit int

	mu      sync.Mutex
	lines   [][]byte // shared by all readers: never written to
	bytes   int
	lost    int // lines dropped since the reader came
	told    int // of them, what the reader knows
	written []byte
}

// put adds a line. What is over the limit goes, oldest first.
func (r *streamReader) put(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	r.bytes += len(line)
	for r.bytes > r.limit && len(r.lines) > 1 {
		r.bytes -= len(r.lines[0])
		r.lines[0] = nil
		r.lines = r.lines[1:]
		r.lost++
	}
	wakeUp(r.ready)
}

// take returns all lines as one text, valid until the next take, and first what was lost: a figure of the watch that only
// grows, and an error.
func (r *streamReader) take(now time.Duration) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written = r.written[:0]
	if r.lost > r.told {
		line, _ := json.Marshal(&result.Sample{
			At: now.Seconds(), Sampler: result.SamplerWatch, Subject: "stream", Values: map[string]float64{"samples_lost_total": float64(r.lost)},
			Error: "samples were lost: this reader takes them more slowly than they come",
		})
		r.written = append(append(r.written, line...), '\n')
		r.told = r.lost
	}
	for _, line := range r.lines {
		r.written = append(r.written, line...)
	}
	r.lines, r.bytes = nil, 0
	return r.written
}
