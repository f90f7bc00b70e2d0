package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"spillway/internal/database"
	"spillway/internal/lab/doctor"
)

// doctorCmd looks at a host, a database and a statement before a load does.
type doctorCmd struct {
	For    string `name:"for" group:"The host" placeholder:"WORKLOAD" help:"Predict what a load does to ports, backlogs and files: 'rate=5000 short-connections', with any of per-connection=N, keep-alive, addresses=K, targets=M, closes=client|server, loopback|remote, service=5ms, duration=60s, stall=200ms."`
	Target string `group:"The host" placeholder:"URL" help:"What will be loaded: says whether it is over loopback, and on this host adds its listener's backlog and its process's file limits."`
	Write  string `group:"The host" placeholder:"FILE" help:"Write a sysctl.d file with the settings that need changing, and why. Nothing is applied."`

	Database string `group:"The database" placeholder:"URL" help:"Check durability, memory and limits of postgres://…, mysql://… or sqlite:PATH. Only read."`

	Query    string        `group:"A statement" placeholder:"SQL" help:"Show the plan of a SELECT on --database, what is expensive in it, and the indexes it suggests."`
	Param    []string      `group:"A statement" sep:"none" placeholder:"NAME=VALUE" help:"The value of :NAME, or of the ? compared with column NAME; may be repeated. Columns that must equal a value take one from the table without it."`
	Measure  bool          `group:"A statement" help:"Build each candidate on a temporary copy of the table, never on the table itself, and time the statement with it."`
	CopyRows int64         `group:"A statement" default:"1000000" placeholder:"N" help:"Rows of a copy at most. Default: 1000000."`
	Timeout  time.Duration `group:"A statement" default:"2m" help:"Of the whole analysis. Default: 2m."`

	JSON bool `name:"json" help:"One JSON document on standard output in place of the text."`
}

// Help is what --help says besides the flags.
func (c *doctorCmd) Help() string {
	return "Changes nothing: it prints the commands. Exit code 1 when a check failed or the prediction says that ports run out."
}

// Run checks and reports.
func (c *doctorCmd) Run(env *environment) error {
	p, err := c.plan()
	if err != nil {
		return usageError{err}
	}
	report, err := c.examine(env, p)
	if err != nil {
		if errors.Is(err, doctor.ErrStatement) {
			return usageError{err}
		}
		return err
	}
	if c.JSON {
		err = report.WriteJSON(env.stdout)
	} else {
		err = report.WriteText(env.stdout)
	}
	if err != nil {
		return err
	}
	if err := c.write(env, report); err != nil {
		return err
	}
	if report.Failed() {
		return failedError{errors.New("a check failed")}
	}
	return nil
}

// doctorPlan is the command line, read.
type doctorPlan struct {
	workload *doctor.Workload // nil: none
	target   *doctor.Target   // nil: none
	url      *database.URL    // nil: none
	params   map[string]string
}

// plan reads the flags; its errors are the user's mistakes.
func (c *doctorCmd) plan() (*doctorPlan, error) {
	p := &doctorPlan{params: map[string]string{}}
	if c.Target != "" {
		target, err := doctor.ParseTarget(c.Target)
		if err != nil {
			return nil, fmt.Errorf("--target: %w", err)
		}
		p.target = &target
	}
	if c.For != "" {
		workload, err := doctor.ParseWorkload(c.For, p.target != nil && p.target.Loopback)
		if err != nil {
			return nil, fmt.Errorf("--for: %w", err)
		}
		p.workload = workload
	}
	if c.Database != "" {
		url, err := database.Parse(c.Database)
		if err != nil {
			return nil, err
		}
		p.url = &url
	}
	switch {
	case c.Query != "" && p.url == nil:
		return nil, errors.New("--query needs --database")
	case c.Query == "" && (c.Measure || len(c.Param) > 0):
		return nil, errors.New("--measure and --param need --query")
	case c.CopyRows < 1:
		return nil, errors.New("--copy-rows must be at least 1")
	case c.Timeout <= 0:
		return nil, errors.New("--timeout must be longer than nothing")
	}
	for _, param := range c.Param {
		name, value, ok := strings.Cut(param, "=")
		if !ok || name == "" {
			return nil, errors.New("--param is written NAME=VALUE")
		}
		p.params[name] = value
	}
	return p, nil
}

// examine reads the facts and judges them.
func (c *doctorCmd) examine(env *environment, p *doctorPlan) (*doctor.Report, error) {
	facts, err := doctor.ReadFacts("/")
	if err != nil {
		return nil, err
	}
	if p.target != nil && p.target.Loopback {
		if err := doctor.ReadListener(facts, p.target.Port); err != nil {
			env.log.Warn("the listener of --target cannot be read", "error", err)
		}
	}
	report := &doctor.Report{Host: facts}
	if p.workload != nil {
		report.Prediction = doctor.Predict(facts, p.workload)
		report.Add(report.Prediction.Findings(facts, p.workload)...)
	}
	report.Add(doctor.CheckHost(facts)...)
	if p.url == nil {
		return report, nil
	}
	if report.Database, err = doctor.ReadServer(env.ctx, *p.url); err != nil {
		return nil, err
	}
	report.Add(doctor.CheckServer(report.Database, facts)...)
	if c.Query == "" {
		return report, nil
	}
	report.Query, err = doctor.Analyze(env.ctx, *p.url, doctor.QueryConfig{
		Statement: c.Query, Params: p.params, Measure: c.Measure, CopyRows: c.CopyRows, Timeout: c.Timeout,
		Progress: func(step string) { fmt.Fprintln(env.stderr, step) },
	})
	return report, err
}

// write writes the sysctl file that was asked for.
func (c *doctorCmd) write(env *environment, report *doctor.Report) error {
	if c.Write == "" {
		return nil
	}
	n, err := report.WriteSysctl(c.Write)
	switch {
	case errors.Is(err, doctor.ErrForeignFile):
		return usageError{err}
	case err != nil:
		return err
	case n == 0:
		fmt.Fprintf(env.stderr, "no setting needs changing: %s is not written\n", c.Write)
	default:
		fmt.Fprintf(env.stderr, "%s holds %d settings; read it, then install it in /etc/sysctl.d\n", c.Write, n)
	}
	return nil
}
