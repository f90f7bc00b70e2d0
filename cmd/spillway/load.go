package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"spillway"
	"spillway/internal/lab/cores"
	"spillway/internal/lab/live"
	"spillway/internal/lab/load"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
	"spillway/internal/lab/watch"
)

// loadCmd loads a target and reports the results.
type loadCmd struct {
	load.Options
	watch.Spec
	loadLive
}

// loadLive is how a run can be seen while it is under way.
type loadLive struct {
	Live    liveAddress `group:"Result" placeholder:"ADDR" help:"Serve the report page while the run is under way, and print its address. With =ADDR on that loopback address instead of a free port."`
	Metrics string      `group:"Result" placeholder:"ADDR" help:"Serve metrics for Prometheus at http://ADDR/metrics while the run is under way."`
}

// liveAddress is a flag whose value may be left out.
type liveAddress string

// Decode implements kong.MapperValue.
func (a *liveAddress) Decode(ctx *kong.DecodeContext) error {
	*a = live.Address
	if ctx.Scan.Peek().Type == kong.FlagValueToken {
		*a = liveAddress(ctx.Scan.Pop().String())
	}
	return nil
}

// IsBool implements kong.BoolMapperValue.
func (*liveAddress) IsBool() bool { return true }

// hooks returns what a load needs of this program, and what shows the load while it is under way, if the flags name an address.
func (l *loadLive) hooks(env *environment, pin bool) (hooks load.Hooks, show *live.Server, err error) {
	hooks.Find = func(spec string) (load.Process, error) { return watch.ParseProcess(spec) }
	if hooks.Keeper, err = keeper(pin); err != nil {
		return hooks, nil, err
	}
	render := func(w io.Writer, run *result.Run) error { return report.Write(w, report.HTML, []*result.Run{run}) }
	o := live.Options{Page: string(l.Live), Metrics: l.Metrics}
	if show, err = live.Open(o, render, func(text string) { fmt.Fprintln(env.stderr, text) }); o != (live.Options{}) {
		hooks.Follow = show.Follow
	}
	return hooks, show, err
}

// Run runs the load.
func (c *loadCmd) Run(env *environment) (err error) {
	o := c.Options
	o.Watched = c.Processes
	hooks, show, err := c.hooks(env, c.Pin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, show.Close()) }()
	var watched *watch.Set
	defer func() { watched.Close() }()
	if !c.Empty() {
		hooks.Watch = func() (_ load.Watcher, err error) {
			watched, err = watch.OpenSet(env.ctx, c.Spec, env.log, o.LocalPort())
			return watched, err
		}
	}
	run, err := load.Execute(env.ctx, o, hooks, result.NewHeader(spillway.Version(), env.args), env.stderr)
	if err != nil {
		return err
	}
	defer show.Finish(env.ctx)
	format := report.Text
	if c.JSON {
		format = report.JSON
	}
	if err := report.Write(env.stdout, format, []*result.Run{run}); err != nil {
		return err
	}
	if err := load.Judge(run); err != nil {
		return err
	}
	return load.Broken(run)
}

// keeper is the command that restores the cores of a pinned target, nil without --pin.
func keeper(pin bool) ([]string, error) {
	if !pin {
		return nil, nil
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return []string{program, "restore-cores"}, nil
}

// restoreCoresCmd restores the cores of a pinned target when the load that started it is gone.
type restoreCoresCmd struct{}

// Run reads what to restore from standard input.
func (restoreCoresCmd) Run(env *environment) error { return cores.Keep(os.Stdin, env.stdout) }
