package watch

import (
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

	"spillway/internal/database"
	"spillway/internal/lab/result"
)

// What a remote watch is given.
const (
	remoteTimeout  = 5 * time.Second     // to connect, and to answer /watch and /clock
	remoteSilence  = 4 * ServeBlankEvery // a stream without even an empty line for that long is broken
	remoteAnswer   = 1 << 20             // bytes of /watch and /clock
	remoteLine     = 256 << 10           // bytes of a sample
	remoteTokenFix = "give the token that watch --listen was started with"
)

// RemoteWatch is a watch on another host, served there by Serve.
type RemoteWatch struct {
	base   string // URL without path
	host   string // as samples name it
	token  string
	start  time.Time // our time 0
	client *http.Client

	mu      sync.Mutex
	served  servedWatch
	offsets offsets
}

// Remote joins the watch at an http:// or https:// URL; token is "" where none is set there. It asks what is watched and
// how far that host's clock is ahead. Samples will be at times from start. Over http:// the token can be read on
// the way. Close must be called.
func Remote(ctx context.Context, rawURL, token string, start time.Time) (*RemoteWatch, error) {
	u, err := url.Parse(rawURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, errors.New("watch from: write http://HOST:PORT, as watch --listen prints it, and the token apart from it")
	}
	r := &RemoteWatch{base: u.Scheme + "://" + u.Host, host: u.Host, token: token, start: start, client: &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: remoteTimeout}).DialContext, // no proxy: it would be what is measured
			TLSHandshakeTimeout:    remoteTimeout,
			ResponseHeaderTimeout:  remoteTimeout,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token is for that host
	}}
	if err := r.join(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Close gives up the connections. Run must have returned.
func (r *RemoteWatch) Close() { r.client.CloseIdleConnections() }

// Watch is the record that goes before the samples: the other host's, with its clock as it was estimated last.
func (r *RemoteWatch) Watch() result.Watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	watch := r.served.Watch
	watch.Host = r.host
	offset, uncertainty := r.offsets.best()
	watch.ClockOffset, watch.ClockError = offset.Seconds(), uncertainty.Seconds()
	return watch
}

// Run gives emit the samples of the other host from now on, until ctx ends: on our clock, with Host set. Every
// clockEvery the clocks are compared again, which is a sample too. emit is called from one goroutine at a time; an error
// of it ends the watch and is returned. A connection that breaks is told once as a sample with an error, and opened again.
func (r *RemoteWatch) Run(ctx context.Context, emit func(*result.Sample) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mutex sync.Mutex
	tell := func(s *result.Sample) {
		mutex.Lock()
		defer mutex.Unlock()
		if ctx.Err() != nil {
			return
		}
		s.Host = r.host
		if err := emit(s); err != nil {
			cancel(emitError{err})
		}
	}
	var group sync.WaitGroup
	group.Go(func() { r.compareClocks(ctx, tell) })
	group.Go(func() { r.follow(ctx, tell) })
	group.Wait()
	var failed emitError
	if errors.As(context.Cause(ctx), &failed) {
		return failed.error
	}
	return nil
}

// emitError is an error of the caller's emit.
type emitError struct{ error }

// follow reads stream after stream. Before each but the first it joins again: the other watch may have been started
// anew, with another time 0.
func (r *RemoteWatch) follow(ctx context.Context, tell func(*result.Sample)) {
	backoff := database.Backoff{Base: time.Second, Max: 5 * time.Second}
	failures := 0
	begun := func() { failures = 0 }
	err := r.stream(ctx, tell, begun)
	for ctx.Err() == nil {
		failures++
		if failures == 1 {
			tell(&result.Sample{At: time.Since(r.start).Seconds(), Sampler: result.SamplerWatch, Subject: "stream", Error: err.Error()})
		}
		pause := time.NewTimer(backoff.Delay(failures, func() float64 { return 0 }))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		if err = r.join(ctx); err == nil {
			err = r.stream(ctx, tell, begun)
		}
	}
}

// stream reads one stream to its end. begun is called once it delivers.
func (r *RemoteWatch) stream(ctx context.Context, tell func(*result.Sample), begun func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(remoteSilence, cancel)
	defer silence.Stop()
	body, err := r.get(ctx, "/samples")
	if err != nil {
		return err
	}
	defer body.Close()
	lines := newSampleLines(body)
	for {
		sample, err := lines.next()
		if err != nil {
			if !silence.Stop() {
				return fmt.Errorf("read samples of %s: nothing came for %v", r.host, remoteSilence)
			}
			return fmt.Errorf("read samples of %s: %w", r.host, err)
		}
		begun()
		silence.Reset(remoteSilence)
		if sample == nil {
			continue
		}
		if r.move(sample) {
			tell(sample)
		}
	}
}

// move puts a sample onto our clock. It reports false for one that is outside of any run.
func (r *RemoteWatch) move(s *result.Sample) bool {
	r.mu.Lock()
	offset, _ := r.offsets.best()
	begin := r.served.StartedAt.Add(-offset).Sub(r.start)
	r.mu.Unlock()
	s.At += begin.Seconds()
	return s.At > -result.MaxSeconds && s.At < result.MaxSeconds
}

// join asks what is watched and compares the clocks.
func (r *RemoteWatch) join(ctx context.Context) error {
	var served servedWatch
	if err := r.ask(ctx, "/watch", &served); err != nil {
		return err
	}
	if served.StartedAt.IsZero() {
		return fmt.Errorf("read the watch at %s/watch: it says not when it began: is this a watch --listen?", r.base)
	}
	var found offsets
	for range clockExchanges {
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
	body, err := r.get(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, remoteAnswer)) // to its end, so that the connection is used again
	if err == nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return fmt.Errorf("read the watch at %s%s: %w", r.base, path, err)
	}
	return nil
}

func (r *RemoteWatch) get(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the watch at %s: %w", r.base, err)
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the watch: %w", err) // it names the URL, which holds no token
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
	switch {
	case response.StatusCode == http.StatusUnauthorized && r.token == "":
		return nil, fmt.Errorf("the watch at %s asks for a token: %s", r.base, remoteTokenFix)
	case response.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("the watch at %s refuses the token: %s", r.base, remoteTokenFix)
	}
	return nil, fmt.Errorf("the watch at %s answers %s: %s", r.base, response.Status, printable(strings.TrimSpace(string(text))))
}
