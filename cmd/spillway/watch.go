package main

import (
	"spillway"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
	"spillway/internal/lab/watch"
)

// watchCmd records what happens on a host, or serves other hosts.
type watchCmd struct{ watch.Options }

// Run watches until it is interrupted.
func (c *watchCmd) Run(env *environment) error {
	if err := c.Validate(); err != nil {
		return err
	}
	lines, format := env.stdout, report.Text
	if c.JSON {
		lines, format = env.stderr, report.JSON
	}
	header := result.NewHeader(spillway.Version(), env.args)
	header.Label = c.Label
	run, err := watch.Execute(env.ctx, c.Options, header, lines, env.stderr, env.log)
	if err != nil || run == nil {
		return err
	}
	return report.Write(env.stdout, format, []*result.Run{run})
}
