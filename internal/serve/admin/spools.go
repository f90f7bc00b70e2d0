package admin

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"spillway/internal/serve/queue"
	"spillway/internal/serve/spool"
)

// Spool is a local queue of the process. All fields are required.
type Spool struct {
	Open   func() *spool.Spool // nil: it is not open
	Decode func(payload []byte) ([]json.RawMessage, error)
	// Do executes an order on it. Errors are those of spool.Spool.Do.
	Do func(context.Context, *spool.Spool, spool.Order) (spool.Done, error)
}

const (
	lettersMax    = 500     // of one answer
	lettersUsual  = 100     // without a limit
	orderBytesMax = 1 << 20 // of a body
)

// spoolRoutes returns the routes of the spools.
func (s *Server) spoolRoutes() []route {
	order := func(work spool.Work, role Role) route {
		return route{"POST", "/spools/{spool}/" + string(work), role, ownOrigin("change spools", s.orderSpool(work))}
	}
	return []route{
		{"GET", "/spools/{spool}", RoleRead, s.onSpool(showSpool)},
		{"GET", "/spools/{spool}/waiting", RoleRead, s.onSpool(exportSpool(false))},
		{"GET", "/spools/{spool}/dead", RoleRead, s.onSpool(listLetters)},
		{"GET", "/spools/{spool}/dead/export", RoleRead, s.onSpool(exportSpool(true))},
		order(spool.WorkRetry, RoleEdit),
		order(spool.WorkMove, RoleEdit),
		order(spool.WorkDiscard, RoleAdmin),
	}
}

// onSpool returns a handler that calls handle with the spool that the path names.
func (s *Server) onSpool(handle func(http.ResponseWriter, *http.Request, *Spool, *spool.Spool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		of := s.cfg.Spools[r.PathValue("spool")]
		if of == nil {
			writeProblem(w, http.StatusNotFound, "there is no such spool: name streams or popups")
			return
		}
		open := of.Open()
		if open == nil {
			writeLater(w, "the spool is not open: nothing uses it, or it has not started")
			return
		}
		handle(w, r, of, open)
	}
}

func showSpool(w http.ResponseWriter, _ *http.Request, _ *Spool, open *spool.Spool) {
	writeJSON(w, "application/json", http.StatusOK, map[string]any{"streams": open.Status()})
}

// letterView is a dead letter in the API.
type letterView struct {
	queue.DeadLetter
	Records []json.RawMessage `json:"records"`
}

func listLetters(w http.ResponseWriter, r *http.Request, of *Spool, open *spool.Spool) {
	most := lettersUsual
	filter, flaws := readFilter(r)
	number := func(name string, least, largest int64) int64 {
		text := r.URL.Query().Get(name)
		n, err := strconv.ParseInt(text, 10, 64)
		if text != "" && (err != nil || n < least || n > largest) {
			flaws = append(flaws, flaw{Field: name, Message: fmt.Sprintf("%s must be a number from %d to %d", name, least, largest)})
		}
		return n
	}
	after := number("after", 0, 1<<62)
	if n := number("limit", 1, lettersMax); n > 0 {
		most = int(n)
	}
	if len(flaws) > 0 {
		writeFlaws(w, http.StatusBadRequest, flaws...)
		return
	}
	letters, err := open.Letters(r.Context(), filter, after, most)
	answer := struct {
		Letters []letterView `json:"dead_letters"`
		Next    int64        `json:"next,omitempty"`
	}{Letters: []letterView{}}
	for i := 0; err == nil && i < len(letters); i++ {
		view := letterView{DeadLetter: letters[i]}
		view.Records, err = of.Decode(view.Payload)
		answer.Letters, answer.Next = append(answer.Letters, view), view.ID
	}
	if err != nil {
		writeLater(w, err.Error())
		return
	}
	writeJSON(w, "application/json", http.StatusOK, answer)
}

// readFilter reads a filter from the query.
func readFilter(r *http.Request) (f spool.Filter, flaws []flaw) {
	query := r.URL.Query()
	f.Stream, f.Reason = query.Get("stream"), query.Get("reason")
	for name, at := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := query.Get(name); text != "" {
			var err error
			if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				flaws = append(flaws, flaw{Field: name, Message: name + " must be a time such as 2016-12-01T12:00:00Z"})
			}
		}
	}
	if text := query.Get("in_doubt"); text != "" {
		inDoubt := text == "true"
		if f.InDoubt = &inDoubt; !inDoubt && text != "false" {
			flaws = append(flaws, flaw{Field: "in_doubt", Message: "in_doubt must be true or false"})
		}
	}
	return f, flaws
}

// exportSpool returns a handler that writes dead letters, or what waits, as NDJSON.
func exportSpool(dead bool) func(http.ResponseWriter, *http.Request, *Spool, *spool.Spool) {
	return func(w http.ResponseWriter, r *http.Request, of *Spool, open *spool.Spool) {
		filter, flaws := readFilter(r)
		if len(flaws) > 0 {
			writeFlaws(w, http.StatusBadRequest, flaws...)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.Header().Set("Cache-Control", "no-store")
		out := bufio.NewWriterSize(patientWriter{w, http.NewResponseController(w)}, 64<<10)
		err := open.Export(r.Context(), filter, dead, of.Decode, out)
		if err := errors.Join(err, out.Flush()); err != nil {
			panic(http.ErrAbortHandler) // so that the client does not take it for all
		}
	}
}

// patientWriter gives each write WriteTimeout.
type patientWriter struct {
	io.Writer
	control *http.ResponseController
}

func (p patientWriter) Write(data []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(WriteTimeout)) // without one it takes as long as it takes
	return p.Writer.Write(data)
}

// readObject decodes a body. If it is not one object, it answers with what the object must have, and reports false.
func readObject[T any](w http.ResponseWriter, r *http.Request, into **T, must string) bool {
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, orderBytesMax))
	in.DisallowUnknownFields()
	err := in.Decode(into)
	if _, end := in.Token(); err == nil && (*into == nil || end != io.EOF) {
		err = errors.New("it is not one object")
	}
	if err != nil {
		writeProblem(w, http.StatusBadRequest, "the body must be a JSON object with "+must+": "+err.Error())
	}
	return err == nil
}

// orderSpool returns a handler that executes an order, which the body describes.
func (s *Server) orderSpool(work spool.Work) http.HandlerFunc {
	return s.onSpool(func(w http.ResponseWriter, r *http.Request, of *Spool, open *spool.Spool) {
		o := &spool.Order{}
		if !readObject(w, r, &o, "a filter, {} for all dead letters") {
			return
		}
		o.Work = work
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
		done, err := of.Do(r.Context(), open, *o)
		noteChange(w, fmt.Sprintf("%s: %d dead letters, %d records that wait", cmp.Or(o.Stream, "all streams"), done.Letters, done.Records),
			o.DryRun)
		switch {
		case errors.Is(err, spool.ErrOrder):
			writeProblem(w, http.StatusConflict, err.Error())
		case err != nil:
			writeLater(w, err.Error())
		default:
			s.cfg.Log.Info("order on the spool executed", "work", work, "stream", o.Stream, "to", o.To, "dry_run", o.DryRun,
				"dead_letters", done.Letters, "records", done.Records, "by", callerOf(r).Name)
			writeJSON(w, "application/json", http.StatusOK, done)
		}
	})
}
