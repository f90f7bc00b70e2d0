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
	For      string // workload, see ParseWorkload
	Target   string // URL, see ParseTarget
	Database string // URL
	Query    string // SELECT on the database
	Param    []string
	Measure  bool
	CopyRows int64
	Timeout  time.Duration // of the analysis of the query
}

// request is the parsed Options.
type request struct {
	workload *Workload     // nil: none
	target   *Target       // nil: none
	database *database.URL // nil: none
	params   map[string]string
}

// parse parses the options. Its errors are mistakes of the user.
func (o *Options) parse() (*request, error) {
	r := &request{params: map[string]string{}}
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
	for _, param := range o.Param {
		name, value, ok := strings.Cut(param, "=")
		if !ok || name == "" {
			return nil, errors.New("--param must be NAME=VALUE")
		}
		r.params[name] = value
	}
	return r, nil
}

// asksClosing reports whether the prediction depends on which side closes first and the target can be asked.
func (o *Options) asksClosing(r *request) bool {
	return strings.HasPrefix(o.Target, "http://") && r.workload.PerConnection > 0 && !r.workload.ClosesGiven
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
	if r.workload != nil {
		if o.asksClosing(r) {
			if r.workload.Closing, err = ReadClosing(ctx, o.Target); err != nil {
				log.Warn("the target was not asked: the prediction assumes that the client closes first", "error", err)
			}
		}
		report.Prediction = Predict(facts, r.workload)
		report.Add(report.Prediction.Findings(facts, r.workload)...)
	}
	report.Add(CheckHost(facts)...)
	if r.database == nil {
		return report, nil
	}
	if report.Database, err = ReadServer(ctx, *r.database); err != nil {
		return nil, err
	}
	report.Add(CheckServer(report.Database, facts)...)
	if o.Query == "" {
		return report, nil
	}
	report.Query, err = Analyze(ctx, *r.database, QueryConfig{
		Statement: o.Query, Params: r.params, Measure: o.Measure, CopyRows: o.CopyRows, Timeout: o.Timeout,
		Progress: func(step string) { fmt.Fprintln(progress, step) },
	})
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
