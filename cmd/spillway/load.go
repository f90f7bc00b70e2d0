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
	Target string `arg:"" optional:"" name:"url" help:"http://, https://, http+unix://SOCKET%2FPATH/, postgres://, mysql://, redis:// or rediss://."`
	load.Amount
	load.Policy
	load.HTTP
	watchFlags
	load.Statement
	load.Output
	load.Parts
	loadLive
	load.Sharing
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

// open serves what was asked for. show is nil if nothing was.
func (l *loadLive) open(env *environment) (show *live.Server, err error) {
	if l.Live == "" && l.Metrics == "" {
		return nil, nil
	}
	render := func(w io.Writer, run *result.Run) error { return report.Write(w, report.HTML, []*result.Run{run}) }
	return live.Open(live.Options{Page: string(l.Live), Metrics: l.Metrics}, render, func(text string) { fmt.Fprintln(env.stderr, text) })
}

// Help is shown below the flags.
func (loadCmd) Help() string {
	return `Latency counts from the intended start, including the wait for a connection. Each step states whether it measured the target (VALID) or something else.

Examples:
  spillway load http://127.0.0.1:8080/goodslist --rate 100,200,500 --duration 30s --per-connection 1 --slo 'p99<70ms errors<0.5%'
  spillway load http://127.0.0.1:8080/goodslist -c 32 -o run.ndjson --watch app=:8080 --watch db=:5432 --watch-db postgres://app@db/shop
  spillway load postgres://app@db/shop --sql 'SELECT * FROM goods WHERE id = :id' --param 'id=random(1,1000)' -c 1,4,50`
}

// Run runs the load.
func (c *loadCmd) Run(env *environment) (err error) {
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
	if spec := watch.Spec(c.watchFlags); !spec.Empty() {
		hooks.Watch = func() (_ load.Watcher, err error) {
			watched, err = watch.OpenSet(env.ctx, spec, env.log, o.LocalPort())
			return watched, err
		}
	}
	run, err := load.Execute(env.ctx, o, hooks, result.NewHeader(spillway.Version(), env.args), env.stderr)
	if err != nil {
		return err
	}
	if show != nil {
		defer show.Finish(env.ctx)
	}
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

func (c *loadCmd) options() load.Options {
	return load.Options{
		Target: c.Target, Amount: c.Amount, Policy: c.Policy, HTTP: c.HTTP, Statement: c.Statement, Output: c.Output, Parts: c.Parts,
		Sharing: c.Sharing, Watched: c.Processes,
	}
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
