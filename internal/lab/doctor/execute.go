package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"spillway/internal/database"
	"spillway/internal/exit"
)

// Options are the settings of `spillway doctor`, as written on the command line.
type Options struct {
	For    string `name:"for" filled:"" group:"The host" placeholder:"WORKLOAD" help:"Predict the effect of a load on ports, backlogs and files: 'rate=5000 short-connections', with any of per-connection=N, keep-alive, addresses=K, targets=M, closes=client|server, loopback|remote, service=5ms, duration=60s, stall=200ms."`
	Target string `group:"The host" placeholder:"URL" help:"The target of the load. Shows whether it is over loopback; on this host, also its listener's backlog and its process's file limits. With --for, an http:// target gets 33 GET requests, to find out which side closes connections first."`

	Database string `group:"The database" placeholder:"URL" help:"Check durability, memory and limits of postgres://… or mysql://…. Read-only."`

	Query    string            `filled:"" group:"A statement" placeholder:"SQL" help:"Show the plan of a SELECT on --database, its expensive parts, and indexes to add."`
	Param    map[string]string `group:"A statement" mapsep:"none" placeholder:"NAME=VALUE" help:"Value of :NAME, or of the ? compared with column NAME. Repeatable. Without it, columns that must equal a value take one from the table."`
	Measure  bool              `group:"A statement" help:"Build each suggested index on a temporary copy of the table, never on the table itself, and time the statement with it."`
	CopyRows int64             `group:"A statement" default:"1000000" placeholder:"N" help:"Maximum number of rows in a copy. Default: 1000000."`
	Timeout  time.Duration     `group:"A statement" default:"2m" help:"Limit for the whole analysis."`
}

// request is the parsed Options.
type request struct {
	workload *Workload     // nil: none
	target   *Target       // nil: none
	database *database.URL // nil: none
}

// parse parses the options. Its errors are mistakes of the user.
func (o *Options) parse() (*request, error) {
	r := &request{}
	if o.Target != "" {
		target, err := ParseTarget(o.Target)
		if err != nil {
			return nil, fmt.Errorf("--target: %w", err)
		}
		r.target = &target
	}
	if o.For != "" {
		workload, err := ParseWorkload(o.For, r.target != nil && r.target.Loopback)
		if err != nil {
			return nil, fmt.Errorf("--for: %w", err)
		}
		r.workload = workload
	}
	if o.Database != "" {
		url, err := database.Parse(o.Database)
		if err != nil {
			return nil, err
		}
		if url.Driver == database.SQLite {
			return nil, errors.New("--database: name a server; of a SQLite file, spillway serve checks each statement at its start")
		}
		r.database = &url
	}
	switch {
	case o.Query != "" && r.database == nil:
		return nil, errors.New("--query requires --database")
	case o.Query == "" && (o.Measure || len(o.Param) > 0):
		return nil, errors.New("--measure and --param require --query")
	case o.CopyRows < 1:
		return nil, errors.New("--copy-rows must be at least 1")
	case o.Timeout <= 0:
		return nil, errors.New("--timeout must be positive")
	}
	return r, nil
}

// Examine checks what the options name and predicts the effect of the workload.
// It prints each step of the query's analysis to progress. If only measuring fails, the report comes with the error.
func Examine(ctx context.Context, o Options, progress io.Writer, log *slog.Logger) (*Report, error) {
	r, err := o.parse()
	if err != nil {
		return nil, exit.UsageError(err)
	}
	facts, err := ReadFacts("/")
	if err != nil {
		return nil, err
	}
	if r.target != nil && r.target.Loopback {
		if err := ReadListener(facts, r.target.Port); err != nil {
			log.Warn("the listener of --target cannot be read", "error", err)
		}
	}
	report := &Report{Host: facts}
	if w := r.workload; w != nil {
		if strings.HasPrefix(o.Target, "http://") && w.PerConnection > 0 && !w.ClosesGiven { // the sides matter, and it can be asked
			if w.Closing, err = ReadClosing(ctx, o.Target); err != nil {
				log.Warn("the target was not asked: the prediction assumes that the client closes first", "error", err)
			}
		}
		report.Prediction = Predict(facts, w)
		findings, err := report.Prediction.Findings(facts, w)
		if err != nil {
			return nil, err
		}
		report.Add(findings...)
	}
	findings, err := CheckHost(facts)
	if err != nil {
		return nil, err
	}
	report.Add(findings...)
	if r.database == nil {
		return report, nil
	}
	if report.Database, err = ReadServer(ctx, *r.database); err != nil {
		return nil, err
	}
	if findings, err = CheckServer(report.Database, facts); err != nil {
		return nil, err
	}
	report.Add(findings...)
	if o.Query == "" {
		return report, nil
	}
	report.Query, err = Analyze(ctx, *r.database, o, func(step string) { fmt.Fprintln(progress, step) })
	if errors.Is(err, ErrStatement) {
		err = exit.UsageError(err)
	}
	return report, err
}

// Failure returns an error with the code exit.Failed if a check failed.
func (r *Report) Failure() error {
	if r.Failed() {
		return exit.FailedError(errors.New("a check failed"))
	}
	return nil
}
