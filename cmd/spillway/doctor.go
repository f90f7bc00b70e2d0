package main

import (
	"errors"
	"time"

	"spillway/internal/lab/doctor"
)

// doctorCmd checks a host, a database and a statement before a load.
type doctorCmd struct {
	doctorFlags
	JSON bool `name:"json" help:"Print one JSON document on standard output instead of the text."`
}

// doctorFlags has the fields of doctor.Options.
type doctorFlags struct {
	For    string `name:"for" filled:"" group:"The host" placeholder:"WORKLOAD" help:"Predict the effect of a load on ports, backlogs and files: 'rate=5000 short-connections', with any of per-connection=N, keep-alive, addresses=K, targets=M, closes=client|server, loopback|remote, service=5ms, duration=60s, stall=200ms."`
	Target string `group:"The host" placeholder:"URL" help:"The target of the load. Shows whether it is over loopback; on this host, also its listener's backlog and its process's file limits. With --for, an http:// target gets 33 GET requests, to find out which side closes connections first."`

	Database string `group:"The database" placeholder:"URL" help:"Check durability, memory and limits of postgres://…, mysql://… or sqlite:PATH. Read-only."`

	Query    string        `filled:"" group:"A statement" placeholder:"SQL" help:"Show the plan of a SELECT on --database, its expensive parts, and indexes to add."`
	Param    []string      `group:"A statement" sep:"none" placeholder:"NAME=VALUE" help:"Value of :NAME, or of the ? compared with column NAME. Repeatable. Without it, columns that must equal a value take one from the table."`
	Measure  bool          `group:"A statement" help:"Build each suggested index on a temporary copy of the table, never on the table itself, and time the statement with it."`
	CopyRows int64         `group:"A statement" default:"1000000" placeholder:"N" help:"Maximum number of rows in a copy. Default: 1000000."`
	Timeout  time.Duration `group:"A statement" default:"2m" help:"Limit for the whole analysis."`
}

// Help is shown below the flags.
func (c *doctorCmd) Help() string {
	return "Changes nothing; it prints the commands to run. The exit code is 1 if a check fails or the prediction is that ports run out."
}

// Run checks and reports.
func (c *doctorCmd) Run(env *environment) error {
	r, err := doctor.Examine(env.ctx, doctor.Options(c.doctorFlags), env.stderr, env.log)
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
