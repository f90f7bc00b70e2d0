package main

import (
	"errors"
	"fmt"
	"time"

	"spillway"
	"spillway/internal/exit"
	"spillway/internal/lab/load"
	"spillway/internal/lab/peak"
	"spillway/internal/lab/plan"
	"spillway/internal/lab/result"
	"spillway/internal/lab/watch"
)

// peakCmd finds the highest rate at which a target meets an SLO.
type peakCmd struct {
	Target string `arg:"" optional:"" name:"url" help:"As for load: http://, https://, postgres://, mysql://, redis://, …"`
	peakSearch
	peakKnobs
	load.Policy
	load.HTTP
	watchFlags
	load.Statement
	peakOutput
	loadLive
	load.Sharing
	peakRefused
}

// The flags, by group.
type (
	peakSearch struct {
		SLO       string        `filled:"" group:"Search" name:"slo" placeholder:"TEXT" help:"What the target has to meet: 'p99<70ms errors<0.5%'. Required."`
		MaxTime   time.Duration `group:"Search" default:"10m" help:"End the search after this time, with what is proved by then; 0: no limit."`
		Precision string        `group:"Search" default:"5%" help:"Widest interval of the peak, as a part of its lower end."`
		Start     float64       `filled:"" group:"Search" placeholder:"R" help:"First rate. Default: from what a closed loop reaches."`
		Max       float64       `filled:"" group:"Search" placeholder:"R" help:"Highest rate to try."`
		Warmup    time.Duration `group:"Search" help:"Least warm-up of each probe; the search chooses longer ones as needed."`
	}
	peakKnobs struct {
		Knob []string `group:"Search" sep:"none" placeholder:"KNOB" help:"Search again with another value, say whether the peak moved, and set the original back: 'pool=8,16: COMMAND' (8 is in force; sh runs COMMAND with $$VALUE), keep-alive, connections=N,… or source=IP,…. Repeatable."`
	}
	peakOutput struct {
		Out   string   `group:"Result" short:"o" placeholder:"FILE" help:"Write a result file with a step per probe; .gz is compressed. 'spillway report FILE' shows it."`
		JSON  bool     `group:"Result" name:"json" help:"Print one JSON document on standard output instead of the text."`
		Label string   `group:"Result" help:"Name of this search in reports."`
		Allow []string `group:"Result" placeholder:"HOST" help:"Public host that you may load. Without it, only this machine and private addresses are allowed."`
	}
	// peakRefused are flags of load that a search decides itself or has no use for.
	peakRefused struct {
		Rate     string        `hidden:""`
		Duration time.Duration `hidden:"" short:"d"`
		Requests int64         `hidden:"" short:"n"`
		Abort    string        `hidden:""`
		Part     string        `hidden:""`
	}
)

// Help is shown below the flags.
func (peakCmd) Help() string {
	return `Runs short steps of load at rates that it chooses, and narrows the interval between a rate that meets the SLO and one that misses it. Only VALID steps count. Ctrl-C ends it with what is proved by then. docs/peak.md describes the search.

Examples:
  spillway peak http://127.0.0.1:8080/goodslist --slo 'p99<70ms errors<0.5%' --pin
  spillway peak http://127.0.0.1:8080/goodslist --slo 'p99<70ms' --per-connection 1 --watch app=:8080 --watch-db postgres://app@db/shop -o peak.ndjson
  spillway peak postgres://app@db/shop --sql 'SELECT * FROM goods WHERE id = :id' --param 'id=random(1,1000)' -c 20 --slo 'p95<10ms' --max-time 2m
  spillway peak http://127.0.0.1:8080/goodslist --slo 'p99<70ms' --knob 'pool=8,16: ./set-pool.sh "$VALUE"' --knob keep-alive`
}

// Run runs the search.
func (c *peakCmd) Run(env *environment) (err error) {
	if err := c.refuse(); err != nil {
		return exit.UsageError(err)
	}
	o := c.options()
	hooks := load.Hooks{Find: func(spec string) (load.Process, error) { return watch.ParseProcess(spec) }}
	if hooks.Keeper, err = keeper(c.Pin); err != nil {
		return err
	}
	show, err := c.loadLive.open(env)
	if err != nil {
		return err
	}
	if show != nil {
		defer func() { err = errors.Join(err, show.Close()) }()
		hooks.Follow = show.Follow
	}
	var watched *watch.Set
	defer func() { watched.Close() }()
	hooks.Watch = func() (_ load.Watcher, err error) {
		if watched, err = c.watch(env, o.LocalPort()); watched == nil {
			return nil, err
		}
		return watched, err
	}
	outcome, err := peak.Execute(env.ctx, o, hooks, result.NewHeader(spillway.Version(), env.args), env.stderr)
	if err != nil {
		return err
	}
	plan.Beside(outcome)
	if show != nil {
		defer show.Finish(env.ctx)
	}
	if c.JSON {
		err = outcome.WriteJSON(env.stdout, c.Out)
	} else {
		err = outcome.WriteText(env.stdout)
	}
	if err != nil {
		return err
	}
	return outcome.Judge()
}

// watch opens what the flags name. Without any, it is the process that listens at the target's port on this machine, if there is one,
// because a diagnosis needs it. port is 0 for a target elsewhere.
func (c *peakCmd) watch(env *environment, port int) (*watch.Set, error) {
	spec := watch.Spec(c.watchFlags)
	if !spec.Empty() {
		return watch.OpenSet(env.ctx, spec, env.log, port)
	}
	if port == 0 {
		return nil, nil
	}
	spec.Processes = []string{fmt.Sprintf("target=:%d", port)}
	set, err := watch.OpenSet(env.ctx, spec, env.log, port)
	if err != nil {
		return nil, nil // of another user, or behind a proxy of the kernel
	}
	return set, nil
}

// refuse returns an error for a flag of load that makes no sense here.
func (c *peakCmd) refuse() error {
	for _, flag := range []struct {
		given      bool
		name, hint string
	}{
		{c.Rate != "", "rate", "peak chooses the rates; --start is the first, and --max the highest"},
		{c.Duration != 0, "duration", "peak chooses the length of each probe; --max-time limits all"},
		{c.Requests != 0, "requests", "peak chooses the length of each probe; --max-time limits all"},
		{c.Abort != "", "abort", "a search has to see rates that fail"},
		{c.Part != "", "part", "peak makes the load on this host"},
	} {
		if flag.given {
			return fmt.Errorf("peak: remove --%s: %s", flag.name, flag.hint)
		}
	}
	return nil
}

func (c *peakCmd) options() peak.Options {
	return peak.Options{
		Options: load.Options{
			Target: c.Target, Amount: load.Amount{Warmup: c.Warmup}, Policy: c.Policy, HTTP: c.HTTP,
			Statement: c.Statement,
			Output:    load.Output{SLO: c.SLO, Out: c.Out, JSON: c.JSON, Label: c.Label, ReportInterval: time.Second, Allow: c.Allow},
			Sharing:   c.Sharing, Watched: c.Processes,
		},
		Precision: c.Precision, MaxTime: c.MaxTime, Start: c.Start, Max: c.Max, Knobs: c.Knob,
	}
}
