package live

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"spillway/internal/lab/result"
)

// The page is made at most once per pageInterval, and so that at least pageRest times as long passes between two as one
// takes.
const (
	pageInterval = time.Second
	pageRest     = 50
)

// page makes the report page when it is asked for.
type page struct {
	render   Render
	snapshot func() *result.Snapshot

	mu    sync.Mutex // held while the page is made
	made  []byte
	at    time.Time // when it was made
	took  time.Duration
	ended bool

	readers sync.Mutex
	asked   time.Time     // when somebody last asked for the page
	next    chan struct{} // closed by the next answer after the end; nil: nobody waits
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	html, ended, err := p.current(time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if html == nil {
		w.Header().Set("Refresh", "1")
		http.Error(w, "The run has not begun.", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(html) // the reader is gone
	p.answered(ended)
}

// current returns the page, made again if it is old enough or the run has ended since; nil before the run begins.
func (p *page) current(now time.Time) (html []byte, ended bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	snapshot := p.snapshot()
	if snapshot == nil {
		return nil, false, nil
	}
	ended = snapshot.Run.End.Reason != result.UnderWay
	if p.made != nil && now.Sub(p.at) < max(pageInterval, pageRest*p.took) && ended == p.ended {
		return p.made, ended, nil
	}
	began := time.Now()
	var out bytes.Buffer
	inBackground(func() { err = p.render(&out, snapshot.Run) })
	if err != nil {
		return nil, ended, err
	}
	p.made, p.at, p.took, p.ended = out.Bytes(), now, time.Since(began), ended
	return p.made, ended, nil
}

// answered notes that somebody has read the page.
func (p *page) answered(ended bool) {
	p.readers.Lock()
	defer p.readers.Unlock()
	p.asked = time.Now()
	if ended && p.next != nil {
		close(p.next)
		p.next = nil
	}
}

// finish waits until somebody who looks at the page has read the end of the run.
func (p *page) finish(ctx context.Context) {
	p.readers.Lock()
	if time.Since(p.asked) > farewell {
		p.readers.Unlock()
		return
	}
	next := make(chan struct{})
	p.next = next
	p.readers.Unlock()
	select {
	case <-next:
	case <-time.After(farewell):
	case <-ctx.Done():
	}
}
