package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
	"spillway/internal/lab/watch"
)

// watchCmd records what happens on a host, or tells other hosts of it.
type watchCmd struct {
	watchFlags
	Duration       time.Duration `group:"What comes of it" short:"d" help:"End after this time. Default: when interrupted."`
	Out            string        `group:"What comes of it" short:"o" placeholder:"FILE" help:"Write the result file; .gz is compressed. 'spillway report FILE' shows it."`
	Label          string        `group:"What comes of it" help:"How reports call this watch."`
	JSON           bool          `group:"What comes of it" name:"json" help:"One JSON document on standard output at the end, the lines on standard error."`
	ReportInterval time.Duration `group:"What comes of it" default:"3s" help:"Between two lines."`
	Listen         string        `group:"Other hosts" placeholder:"ADDR" help:"Record nothing: tell 'load --watch-from http://ADDR' on other hosts. :9191 is loopback only, unless there is a token."`
	Token          string        `group:"Other hosts" env:"SPILLWAY_WATCH_TOKEN" placeholder:"TOKEN" help:"That those hosts must send."`
}

// Help is shown below the flags.
func (watchCmd) Help() string {
	return `The host, its TCP and its accept queues are always watched. Nothing is changed anywhere: samplers only read.

Examples:
  spillway watch --watch app=:8080 --watch db=:5432 --watch-db postgres://app@127.0.0.1/shop -o watch.ndjson
  SPILLWAY_WATCH_TOKEN=… spillway watch --watch db=:5432 --listen :9191`
}

// Run watches until it is interrupted.
func (c *watchCmd) Run(env *environment) error {
	switch {
	case c.ReportInterval < time.Second:
		return usageError{errors.New("watch: --report-interval is at least 1s")}
	case c.Duration < 0:
		return usageError{errors.New("watch: --duration is never negative")}
	case c.Listen != "" && (c.Out != "" || c.JSON):
		return usageError{errors.New("watch --listen: it records nothing; -o and --json are for a watch without it")}
	case c.Listen != "" && len(c.WatchFrom) > 0:
		return usageError{errors.New("watch --listen: it tells of this host only; leave --watch-from to the one that records")}
	}
	ctx := env.ctx
	if c.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Duration)
		defer cancel()
	}
	w, err := c.open(ctx, env.log)
	if err != nil {
		return err
	}
	defer w.close()
	if c.Listen != "" {
		return c.serve(ctx, env, w)
	}
	return c.record(ctx, env, w)
}

// serve tells other hosts.
func (c *watchCmd) serve(ctx context.Context, env *environment, w *watchers) error {
	listener, err := watch.Listen(ctx, c.Listen, c.Token)
	if err != nil {
		return usageError{err}
	}
	env.log.Info("watching for other hosts", "address", listener.Addr().String(), "token", c.Token != "")
	return watch.Serve(ctx, listener, watch.ServeConfig{Watcher: w.local, Token: c.Token})
}

// record prints a line each interval and the summary at the end.
func (c *watchCmd) record(ctx context.Context, env *environment, w *watchers) error {
	lines, format := env.stdout, report.Text
	if c.JSON {
		lines, format = env.stderr, report.JSON
	}
	r := &record{out: env.stderr}
	r.run.Header = c.header(env)
	r.run.Watches = w.watches()
	if err := r.create(c.Out); err != nil {
		return err
	}
	start := r.run.Header.StartedAt
	stop := w.run(ctx, start, r.sample)
	ticker := time.NewTicker(c.ReportInterval)
	defer ticker.Stop()
	for going := true; going; {
		select {
		case <-ctx.Done():
			going = false
		case <-ticker.C:
			at := time.Since(start)
			r.Lock()
			line := watchLine(&r.run, at.Seconds(), max(c.ReportInterval.Seconds(), lineSpan))
			r.Unlock()
			fmt.Fprintf(lines, "[%5s] %s\n", at.Round(time.Second), line)
		}
	}
	err := stop()
	r.run.End = result.End{Reason: result.Finished, Elapsed: time.Since(start).Seconds()}
	if c.Duration == 0 || env.ctx.Err() != nil {
		r.run.End.Reason = result.Interrupted
	}
	if err := errors.Join(err, r.close()); err != nil {
		return err
	}
	return report.Write(env.stdout, format, []*result.Run{&r.run})
}

// header is the manifest of the watch.
func (c *watchCmd) header(env *environment) result.Header {
	return result.Header{
		Format: result.Format, Version: fmt.Sprintf("%d.%d", result.VersionMajor, result.VersionMinor), Label: c.Label,
		StartedAt: time.Now().UTC(), Command: result.RedactArgs(append([]string{"spillway"}, env.args...)),
		Tool: versionText(), Go: runtime.Version(), Machine: result.ReadMachine(),
	}
}
