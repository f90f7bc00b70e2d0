package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// lineSpan is the shortest period that a line covers, in seconds. Processes and
// databases are read once per second, and a rate needs two readings.
const lineSpan = 3.0

// Options are the settings of `spillway watch`.
type Options struct {
	Spec
	Duration       time.Duration `group:"Result" short:"d" help:"Stop after this time. Default: when interrupted."`
	Out            string        `group:"Result" short:"o" placeholder:"FILE" help:"Write a result file; .gz is compressed. 'spillway report FILE' shows it."`
	Label          string        `group:"Result" help:"Name of this watch in reports."`
	JSON           bool          `group:"Result" name:"json" help:"Print one JSON document on standard output at the end, and the lines on standard error."`
	ReportInterval time.Duration `group:"Result" default:"3s" help:"Time between two lines."`
	Listen         string        `group:"Other hosts" placeholder:"ADDR" help:"Record nothing; serve 'load --watch-from http://ADDR' on other hosts. :9191 is loopback only, unless there is a token."`
	ListenToken    string        `group:"Other hosts" name:"token" env:"SPILLWAY_WATCH_TOKEN" placeholder:"TOKEN" help:"Token that those hosts must send."`
}

// Validate returns an error for options that contradict each other.
func (o *Options) Validate() error {
	switch {
	case o.ReportInterval < time.Second:
		return exit.UsageError(errors.New("watch: --report-interval must be at least 1s"))
	case o.Duration < 0:
		return exit.UsageError(errors.New("watch: --duration must not be negative"))
	case o.Listen != "" && (o.Out != "" || o.JSON):
		return exit.UsageError(errors.New("watch --listen records nothing; remove -o and --json"))
	case o.Listen != "" && len(o.Spec.Remotes) > 0:
		return exit.UsageError(errors.New("watch --listen serves this host only; use --watch-from on the host that records"))
	}
	return nil
}

// Execute watches until ctx ends or the duration is over. It prints a line per
// interval to lines and errors of samplers to warnings, and returns the run. With
// Listen it serves other hosts instead and returns nil.
func Execute(ctx context.Context, o Options, header result.Header, lines, warnings io.Writer, log *slog.Logger) (*result.Run, error) {
	interrupted := ctx
	if o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	set, err := OpenSet(ctx, o.Spec, log)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	if o.Listen != "" {
		return nil, serve(ctx, o, set, log)
	}
	header.StartedAt = time.Now().UTC()
	recorder, err := result.NewRecorder(o.Out, header, set.Watches(), func(text string) { fmt.Fprintln(warnings, text) })
	if err != nil {
		return nil, err
	}
	stop := set.Run(ctx, header.StartedAt, recorder.Sample)
	printLines(ctx, recorder, header.StartedAt, o.ReportInterval, lines)
	stopErr := stop()
	end := result.End{Reason: result.Finished, Elapsed: time.Since(header.StartedAt).Seconds()}
	if o.Duration == 0 || interrupted.Err() != nil {
		end.Reason = result.Interrupted
	}
	run, err := recorder.Close(end)
	return run, errors.Join(stopErr, err)
}

// serve serves other hosts until ctx ends.
func serve(ctx context.Context, o Options, set *Set, log *slog.Logger) error {
	listener, err := Listen(ctx, o.Listen, o.ListenToken)
	if err != nil {
		return exit.UsageError(err)
	}
	log.Info("watching for other hosts", "address", listener.Addr().String(), "token", o.ListenToken != "")
	return Serve(ctx, listener, ServeConfig{Watcher: set.local, Token: o.ListenToken})
}

// printLines prints a line per interval until ctx ends.
func printLines(ctx context.Context, recorder *result.Recorder, start time.Time, interval time.Duration, w io.Writer) {
	ticker := time.Tick(interval)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker:
			at := time.Since(start)
			from := at.Seconds() - max(interval.Seconds(), lineSpan)
			fmt.Fprintf(w, "[%5s] %s\n", at.Round(time.Second), summaryLine(recorder.Recent(from, at.Seconds())))
		}
	}
}

// summaryLine summarizes the usage of a period.
func summaryLine(u *result.Usage) string {
	if u == nil {
		return "nothing read yet"
	}
	var parts []string
	add := func(s *result.SubjectUsage, format string, figures ...result.Figure) {
		values := make([]any, len(figures))
		for i, f := range figures {
			v := s.Value(f)
			if math.IsNaN(v) {
				return
			}
			values[i] = v
		}
		words := strings.Fields(s.Host + " " + s.Name + " " + fmt.Sprintf(format, values...))
		parts = append(parts, strings.Join(words, " "))
	}
	for _, p := range u.Of(result.SamplerProcess) {
		switch {
		case p.Below(result.CPUCores):
			atMost := max(0.01, math.Ceil(p.Value(result.CPUCores)*100)/100)
			add(p, fmt.Sprintf("< %.2f cores", atMost)+" wait %.2f", result.RunQueueWait)
		case p.Below(result.CPUUserCores) || p.Below(result.CPUSystemCores):
			add(p, "%.2f cores wait %.2f", result.CPUCores, result.RunQueueWait)
		default:
			add(p, "%.2f cores (%.2f+%.2f) wait %.2f", result.CPUCores, result.CPUUserCores, result.CPUSystemCores, result.RunQueueWait)
		}
	}
	for _, h := range u.Of(result.SamplerHost) {
		add(h, "load %.2f", result.LoadMean)
	}
	for _, t := range u.Of(result.SamplerTCP) {
		add(t, "TIME_WAIT %.0f", result.TimeWaitMax)
		add(t, "ports %.0f/%.0f", result.PortsMax, result.PortsRange)
		add(t, "new %.0f/s in %.0f/s out", result.PassiveOpens, result.ActiveOpens)
	}
	for _, d := range u.Databases() {
		add(d, "%.0f conns", result.ConnectionsMax)
		add(d, "%.1f active", result.ConnectionsActive)
		add(d, strings.ReplaceAll(d.BusiestWait, "%", "%%")+" %.1f", result.BusiestWaitMean)
		add(d, "%.0f commits/s", result.Commits)
	}
	return strings.Join(parts, "  ")
}
