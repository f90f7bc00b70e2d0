//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"spillway/experiments/process"
)

// overMost is how far a peak may be above the capacity, as a share, in every search.
const overMost = 0.05

// An outcome is one search on a server of known capacity.
type outcome struct {
	target
	peak float64
	took time.Duration
	err  error
}

// ratio is the peak over the analytic rate.
func (o outcome) ratio() float64 { return o.peak / o.analytic() }

// close reports whether the search found the rate in time.
func (o outcome) close() bool {
	return o.err == nil && o.ratio() >= 1-o.within && o.ratio() <= 1+o.within
}

// above reports whether the search claims more than the server can do.
func (o outcome) above() bool { return o.err == nil && o.ratio() > 1+overMost }

// checkAccuracy searches on each server and reports whether 19 of 20 searches of each kind were close, and none was above.
func (o *options) checkAccuracy(ctx context.Context, out io.Writer) (bool, error) {
	targets, err := o.targets()
	if err != nil {
		return false, err
	}
	fmt.Fprintf(out, "%-9s %10s %10s %10s %7s %8s\n", "server", "capacity", "analytic", "peak", "ratio", "time")
	counts := map[string]*struct{ searches, close, above int }{}
	var servers []string
	for _, t := range targets {
		result := o.locate(ctx, t)
		if ctx.Err() != nil {
			return false, errors.New("interrupted")
		}
		fmt.Fprintln(out, result)
		c := counts[t.server]
		if c == nil {
			c = &struct{ searches, close, above int }{}
			counts[t.server] = c
			servers = append(servers, t.server)
		}
		c.searches++
		if result.close() {
			c.close++
		}
		if result.above() {
			c.above++
		}
	}
	ok := true
	for _, server := range servers {
		c := counts[server]
		fmt.Fprintf(out, "%s: %d of %d searches are close, %d claim more than 5 %% above the capacity\n", server, c.close, c.searches, c.above)
		ok = ok && c.above == 0 && c.close >= c.searches-c.searches/20
	}
	return ok, nil
}

// String is a line of the table.
func (o outcome) String() string {
	text := "NOT CLOSE"
	switch {
	case o.err != nil:
		text = o.err.Error()
	case o.above():
		text = "ABOVE"
	case o.close():
		text = "close"
	}
	return fmt.Sprintf("%-9s %10.5g %10.5g %10.5g %7.3f %8s  %s", o.server, o.capacity, o.analytic(), o.peak, o.ratio(),
		o.took.Round(time.Second), text)
}

// locate starts a server and searches for its peak.
func (o *options) locate(ctx context.Context, t target) outcome {
	result := outcome{target: t}
	ctx, cancel := context.WithTimeout(ctx, 2*t.maxTime)
	defer cancel()
	st, err := newStage(ctx, o.spillway)
	if err != nil {
		result.err = err
		return result
	}
	defer st.close()
	result.err = result.locateOn(st, o.flags())
	return result
}

func (o *outcome) locateOn(st *stage, flags []string) error {
	if o.plant.kind == plantBucket {
		address, err := process.FreeAddress()
		if err != nil {
			return err
		}
		o.plant.listen = address
	}
	app, url, err := o.serveOn(st)
	if err != nil {
		return err
	}
	if o.server == serverBurner {
		if o.capacity, err = calibrate(st, url, slices.Concat(watch(app), flags)); err != nil {
			return err
		}
	}
	began := time.Now()
	args := slices.Concat([]string{st.spillway, "peak", url, "--slo", o.slo, "--max-time", o.maxTime.String(), "--json"}, watch(app), flags)
	if o.needsCore() {
		args = append(args, "--pin")
	}
	p, err := st.start(process.Command{Name: "peak", Args: args})
	if err != nil {
		return err
	}
	document, code, err := p.Wait(st.ctx)
	o.took = time.Since(began)
	if err != nil {
		return fmt.Errorf("peak: %w", err)
	}
	r, err := readPeak(document)
	if err != nil && !errors.Is(err, errNoBottleneck) {
		return fmt.Errorf("peak: exit code %d: %w: %s", code, err, p.LogTail())
	}
	if o.peak = r.feasible; o.peak == 0 {
		return fmt.Errorf("no rate was found: %s", lastLine(p.LogTail()))
	}
	if o.server == serverBurner { // a hypervisor or another program may have taken time from one of the two
		after, err := calibrate(st, url, slices.Concat(watch(app), flags))
		if err != nil {
			return err
		}
		o.capacity = max(o.capacity, after)
	}
	return nil
}

func lastLine(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }

// needsCore reports whether the server needs a core of its own to reach its capacity.
func (t target) needsCore() bool { return t.server == serverBurner || t.capacity > 2000 }

// serveOn starts the server.
func (o *outcome) serveOn(st *stage) (*process.Process, string, error) {
	if o.plant.kind != plantBucket {
		return st.serve(o.plant, process.Command{})
	}
	app, err := st.start(process.Command{
		Name: "app", Args: append([]string{st.self}, o.plant.args()...),
		Ready: process.Answers(o.plant.listen),
	})
	return app, "http://" + o.plant.listen + "/", err
}

// calibrate returns the highest rate of a closed loop: that of a core which is never idle.
func calibrate(st *stage, url string, flags []string) (float64, error) {
	p, err := st.start(process.Command{Name: "load", Args: append([]string{
		st.spillway, "load", url, "--connections", "4", "--duration", "5s", "--warmup", "1s", "--pin", "--json",
	}, flags...)})
	if err != nil {
		return 0, err
	}
	document, _, err := p.Wait(st.ctx)
	if err != nil {
		return 0, fmt.Errorf("calibrate: %w", err)
	}
	var d struct {
		Steps []struct {
			Rate float64 `json:"rate_hz"`
		} `json:"steps"`
	}
	if err := json.Unmarshal(document, &d); err != nil || len(d.Steps) != 1 || !(d.Steps[0].Rate > 0) {
		return 0, fmt.Errorf("calibrate: no rate: %s", p.LogTail())
	}
	return d.Steps[0].Rate, nil
}
