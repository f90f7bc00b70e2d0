package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"spillway/internal/serve/admin"
)

// liveMax is the maximum of pages that follow the overview at once. The listener has admin.ConnectionsMax connections.
const liveMax = 64

// overviewData is what the overview shows. Its parts are templates that are sent again when their text changes.
type overviewData struct {
	admin.Figures
	Parts  []partView
	Down   []partView // do not serve
	Uneasy []partView // serve, but something is wrong
}

// partView is the state of a part.
type partView struct {
	admin.Part
	Command string // to run
}

// livePieces are the templates of the overview that change.
func livePieces() []string {
	return []string{"headline", "routes", "feeds", "acks", "system"}
}

func (q *request) overviewData() overviewData {
	d := overviewData{Figures: q.cfg.Access.Figures()}
	for _, p := range q.cfg.Access.Ready() {
		one := partView{Part: p, Command: indexCommand(p.Detail)}
		d.Parts = append(d.Parts, one)
		switch {
		case !p.Serves:
			d.Down = append(d.Down, one)
		case p.Reason != "":
			d.Uneasy = append(d.Uneasy, one)
		}
	}
	return d
}

func (q *request) overview() error {
	return q.render(http.StatusOK, "overview", "Overview", q.overviewData())
}

// tick is an event of a page that follows the overview.
type tick struct {
	Process int                 `json:"process"` // another one after a restart
	Pieces  map[string]string   `json:"pieces"`  // HTML by name, of those that have changed
	Traffic admin.TrafficSeries `json:"traffic"` // the last seconds
}

// follow sends what changes on the overview each second, until the browser leaves.
func (q *request) follow() error {
	if q.r.Method != http.MethodGet {
		return nil
	}
	if q.live.Add(1) > liveMax {
		q.live.Add(-1)
		return &failure{Status: http.StatusServiceUnavailable, Detail: "Too many pages follow this process. Close some."}
	}
	defer q.live.Add(-1)
	h := q.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // of nginx
	control := http.NewResponseController(q.w)
	every := time.NewTicker(time.Second)
	defer every.Stop()
	sent := make(map[string]string)
	for {
		if _, known := q.sessions.find(q.r); len(q.cfg.Access.Tokens) > 0 && !known {
			return nil // the session has ended; the page asks again and gets the log-in page
		}
		event, err := q.tick(sent)
		if err != nil {
			return err
		}
		_ = control.SetWriteDeadline(time.Now().Add(admin.WriteTimeout))
		if _, err := fmt.Fprintf(q.w, "data: %s\n\n", event); err != nil {
			return nil // the browser has left
		}
		if err := control.Flush(); err != nil {
			return nil
		}
		select {
		case <-q.r.Context().Done():
			return nil
		case <-every.C:
		}
	}
}

// tick returns the next event: what has changed since sent.
func (q *request) tick(sent map[string]string) ([]byte, error) {
	v := q.view("", q.overviewData())
	next := tick{Process: v.Process.ID, Pieces: map[string]string{}, Traffic: q.cfg.Access.Traffic.Series(1, 3)}
	for _, name := range livePieces() {
		var out bytes.Buffer
		if err := q.pages["overview"].ExecuteTemplate(&out, name, v); err != nil {
			return nil, err
		}
		if text := out.String(); sent[name] != text {
			sent[name], next.Pieces[name] = text, text
		}
	}
	return json.Marshal(next)
}
