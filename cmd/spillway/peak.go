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
	Target string        `arg:"" optional:"" name:"url" help:"As for load: http://, https://, postgres://, mysql://, redis://, …"`
	SLO    string        `filled:"" group:"Search" name:"slo" placeholder:"TEXT" help:"What the target has to meet: 'p99<70ms errors<0.5%'. Required."`
	Warmup time.Duration `group:"Search" help:"Least warm-up of each probe; the search chooses longer ones as needed."`
	peak.Flags
	load.Policy
	load.HTTP
	watch.Spec
	load.Statement
	Out   string   `group:"Result" short:"o" placeholder:"FILE" help:"Write a result file with a step per probe; .gz is compressed. 'spillway report FILE' shows it."`
	JSON  bool     `group:"Result" name:"json" help:"Print one JSON document on standard output instead of the text."`
	Label string   `group:"Result" help:"Name of this search in reports."`
	Allow []string `group:"Result" placeholder:"HOST" help:"Public host that you may load. Without it, only this machine and private addresses are allowed."`
	loadLive
	load.Sharing

	// Flags of load that a search decides itself or has no use for.
	Rate     string        `hidden:""`
	Duration time.Duration `hidden:"" short:"d"`
	Requests int64         `hidden:"" short:"n"`
	Abort    string        `hidden:""`
	Part     string        `hidden:""`
}

// Run runs the search.
func (c *peakCmd) Run(env *environment) (err error) {
	if err := c.refuse(); err != nil {
		return exit.UsageError(err)
	}
	o := c.options()
	hooks, show, err := c.hooks(env, c.Pin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, show.Close()) }()
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
	defer show.Finish(env.ctx)
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
	spec := c.Spec
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
		Flags: c.Flags,
	}
}
