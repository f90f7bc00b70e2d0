package main

import (
	"errors"

	"spillway/internal/lab/doctor"
)

// doctorCmd checks a host, a database and a statement before a load.
type doctorCmd struct {
	doctor.Options
	JSON bool `name:"json" help:"Print one JSON document on standard output instead of the text."`
}

// Run checks and reports.
func (c *doctorCmd) Run(env *environment) error {
	r, err := doctor.Examine(env.ctx, c.Options, env.stderr, env.log)
	if err != nil && (r == nil || r.Query == nil) {
		return err
	}
	write := r.WriteText
	if c.JSON {
		write = r.WriteJSON
	}
	if writeErr := write(env.stdout); writeErr != nil || err != nil {
		return errors.Join(err, writeErr)
	}
	return r.Failure()
}
