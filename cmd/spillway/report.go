package main

import (
	"spillway/internal/lab/diagnose"
	"spillway/internal/lab/plan"
	"spillway/internal/lab/report"
)

// reportCmd turns result files into tables, text formats or a page.
type reportCmd struct{ report.FilesOptions }

// Run reads the files and writes the report.
func (c *reportCmd) Run(env *environment) error {
	return report.WriteFiles(c.FilesOptions, env.stdout, env.log)
}

// diagnoseCmd names what stops a service.
type diagnoseCmd struct{ diagnose.Options }

// Run reads the file and writes the verdicts.
func (c *diagnoseCmd) Run(env *environment) error {
	return diagnose.WriteFile(c.Options, env.stdout)
}

// planCmd plans the machines for a rate from result files.
type planCmd struct {
	plan.Options
	More []string `arg:"" optional:"" name:"run" help:"More runs, so that --from runs/*.ndjson works."`
	JSON bool     `name:"json" help:"Print one JSON document on standard output instead of the text."`
}

// Run reads the files and writes the plan.
func (c *planCmd) Run(env *environment) error {
	c.From = append(c.From, c.More...)
	return plan.Execute(c.Options, c.JSON, env.stdout)
}
