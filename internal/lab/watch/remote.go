package watch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Limits on a remote watch.
const (
	remoteTimeout = 5 * time.Second     // to connect, for the TLS handshake, and to answer /watch and /clock
	remoteSilence = 4 * ServeBlankEvery // a stream without a line, even an empty one, is broken after that time
	remoteAnswer  = 1 << 20             // bytes of an answer to /watch or /clock
	remoteLine    = 256 << 10           // bytes of a sample
)

// clockEvery is the time between two comparisons of the clocks.
const clockEvery = 10 * time.Second

// RemoteWatch is a watch on another host, served there by Serve.
type RemoteWatch struct {
	base   string // URL without path
	host   string // the name in samples
	token  string
	start  time.Time // time 0 of the samples
	client *http.Client
	marks  chan time.Time // for the other host

	mu      sync.Mutex
	served  servedWatch
	offsets offsets
	marked  []time.Time        // marks that the other host knows of, the last marksMax
	read    map[string]float64 // when each of its samplers was last read for a mark
}

// Remote joins the watch at an http:// or https:// URL; token is "" if that watch has none. It asks what is watched and how
// far the other clock is ahead. Sample times count from start. Over http:// the token travels unencrypted. The caller must
// call Close.
func Remote(ctx context.Context, rawURL, token string, start time.Time) (*RemoteWatch, error) {
	u, err := url.Parse(rawURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" {
		return nil, errors.New("watch from: write http://HOST:PORT, as watch --listen prints it, without a path and without the token")
	}
	r := &RemoteWatch{
		base: u.Scheme + "://" + u.Host, host: u.Host, token: token, start: start, marks: make(chan time.Time, marksMax),
		read: map[string]float64{}, client: &http.Client{
			Transport: &http.Transport{ // without a proxy, which would be measured too
				DialContext:            (&net.Dialer{Timeout: remoteTimeout}).DialContext,
				TLSHandshakeTimeout:    remoteTimeout,
				ResponseHeaderTimeout:  remoteTimeout,
				MaxResponseHeaderBytes: 64 << 10,
				DisableCompression:     true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for one host
		},
	}
	if err := r.join(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close closes the connections. Run must have returned.
func (r *RemoteWatch) Close() { r.client.CloseIdleConnections() }

// Watch is the record that precedes the samples: the other host's, with the last estimate of its clock.
func (r *RemoteWatch) Watch() result.Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	watch := r.served.Watch
	watch.Host = r.host
	offset, uncertainty := r.offsets.best()
	watch.ClockOffset, watch.ClockError = offset.Seconds(), uncertainty.Seconds()
	return watch
}

// Run passes the samples of the other host to emit until ctx ends, with times on this host's clock and Host set. Every
// clockEvery it compares the clocks again and emits the result. emit is called from one goroutine at a time; an error from it
// ends the watch and is returned. If the connection breaks, Run emits one sample with the error and connects again.
func (r *RemoteWatch) Run(ctx context.Context, emit func(*result.Sample) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mutex sync.Mutex
	var emitErr error
	report := func(s *result.Sample) {
		mutex.Lock()
		defer mutex.Unlock()
		if ctx.Err() != nil {
			return
		}
		s.Host = r.host
		if emitErr = emit(s); emitErr != nil {
			cancel()
		}
	}
	var group sync.WaitGroup
	group.Go(func() { r.compareClocks(ctx, report) })
	group.Go(func() { r.follow(ctx, report) })
	group.Go(func() { r.forwardMarks(ctx) })
	group.Wait()
	return emitErr
}

// follow reads one stream after the other. Before each stream but the first it joins again, because a restarted watch has
// another time 0.
func (r *RemoteWatch) follow(ctx context.Context, report func(*result.Sample)) {
	failures, broken := 0, 0.0
	var err error
	begun := func() {
		if failures > 0 {
			report(&result.Sample{
				At: time.Since(r.start).Seconds(), Sampler: result.SamplerWatch, Subject: "stream", Gap: &result.Gap{From: broken, Reason: err.Error()},
			})
		}
		failures = 0
	}
	err = r.stream(ctx, report, begun)
	for ctx.Err() == nil {
		failures++
		if failures == 1 {
			broken = time.Since(r.start).Seconds()
			report(&result.Sample{At: time.Since(r.start).Seconds(), Sampler: result.SamplerWatch, Subject: "stream", Error: err.Error()})
		}
		pause := time.NewTimer(retryPause(failures))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		joined := r.join(ctx)
		if joined != nil {
			err = joined
			continue
		}
		err = r.stream(ctx, report, begun)
	}
}

// stream reads one stream to its end. It calls begun when a line arrives.
func (r *RemoteWatch) stream(ctx context.Context, report func(*result.Sample), begun func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(remoteSilence, cancel)
	defer silence.Stop()
	body, err := r.do(ctx, http.MethodGet, "/samples")
	if err != nil {
		return err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4<<10), remoteLine)
	for lines.Scan() {
		sample, err := parseSample(lines.Bytes())
		if err != nil {
			return fmt.Errorf("read samples of %s: %w", r.host, err)
		}
		begun()
		silence.Reset(remoteSilence)
		if sample == nil {
			continue
		}
		if r.shift(sample) {
			report(sample)
			r.noteMark(sample)
		}
	}
	err = lines.Err()
	switch {
	case !silence.Stop():
		return fmt.Errorf("read samples of %s: no data for %v", r.host, remoteSilence)
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("read samples of %s: line longer than %d bytes", r.host, remoteLine)
	case err == nil:
		return fmt.Errorf("read samples of %s: the watch ended", r.host)
	}
	return fmt.Errorf("read samples of %s: %w", r.host, err)
}

// shift moves a sample to this host's clock. It reports false for a time outside any run.
func (r *RemoteWatch) shift(s *result.Sample) bool {
	r.mu.Lock()
	offset, _ := r.offsets.best()
	begin := r.served.StartedAt.Add(-offset).Sub(r.start)
	r.mu.Unlock()
	s.At += begin.Seconds()
	if s.Gap != nil {
		s.Gap.From += begin.Seconds()
	}
	return s.At > -result.MaxSeconds && s.At < result.MaxSeconds
}

// join asks what is watched and compares the clocks.
func (r *RemoteWatch) join(ctx context.Context) error {
	var served servedWatch
	if err := r.ask(ctx, "/watch", &served); err != nil {
		return err
	}
	if served.StartedAt.IsZero() {
		return fmt.Errorf("read the watch at %s/watch: started_at is missing: this is no watch --listen", r.base)
	}
	var found offsets
	for range exchanges {
		one, err := r.exchange(ctx)
		if err != nil {
			return err
		}
		found.add(one)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served, r.offsets = served, found
	return nil
}

func (r *RemoteWatch) ask(ctx context.Context, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	body, err := r.do(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, remoteAnswer)) // to its end, so that the connection can be reused
	if err == nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return fmt.Errorf("read the watch at %s%s: %w", r.base, path, err)
	}
	return nil
}

func (r *RemoteWatch) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, r.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("request to the watch at %s: %w", r.base, err)
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("request to the watch: %w", err) // it names the URL, which has no token
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
	switch {
	case response.StatusCode == http.StatusUnauthorized && r.token == "":
		return nil, fmt.Errorf("the watch at %s requires the token that watch --listen was started with", r.base)
	case response.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("the watch at %s rejects the token: give the one that watch --listen was started with", r.base)
	}
	return nil, fmt.Errorf("the watch at %s answers %s: %s", r.base, response.Status, sheet.Printable(strings.TrimSpace(string(text))))
}

// exchange compares the clocks once. This host's clock is the wall clock at start plus monotonic time, as in the samples.
func (r *RemoteWatch) exchange(ctx context.Context) (offset, error) {
	asked := r.start.Add(time.Since(r.start))
	var clock servedClock
	if err := r.ask(ctx, "/clock", &clock); err != nil {
		return offset{}, err
	}
	return measure(asked, r.start.Add(time.Since(r.start)), clock.Now), nil
}

// compareClocks compares the clocks every clockEvery. It drops errors, because the stream fails for the same reason and
// reports it.
func (r *RemoteWatch) compareClocks(ctx context.Context, report func(*result.Sample)) {
	ticker := time.Tick(clockEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker:
		}
		one, err := r.exchange(ctx)
		if err != nil {
			continue
		}
		r.mu.Lock()
		r.offsets.add(one)
		ahead, uncertainty := r.offsets.best()
		r.mu.Unlock()
		report(&result.Sample{At: time.Since(r.start).Seconds(), Sampler: result.SamplerWatch, Subject: "clock", Values: map[string]float64{
			"clock_offset_seconds": ahead.Seconds(), "clock_uncertainty_seconds": uncertainty.Seconds(),
			"round_trip_seconds": one.roundTrip.Seconds(),
		}})
	}
}

// parseSample reads a line of the stream that Serve writes, nil for an empty one.
func parseSample(line []byte) (*result.Sample, error) {
	if len(line) == 0 {
		return nil, nil
	}
	var s result.Sample
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, fmt.Errorf("line is no sample: %w", err)
	}
	if s.Sampler == "" {
		return nil, errors.New("line is no sample: it names no sampler")
	}
	s.Sampler, s.Subject, s.Error = sheet.Printable(s.Sampler), sheet.Printable(s.Subject), sheet.Printable(s.Error)
	if s.Gap != nil {
		s.Gap.Reason = sheet.Printable(s.Gap.Reason)
	}
	return &s, nil
}
