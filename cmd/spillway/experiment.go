package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"spillway/internal/lab/experiment"
)

// experimentCmd compares variants of a system as a file says.
type experimentCmd struct {
	File string `arg:"" placeholder:"FILE" help:"The experiment."`

	Check   bool     `help:"Print the plan and how long it takes; start nothing."`
	Quick   bool     `help:"As the file's quick block says: ranges only, no claims."`
	Only    []string `placeholder:"VARIANT,…" help:"These variants, and what they are compared with."`
	Seed    uint64   `placeholder:"N" help:"Of the order of variants; 0 draws one. It is in the results."`
	Out     string   `short:"o" placeholder:"DIR" help:"Directory of the results. Default: NAME-DATE-TIME."`
	Resume  string   `placeholder:"DIR" help:"Go on with a run that was stopped or cut off; its options are kept."`
	Data    string   `default:"spillway-data" placeholder:"DIR" help:"Where services that say keep find their data again."`
	Install bool     `help:"Install missing Debian packages first (root)."`
	JSON    bool     `name:"json" help:"The study as one JSON document on standard output."`
}

// Help is shown below the flags.
func (experimentCmd) Help() string {
	return `Variants differ in one declared factor; they run in every block, in random order, with fresh processes. Whatever is started is stopped, whatever happens. docs/experiments.md explains the file.

Examples:
  spillway experiment experiments/freight-ladder/experiment.yaml --check
  spillway experiment experiments/freight-ladder/experiment.yaml --quick -o ladder
  spillway experiment experiments/freight-ladder/experiment.yaml --resume ladder`
}

// Run runs the experiment. All but checking happens in an inner process, so that what is started ends with it.
func (c *experimentCmd) Run(env *environment) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.Check {
		return c.check(env)
	}
	prefix := experiment.Inner()
	if prefix == "" {
		return guard(env)
	}
	return c.measure(env, prefix)
}

func (c *experimentCmd) validate() error {
	if c.Resume != "" && (c.Quick || len(c.Only) > 0 || c.Seed != 0 || c.Out != "" || c.Check) {
		return usageError{errors.New("experiment: --resume goes on with the options that the run was started with; give it alone")}
	}
	return nil
}

// guard runs the same command line again and waits for it.
func guard(env *environment) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("experiment: find this program: %w", err)
	}
	code, err := experiment.Guard(program, env.args, env.stdout, env.stderr)
	if err != nil {
		return fmt.Errorf("experiment: %w", err)
	}
	if code != exitOK {
		panic(exitPanic(code)) // the inner process has said why
	}
	return nil
}

func (c *experimentCmd) options() experiment.Options {
	if c.Seed == 0 {
		c.Seed = rand.Uint64()>>12 | 1 // every reader of the JSON can hold 52 bits
	}
	return experiment.Options{Quick: c.Quick, Only: c.Only, Seed: c.Seed}
}

// check prints the plan.
func (c *experimentCmd) check(env *environment) error {
	file, err := experiment.ReadFile(c.File)
	if err != nil {
		return experimentError(err)
	}
	o := c.options()
	if file, err = file.Apply(o); err != nil {
		return experimentError(err)
	}
	plan, err := file.Plan(filepath.Dir(c.File), o)
	if err != nil {
		return experimentError(err)
	}
	if err := printPlan(env.stdout, file, plan); err != nil {
		return err
	}
	if reason := file.RootFor(); reason != "" {
		return usageError{fmt.Errorf("experiment: %s", reason)}
	}
	_, err = file.Programs(env.ctx)
	return experimentError(err)
}

func printPlan(w io.Writer, file *experiment.File, plan *experiment.Plan) error {
	fmt.Fprintf(w, "%s: %s\n\n", file.Name, file.Title)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIANT\tCOMPARED WITH\tDIFFERS IN\tSERVICES")
	for _, v := range plan.Variants {
		differs := strings.Join(v.Differs, ", ")
		if v.Again {
			differs = "nothing (A/A)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", v.Name, v.Baseline, differs, strings.Join(v.Services, ", "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	names := make([]string, len(plan.Levels))
	for i, level := range plan.Levels {
		names[i] = level.Name
	}
	if file.Peak != nil {
		names = append(names, "peak")
	}
	fmt.Fprintf(w, "\nlevels: %s\n", strings.Join(names, ", "))
	for i, trials := range plan.Trials {
		order := make([]string, len(trials))
		for k, trial := range trials {
			order[k] = trial.Variant
		}
		fmt.Fprintf(w, "block %d: %s\n", i+1, strings.Join(order, ", "))
	}
	fmt.Fprintf(w, "%s\n", plan.Time(time.Now(), len(plan.Trials)))
	return nil
}

// measure runs the experiment in the inner process.
func (c *experimentCmd) measure(env *environment, prefix string) error {
	o := c.options()
	if err := c.install(env, o); err != nil {
		return err
	}
	config := experiment.Config{
		Options: o, Path: c.File, Dir: c.Resume, Resume: c.Resume != "", Data: c.Data, Tool: versionText(), Command: append([]string{"spillway"}, env.args...),
		Prefix: prefix, Progress: env.stderr,
	}
	if err := c.places(&config); err != nil {
		return err
	}
	outcome, err := experiment.Run(env.ctx, config)
	if err != nil && outcome == nil {
		return experimentError(err)
	}
	if err != nil {
		return fmt.Errorf("experiment: %w; go on with: spillway experiment %s --resume %s", err, c.File, config.Dir)
	}
	if err := c.show(env, outcome); err != nil {
		return err
	}
	if len(outcome.Failed) > 0 {
		return failedError{fmt.Errorf("experiment: %d of %d trials are not complete: see block.json in %s", len(outcome.Failed), outcome.Trials, outcome.Dir)}
	}
	return nil
}

// places fills in absolute paths: the inner process works in several folders.
func (c *experimentCmd) places(config *experiment.Config) error {
	if config.Dir == "" {
		config.Dir = c.Out
	}
	if config.Dir == "" {
		name := strings.TrimSuffix(filepath.Base(c.File), filepath.Ext(c.File))
		if file, err := experiment.ReadFile(c.File); err == nil {
			name = file.Name
		}
		config.Dir = name + time.Now().Format("-20060102-150405")
	}
	var err error
	if config.Spillway, err = os.Executable(); err != nil {
		return fmt.Errorf("experiment: find this program: %w", err)
	}
	for _, path := range []*string{&config.Dir, &config.Data} {
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("experiment: %w", err)
		}
	}
	return nil
}

// install installs what is missing, when it is told to.
func (c *experimentCmd) install(env *environment, o experiment.Options) error {
	if !c.Install {
		return nil
	}
	file, err := experiment.ReadFile(c.File)
	if err != nil {
		return experimentError(err)
	}
	_, err = file.Programs(env.ctx)
	var missing *experiment.MissingError
	if !errors.As(err, &missing) {
		return experimentError(err)
	}
	fmt.Fprintf(env.stderr, "experiment: %v\n", missing)
	if err := missing.Install(env.ctx, env.stderr); err != nil {
		return fmt.Errorf("experiment: %w", err)
	}
	return nil
}

// show prints what became of it.
func (c *experimentCmd) show(env *environment, outcome *experiment.Outcome) error {
	if c.JSON {
		study, err := experiment.ReadStudy(outcome.Dir)
		if err != nil {
			return fmt.Errorf("experiment: %w", err)
		}
		return study.WriteSummary(env.stdout)
	}
	_, err := fmt.Fprintf(env.stdout, "%d trials in %s\nspillway report %s\n", outcome.Trials, outcome.Dir, outcome.Dir)
	return err
}

// experimentError gives the user's mistakes their exit code.
func experimentError(err error) error {
	var (
		missing  *experiment.MissingError
		use      *experiment.UseError
		mistake  experiment.Mistake
		mistakes experiment.Mistakes
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing), errors.As(err, &use), errors.As(err, &mistake), errors.As(err, &mistakes):
		return usageError{fmt.Errorf("experiment: %w", err)}
	}
	return fmt.Errorf("experiment: %w", err)
}
