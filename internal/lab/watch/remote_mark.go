package watch

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"spillway/internal/lab/result"
)

// Mark makes the other host read all its samplers once at a time, now or later. A time that is known well before is met within
// the uncertainty of the clocks; one that is now is met late by the way there. Samples have the time at which they were taken.
// Mark returns at once. A host that cannot be reached, or whose version has no marks, misses it.
func (r *RemoteWatch) Mark(at time.Time) {
	select {
	case r.marks <- at:
	default:
	}
}

// forwardMarks sends marks until ctx ends.
func (r *RemoteWatch) forwardMarks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case at := <-r.marks:
			r.forward(ctx, at)
		}
	}
}

// forward sends a mark by the clock of the other host. It drops errors, because the stream fails for the same reason and
// reports it.
func (r *RemoteWatch) forward(ctx context.Context, at time.Time) {
	ctx, cancel := context.WithTimeout(ctx, remoteTimeout)
	defer cancel()
	r.mu.Lock()
	ahead, _ := r.offsets.best()
	r.mu.Unlock()
	there := r.start.Add(at.Sub(r.start)).Add(ahead) // as in exchange
	body, err := r.do(ctx, http.MethodPost, "/mark?at="+url.QueryEscape(there.UTC().Format(time.RFC3339Nano)))
	if err != nil {
		return
	}
	_ = body.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marked = append(r.marked[max(0, len(r.marked)+1-marksMax):], at)
}

// noteMark notes that a sampler was read for a mark. The sample of its cost comes last.
func (r *RemoteWatch) noteMark(s *result.Sample) {
	if s.Border && s.Sampler == result.SamplerWatch {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.read[s.Subject] = s.At
	}
}

// markReach is how early, by an error of the clocks, the samples of a mark may be.
const markReach = 100 * time.Millisecond

// settled reports whether the samples of all marks up to now have arrived.
func (r *RemoteWatch) settled(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last time.Time
	for _, at := range r.marked {
		if at.After(last) && !at.After(now) {
			last = at
		}
	}
	if last.IsZero() {
		return true
	}
	arrived := 0
	for _, at := range r.read {
		if at >= (last.Sub(r.start) - markReach).Seconds() {
			arrived++
		}
	}
	return arrived >= len(r.served.Watch.Subjects)
}
