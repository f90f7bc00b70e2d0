package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/lab/result"
)

// Limits on a watch that other hosts read.
const (
	ServeReaders    = 8                // concurrent streams; one more is answered 503
	ServeBuffer     = 4096             // samples that wait for one reader; one more is lost
	ServeTimeout    = 10 * time.Second // to read a request, and to write to a reader before it is disconnected
	ServeBlankEvery = 2 * time.Second  // interval of empty lines in a silent stream
)

// ServeConfig says what Serve shows, and to whom.
type ServeConfig struct {
	Watcher *Watcher
	Token   string           // required of every request; "" is allowed on a loopback listener only
	Clock   func() time.Time // read once; nil is this host's clock
}

// Serve answers readers on listener until ctx ends, and closes the listener:
//
//	GET /watch    the result.Watch, and the time 0 of its samples by the clock of /clock
//	GET /clock    the time on this host
//	POST /mark    reads all samplers once at the time in "at", which is by /clock and may be in the future
//	GET /samples  the samples from now on, one JSON object per line; empty lines keep the stream alive
//
// The samplers run once for all readers, and only while there are readers. A reader that is too slow loses samples
// and learns how many. The clock is this host's wall clock when Serve began plus
// monotonic time, so it never steps. The caller closes the watcher.
func Serve(ctx context.Context, listener net.Listener, config ServeConfig) error {
	tcp, ok := listener.Addr().(*net.TCPAddr)
	if err := checkToken(listener.Addr().String(), config.Token, ok && tcp.IP.IsLoopback()); err != nil {
		return errors.Join(err, listener.Close())
	}
	if config.Clock == nil {
		config.Clock = time.Now
	}
	s := &server{config: config, started: config.Clock().Add(-time.Since(config.Watcher.start)), broadcast: newBroadcast(config.Watcher)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	httpServer := &http.Server{
		Handler:           s.handler(),
		MaxHeaderBytes:    16 << 10,
		ReadHeaderTimeout: ServeTimeout,
		ReadTimeout:       ServeTimeout,
		WriteTimeout:      ServeTimeout, // a stream extends its own deadline
		IdleTimeout:       2 * clockEvery,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	var sampling sync.WaitGroup
	sampling.Go(func() { s.broadcast.run(ctx) })
	failed := make(chan error, 1)
	go func() { failed <- httpServer.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serve the watch: %w", err)
		cancel()
		httpServer.Close() // its error is that of the listener
	case <-ctx.Done():
		drain, stop := context.WithTimeout(context.WithoutCancel(ctx), ServeTimeout)
		defer stop()
		if httpServer.Shutdown(drain) != nil { // a reader is still connected
			httpServer.Close()
		}
		<-failed
	}
	sampling.Wait()
	return err
}

type server struct {
	config    ServeConfig
	started   time.Time // time 0 of the samples, by config.Clock
	broadcast *broadcast
}

// servedWatch is the answer to /watch, servedClock to /clock.
type (
	servedWatch struct {
		Watch     result.Watch `json:"watch"`
		StartedAt time.Time    `json:"started_at"`
	}
	servedClock struct {
		Now time.Time `json:"now"`
	}
)

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /watch", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, servedWatch{Watch: s.config.Watcher.Watch(), StartedAt: s.started})
	})
	mux.HandleFunc("GET /clock", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, servedClock{Now: s.started.Add(time.Since(s.config.Watcher.start))})
	})
	mux.HandleFunc("GET /samples", s.samples)
	mux.HandleFunc("POST /mark", s.mark)
	return guard(s.config.Token, mux)
}

// markAhead is how far in the future a mark may be.
const markAhead = 24 * time.Hour

// mark reads all samplers at the time that the reader names by this host's clock.
func (s *server) mark(w http.ResponseWriter, r *http.Request) {
	at, err := time.Parse(time.RFC3339Nano, r.URL.Query().Get("at"))
	from := at.Sub(s.started)
	if err != nil || from > time.Since(s.config.Watcher.start)+markAhead {
		http.Error(w, "write at= and a time of /clock, at most 24 hours ahead", http.StatusBadRequest)
		return
	}
	s.config.Watcher.Mark(s.config.Watcher.start.Add(from))
}

func writeJSON(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a disconnected reader needs no answer
}

// samples streams to one reader until it disconnects or the server ends.
func (s *server) samples(w http.ResponseWriter, r *http.Request) {
	reader, ok := s.broadcast.join()
	if !ok {
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d readers are connected, which is the limit", ServeReaders), http.StatusServiceUnavailable)
		return
	}
	defer s.broadcast.leave(reader)
	w.Header().Set("Content-Type", "application/x-ndjson")
	controller := http.NewResponseController(w)
	blank := time.Tick(ServeBlankEvery)
	lines, announced := []byte("\n"), int64(0) // an empty line tells the reader that the stream has begun
	for {
		if controller.SetWriteDeadline(time.Now().Add(ServeTimeout)) != nil {
			return
		}
		if _, err := w.Write(lines); err != nil {
			return
		}
		if controller.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case line := <-reader.lines:
			lines = append(lines[:0], line...)
			for range len(reader.lines) {
				lines = append(lines, <-reader.lines...)
			}
			if lost := reader.lost.Load(); lost > announced {
				lines = append(lines, lostLine(lost, time.Since(s.config.Watcher.start))...)
				announced = lost
			}
		case <-blank:
			lines = []byte("\n")
		}
	}
}

// broadcast runs a watcher while there are readers and passes its samples to all of them.
type broadcast struct {
	watcher *Watcher
	wake    chan struct{} // signals that there may be readers

	mu      sync.Mutex
	readers map[*streamReader]bool
	stop    context.CancelFunc // of the watcher's present run; nil if it does not run
}

func newBroadcast(w *Watcher) *broadcast {
	return &broadcast{watcher: w, wake: make(chan struct{}, 1), readers: map[*streamReader]bool{}}
}

// run runs the watcher whenever there are readers, until ctx ends.
func (b *broadcast) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		runCtx, cancel := context.WithCancel(ctx)
		if b.begin(cancel) {
			_ = b.watcher.Run(runCtx, b.send) // send returns no errors
			<-runCtx.Done()                   // a watcher without samplers returns at once
		}
		cancel() // a reader that joined meanwhile has sent another wake
	}
}

// begin reports whether there are readers. If so, the last one to leave calls stop.
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
	r := &streamReader{lines: make(chan []byte, ServeBuffer)}
	b.readers[r] = true
	select {
	case b.wake <- struct{}{}:
	default:
	}
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

// send passes a sample to every reader. It never waits for one.
func (b *broadcast) send(s *result.Sample) error {
	line, err := json.Marshal(s)
	if err != nil { // a value is not a number
		line, _ = json.Marshal(&result.Sample{At: s.At, Sampler: s.Sampler, Subject: s.Subject, Error: "write sample: " + err.Error()})
	}
	line = append(line, '\n')
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.readers {
		select {
		case r.lines <- line:
		default:
			r.lost.Add(1)
		}
	}
	return nil
}

// streamReader holds the lines that wait to be written to one reader. All readers share them, therefore they are never modified.
type streamReader struct {
	lines chan []byte
	lost  atomic.Int64 // lines that found no place
}

// lostLine is a sample with the number of lost ones and an error.
func lostLine(lost int64, at time.Duration) []byte {
	line, _ := json.Marshal(&result.Sample{
		At: at.Seconds(), Sampler: result.SamplerWatch, Subject: "stream", Values: map[string]float64{"samples_lost_total": float64(lost)},
		Error: "samples were lost: the reader is too slow",
	})
	return append(line, '\n')
}
