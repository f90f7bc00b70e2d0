package main

import "spillway/internal/lab/diagnose"

// diagnoseCmd names what stops a service.
type diagnoseCmd struct {
	File    string `arg:"" help:"Result file of load, peak or watch."`
	Passing string `filled:"" placeholder:"STEP" help:"Step that held: its name (800/s) or its number from 0. Default: the heaviest VALID one below the failing one."`
	Failing string `filled:"" placeholder:"STEP" help:"Step that did not hold. Default: the lightest that missed the SLO."`
	JSON    bool   `name:"json" help:"Print one JSON document."`
}

// Help is shown below the flags.
func (diagnoseCmd) Help() string {
	return `Compares what was used in both steps, and prints verdicts with their evidence, the likeliest first. The more was watched, the more it can tell.

Examples:
  spillway load http://127.0.0.1:8080/ --rate 100,800 --slo 'p99<70ms' --watch app=:8080 --watch db=:5432 --watch-db postgres://app@127.0.0.1/shop -o run.ndjson
  spillway diagnose run.ndjson
  spillway watch --watch app=:8080 -o watch.ndjson
  spillway diagnose watch.ndjson`
}

// Run reads the file and writes the verdicts.
func (c *diagnoseCmd) Run(env *environment) error {
	return diagnose.WriteFile(diagnose.Options(*c), env.stdout)
}
