package main

import "spillway/internal/lab/plan"

// planCmd plans the machines for a rate from result files.
type planCmd struct {
	planFlags
	More []string `arg:"" optional:"" name:"run" help:"More runs, so that --from runs/*.ndjson works."`
	JSON bool     `name:"json" help:"Print one JSON document on standard output instead of the text."`
}

// planFlags has the fields of plan.Options.
type planFlags struct {
	From        []string           `filled:"" required:"" placeholder:"RUN,…" help:"Result files of load or peak with --watch, compressed or not, and directories of experiments. Repeatable."`
	Variant     string             `filled:"" placeholder:"NAME" help:"Variant of the experiments."`
	Rate        float64            `filled:"" placeholder:"R" help:"Good answers per second to plan for."`
	Hosts       int                `filled:"" placeholder:"N" help:"Instead of --rate: the highest rate of so many application hosts."`
	SLO         string             `filled:"" name:"slo" placeholder:"TEXT" help:"'p99<70ms errors<0.5%'. Default: that of the runs."`
	Headroom    string             `filled:"" default:"30%" placeholder:"SHARE" help:"Part of the rate that is added to it."`
	Connections string             `filled:"" placeholder:"short|keep-alive" help:"Use only steps with these connections: short is one per request. Default: all steps."`
	CPUs        map[string]float64 `name:"cpus" placeholder:"NAME=N" help:"Cores that a watched process could use, instead of what the run tells: app=0.5."`
	Shared      []string           `placeholder:"NAME" help:"Watched processes of which there is one for all application hosts, besides databases and Redis."`
}

// Help is shown below the flags.
func (planCmd) Help() string {
	return `Each line names the figure that it rests on. Only VALID steps count.

Examples:
  spillway load http://app-1/goodslist --rate 500,1000,2000,4000 --slo 'p99<70ms' --watch-from http://app-1:9191 -o run.ndjson
  spillway plan --from run.ndjson --rate 50000 --headroom 30%
  spillway plan --from run.ndjson --hosts 2`
}

// Run reads the files and writes the plan.
func (c *planCmd) Run(env *environment) error {
	c.From = append(c.From, c.More...)
	return plan.Execute(plan.Options(c.planFlags), c.JSON, env.stdout)
}
