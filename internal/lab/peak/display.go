package peak

import (
	"fmt"
	"io"
	"strings"
	"time"

	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/progress"
)

// display shows a search: on a terminal one line with what is proved, elsewhere one line per probe.
type display struct {
	*load.Progress
	terminal bool
	maxTime  time.Duration
	now      func() time.Time
	flow     bool // rates count iterations

	began  time.Time
	number int // of the current probe, from 1
	probe  Probe
	answer Answer
}

func newDisplay(out io.Writer, maxTime time.Duration, flow bool) *display {
	return &display{
		Progress: load.NewSearchProgress(out), terminal: progress.Terminal(out) != nil, maxTime: maxTime, now: time.Now, flow: flow,
	}
}

// begins is called before a probe begins.
func (d *display) begins(p Probe) {
	if d.began.IsZero() {
		d.began = d.now()
	}
	d.number++
	d.probe = p
	parts := []string{sheet.Duration(d.now().Sub(d.began).Round(time.Second).Seconds())}
	if d.maxTime > 0 {
		parts[0] += " of " + sheet.Duration(d.maxTime.Seconds())
	}
	if bounds := boundsText(d.answer); bounds != "" {
		parts = append(parts, bounds)
	}
	d.Lead(strings.Join(append(parts, fmt.Sprintf("%d %s:", d.number, d.what())), "  "))
}

// observed is called when the search has taken the result of a probe.
func (d *display) observed(t *result.Total, o *Observation, answer Answer) {
	d.answer = answer
	if d.terminal && o.Validity == result.Valid {
		return
	}
	text := fmt.Sprintf("probe %d, %s: %s", d.number, d.what(), outcomeText(t, o, d.probe.Rate == 0))
	if bounds := boundsText(answer); !d.terminal && d.probe.Rate > 0 && bounds != "" {
		text += "\n  " + bounds
	}
	d.Message(text)
}

// what describes the current probe.
func (d *display) what() string {
	length := sheet.Duration(d.probe.Duration.Seconds())
	if d.probe.Rate == 0 {
		return fmt.Sprintf("%s with %s for %s", d.probe.Purpose, sheet.Plural(d.probe.Connections, "connection"), length)
	}
	return fmt.Sprintf("%s at %s for %s", d.probe.Purpose, loadText(d.probe.Rate, d.flow), length)
}
