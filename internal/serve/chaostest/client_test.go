package chaostest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
)

// lane is a client that sends one request after the other.
type lane struct {
	run        *run
	stream     *streamState
	idempotent bool // sends Idempotency-Keys
	random     *rand.Rand
	client     *http.Client
}

// laneRequest is a request. It has the same body however often it is sent.
type laneRequest struct {
	records []*record
	body    string
	headers []string
}

// work sends requests until the clients are stopped. It repeats a request whose outcome is
// unknown only if that is safe, until the outcome is known.
func (l *lane) work() {
	defer l.client.CloseIdleConnections()
	for l.run.writing.Err() == nil {
		r := l.request()
		for l.send(r) && l.run.ctx.Err() == nil {
			queue.Sleep(l.run.ctx, time.Duration(10+l.random.IntN(100))*time.Millisecond)
		}
		l.run.answered(l)
		queue.Sleep(l.run.writing, time.Duration(l.random.IntN(60))*time.Millisecond)
	}
}

// request makes the next request: an object, an array or lines.
func (l *lane) request() *laneRequest {
	r := new(laneRequest)
	form, records := l.random.IntN(3), 1
	if form > 0 {
		records += l.random.IntN(8)
	}
	var bodies []string
	for range records {
		record := &record{id: int(l.run.next.Add(1)), stream: l.stream.table, idempotent: l.idempotent}
		r.records = append(r.records, record)
		bodies = append(bodies, newRecord(l.run.seed, record.id))
	}
	l.run.remember(r.records)
	switch form {
	case 0:
		r.body = bodies[0]
	case 1:
		r.body = "[" + strings.Join(bodies, ",") + "]"
	case 2:
		r.body = strings.Join(bodies, "\n")
		r.headers = append(r.headers, "Content-Type", "application/x-ndjson")
	}
	if l.idempotent {
		r.headers = append(r.headers, "Idempotency-Key", fmt.Sprintf("%d-%d", l.run.seed, r.records[0].id))
	}
	return r
}

// send sends a request once and notes the answer. It reports whether to send it again.
func (l *lane) send(r *laneRequest) (again bool) {
	from := time.Since(l.run.began)
	ctx, cancel := context.WithTimeout(l.run.ctx, 30*time.Second)
	defer cancel()
	a, err := apptest.TryPost(ctx, l.client, l.run.service.URL(l.stream.current()), r.body, r.headers...)
	answer := fmt.Sprintf("%s %d %.300s", l.stream.current(), a.Status, a.Body)
	refused := make(map[int]string)
	known := outcomeUnknown
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		known, answer = outcomeRefused, "not sent"
	case err != nil:
		answer = err.Error()
	case a.Status == http.StatusGatewayTimeout:
	case a.Status == http.StatusOK, a.Status == http.StatusAccepted:
		known = outcomeAcked
		l.judge(r, a, refused)
	default:
		known = outcomeRefused
		if l.wrong(a.Status) {
			l.run.violate("a request that was never sent otherwise is answered %s", answer)
		}
	}
	l.run.note(l, r, attempt{from, time.Since(l.run.began), answer, known}, refused)
	switch {
	case known == outcomeAcked || err == nil && (a.Status == http.StatusUnprocessableEntity || l.wrong(a.Status)):
		return false
	case known == outcomeRefused: // certain: it can be sent again
		return l.idempotent || l.run.writing.Err() == nil && l.random.IntN(3) > 0
	}
	return l.idempotent || l.stream.key
}

// wrong reports whether a status says that the request is wrong, which none is.
func (l *lane) wrong(status int) bool {
	return status == http.StatusConflict || status == http.StatusBadRequest || status == http.StatusUnsupportedMediaType
}

// judge compares the counts of an answer with the request, and returns the records that it
// refuses.
func (l *lane) judge(r *laneRequest, a apptest.Answer, refused map[int]string) {
	var body struct {
		Stored  int
		Refused []struct {
			Index         int
			Field, Reason string
		}
	}
	if err := json.Unmarshal(a.Body, &body); err != nil {
		l.run.violate("the answer is not JSON: %s", a.Body)
	}
	for _, record := range body.Refused {
		refused[record.Index] = record.Field + " " + record.Reason
	}
	if body.Stored+len(refused) != len(r.records) {
		l.run.violate("a request of %d records is answered %s", len(r.records), a.Body)
	}
}
