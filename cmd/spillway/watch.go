package main

import (
	"time"

	"spillway"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
	"spillway/internal/lab/watch"
)

// watchFlags are the flags of load and watch for watch.Spec.
type watchFlags struct {
	Processes []string `group:"Watch" name:"watch" sep:"none" placeholder:"NAME=SPEC" help:"Watch a process and its descendants: app=:8080 (the process that listens there), db=1234 (a pid), web=/run/nginx.pid, db=unit:postgresql. Repeatable."`
	Databases []string `group:"Watch" name:"watch-db" sep:"none" placeholder:"[NAME=]URL" help:"Watch the statistics of a postgres://, mysql:// or redis:// server. Repeatable."`
	Remotes   []string `group:"Watch" name:"watch-from" sep:"none" placeholder:"URL" help:"Include what 'spillway watch --listen' sees on another host: http://db-1:9191. Repeatable."`
	Token     string   `group:"Watch" name:"watch-token" env:"SPILLWAY_WATCH_TOKEN" placeholder:"TOKEN" help:"Token for the other hosts."`
}

// watchCmd records what happens on a host, or serves other hosts.
type watchCmd struct {
	watchFlags
	Duration       time.Duration `group:"Result" short:"d" help:"Stop after this time. Default: when interrupted."`
	Out            string        `group:"Result" short:"o" placeholder:"FILE" help:"Write a result file; .gz is compressed. 'spillway report FILE' shows it."`
	Label          string        `group:"Result" help:"Name of this watch in reports."`
	JSON           bool          `group:"Result" name:"json" help:"Print one JSON document on standard output at the end, and the lines on standard error."`
	ReportInterval time.Duration `group:"Result" default:"3s" help:"Time between two lines."`
	Listen         string        `group:"Other hosts" placeholder:"ADDR" help:"Record nothing; serve 'load --watch-from http://ADDR' on other hosts. :9191 is loopback only, unless there is a token."`
	ListenToken    string        `group:"Other hosts" name:"token" env:"SPILLWAY_WATCH_TOKEN" placeholder:"TOKEN" help:"Token that those hosts must send."`
}

// Help is shown below the flags.
func (watchCmd) Help() string {
	return `Always watches the host, its TCP and its accept queues. It only reads and changes nothing.

Examples:
  spillway watch --watch app=:8080 --watch db=:5432 --watch-db postgres://app@127.0.0.1/shop -o watch.ndjson
  SPILLWAY_WATCH_TOKEN=… spillway watch --watch db=:5432 --listen :9191`
}

// Run watches until it is interrupted.
func (c *watchCmd) Run(env *environment) error {
	o := watch.Options{
		Spec: watch.Spec(c.watchFlags), Duration: c.Duration, Out: c.Out, Interval: c.ReportInterval, Listen: c.Listen, Token: c.ListenToken,
	}
	if err := o.Validate(c.JSON); err != nil {
		return err
	}
	lines, format := env.stdout, report.Text
	if c.JSON {
		lines, format = env.stderr, report.JSON
	}
	header := result.NewHeader(spillway.Version(), env.args)
	header.Label = c.Label
	run, err := watch.Execute(env.ctx, o, header, lines, env.stderr, env.log)
	if err != nil || run == nil {
		return err
	}
	return report.Write(env.stdout, format, []*result.Run{run})
}
