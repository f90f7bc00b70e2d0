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

// spoolHandler is a handler for a spool that is open.
type spoolHandler func(http.ResponseWriter, *http.Request, *Spool, *spool.Spool) (any, error)

// onSpool returns a handler that calls handle with the spool that the path names.
func (s *Server) onSpool(handle spoolHandler) handler {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		of := s.cfg.Spools[r.PathValue("spool")]
		if of == nil {
			return nil, newProblem(http.StatusNotFound, "there is no such spool: name streams or popups")
		}
		open := of.Open()
		if open == nil {
			return nil, later("the spool is not open: nothing uses it, or it has not started")
		}
		return handle(w, r, of, open)
	}
}

func showSpool(_ http.ResponseWriter, _ *http.Request, _ *Spool, open *spool.Spool) (any, error) {
	return map[string]any{"streams": open.Status()}, nil
}

// letterView is a dead letter in the API.
type letterView struct {
	queue.DeadLetter
	Records []json.RawMessage `json:"records"`
}

func listLetters(_ http.ResponseWriter, r *http.Request, of *Spool, open *spool.Spool) (any, error) {
	most := lettersUsual
	filter, flaws := readFilter(r)
	number := func(name string, least, largest int64) int64 {
		text := r.URL.Query().Get(name)
		n, err := strconv.ParseInt(text, 10, 64)
		if text != "" && (err != nil || n < least || n > largest) {
			flaws = append(flaws, Flaw{Field: name, Message: fmt.Sprintf("%s must be a number from %d to %d", name, least, largest)})
		}
		return n
	}
	after := number("after", 0, 1<<62)
	if n := number("limit", 1, lettersMax); n > 0 {
		most = int(n)
	}
	if len(flaws) > 0 {
		return nil, flawed(http.StatusBadRequest, flaws...)
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
		return nil, later(err.Error())
	}
	return answer, nil
}

// readFilter reads a filter from the query.
func readFilter(r *http.Request) (f spool.Filter, flaws []Flaw) {
	query := r.URL.Query()
	f.Stream, f.Reason = query.Get("stream"), query.Get("reason")
	for name, at := range map[string]*time.Time{"since": &f.Since, "until": &f.Until} {
		if text := query.Get(name); text != "" {
			var err error
			if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				flaws = append(flaws, Flaw{Field: name, Message: name + " must be a time such as 2016-12-01T12:00:00Z"})
			}
		}
	}
	if text := query.Get("in_doubt"); text != "" {
		inDoubt := text == "true"
		if f.InDoubt = &inDoubt; !inDoubt && text != "false" {
			flaws = append(flaws, Flaw{Field: "in_doubt", Message: "in_doubt must be true or false"})
		}
	}
	return f, flaws
}

// exportSpool returns a handler that writes dead letters, or what waits, as NDJSON.
func exportSpool(dead bool) spoolHandler {
	return func(w http.ResponseWriter, r *http.Request, of *Spool, open *spool.Spool) (any, error) {
		filter, flaws := readFilter(r)
		if len(flaws) > 0 {
			return nil, flawed(http.StatusBadRequest, flaws...)
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.Header().Set("Cache-Control", "no-store")
		out := bufio.NewWriterSize(patientWriter{w, http.NewResponseController(w)}, 64<<10)
		err := open.Export(r.Context(), filter, dead, of.Decode, out)
		if err := errors.Join(err, out.Flush()); err != nil {
			panic(http.ErrAbortHandler) // so that the client does not take it for all
		}
		return written{}, nil
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

// readObject decodes a body, which must be one object.
func readObject[T any](w http.ResponseWriter, r *http.Request, must string) (into *T, err error) {
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, orderBytesMax))
	in.DisallowUnknownFields()
	err = in.Decode(&into)
	if _, end := in.Token(); err == nil && (into == nil || end != io.EOF) {
		err = errors.New("it is not one object")
	}
	if err != nil {
		return nil, newProblem(http.StatusBadRequest, "the body must be a JSON object with "+must+": "+err.Error())
	}
	return into, nil
}

// orderSpool returns a handler that executes an order, which the body describes.
func (s *Server) orderSpool(work spool.Work) handler {
	return s.onSpool(func(w http.ResponseWriter, r *http.Request, of *Spool, open *spool.Spool) (any, error) {
		o, err := readObject[spool.Order](w, r, "a filter, {} for all dead letters")
		if err != nil {
			return nil, err
		}
		o.Work = work
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // it takes as long as it takes
		ctx := r.Context()
		if !o.DryRun {
			ctx = context.WithoutCancel(ctx) // it is done and recorded, even if the client leaves
		}
		done, err := of.Do(ctx, open, *o)
		switch {
		case errors.Is(err, spool.ErrOrder):
			return nil, newProblem(http.StatusConflict, err.Error())
		case err != nil:
			return nil, later(err.Error())
		}
		s.cfg.Log.Info("order on the spool executed", "work", work, "stream", o.Stream, "to", o.To, "dry_run", o.DryRun,
			"dead_letters", done.Letters, "records", done.Records, "by", callerOf(r).Name)
		detail := fmt.Sprintf("%s: %d dead letters, %d records that wait", cmp.Or(o.Stream, "all streams"), done.Letters, done.Records)
		return changed{done, detail, o.DryRun}, nil
	})
}
