package experiment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

// Command is `spillway experiment`: its settings, as written on the command line,
// and its surroundings.
type Command struct {
	File    string
	Check   bool // print the plan only
	Quick   bool
	Only    []string // variants
	Seed    uint64   // 0: draw one
	Out     string   // directory of the results; "": named after the experiment and the time
	Resume  string   // directory of a run to continue
	Data    string   // directory of data that services keep
	Install bool     // install missing packages first
	JSON    bool     // print the study instead of its directory

	// CheckLoad returns what is wrong with arguments of `spillway load`, the URL first; it does not connect.
	CheckLoad func(ctx context.Context, args []string) error

	Tool           string   // version of this program
	Args           []string // command line, without the program's name
	Stdout, Stderr io.Writer
}

// Execute runs the command. Except for Check it runs in an inner process, so that
// everything that it starts ends with it: Execute starts that process and returns
// its exit code.
func (c *Command) Execute(ctx context.Context) (code int, err error) {
	if c.Resume != "" && (c.Quick || len(c.Only) > 0 || c.Seed != 0 || c.Out != "" || c.Check) {
		return 0, exit.UsageError(errors.New("experiment: --resume keeps the options of the run; remove the other options"))
	}
	c.Seed = cmp.Or(c.Seed, rand.Uint64()>>12|1) // 52 bits are exact in every JSON reader
	if c.Check {
		return 0, describe(c.check(ctx))
	}
	prefix := Inner()
	if prefix != "" {
		return 0, describe(c.measure(ctx, prefix))
	}
	program, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("experiment: find this program: %w", err)
	}
	code, err = Guard(program, c.Args, c.Stdout, c.Stderr)
	return code, describe(err)
}

// describe names the command in the error and marks mistakes of the user.
func describe(err error) error {
	var (
		missing  *MissingError
		use      *UseError
		mistake  Mistake
		mistakes Mistakes
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing), errors.As(err, &use), errors.As(err, &mistake), errors.As(err, &mistakes):
		err = exit.UsageError(err)
	}
	return fmt.Errorf("experiment: %w", err)
}

func (c *Command) options(ctx context.Context) Options {
	o := Options{Quick: c.Quick, Only: c.Only, Seed: c.Seed}
	if c.CheckLoad != nil {
		o.CheckLoad = func(args []string) error {
			return inFolder(filepath.Dir(c.File), func() error { return c.CheckLoad(ctx, args) })
		}
	}
	return o
}

// inFolder calls f in a folder: a load runs in that of the file, and its arguments may name files by relative paths.
func inFolder(folder string, f func() error) error {
	before, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find working directory: %w", err)
	}
	if err := os.Chdir(folder); err != nil {
		return fmt.Errorf("enter the folder of the experiment: %w", err)
	}
	return errors.Join(f(), os.Chdir(before))
}

// check prints the plan and looks for the programs that it needs. It checks the quick block as well.
func (c *Command) check(ctx context.Context) error {
	file, err := ReadFile(c.File)
	if err != nil {
		return err
	}
	source, err := filepath.Abs(filepath.Dir(c.File))
	if err != nil {
		return err
	}
	options := c.options(ctx)
	if file.Quick != nil && !options.Quick {
		quick := options
		quick.Quick = true
		if _, _, err := file.applied(source, quick); err != nil {
			return err
		}
	}
	file, plan, err := file.applied(source, options)
	if err != nil {
		return err
	}
	if err := printPlan(c.Stdout, file, plan); err != nil {
		return err
	}
	if reason := file.RootFor(); reason != "" {
		return &UseError{reason}
	}
	if _, err := file.divide(); err != nil {
		return err
	}
	if advice := file.advice(); advice != "" {
		fmt.Fprintln(c.Stderr, advice)
	}
	_, err = file.Programs(ctx)
	return err
}

// applied returns the file with the options applied, and its plan.
func (f *File) applied(source string, o Options) (*File, *Plan, error) {
	file, err := f.Apply(o)
	if err != nil {
		return nil, nil, err
	}
	plan, err := file.Plan(source, o)
	return file, plan, err
}

func printPlan(w io.Writer, file *File, plan *Plan) error {
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
func (c *Command) measure(ctx context.Context, prefix string) error {
	if err := c.install(ctx); err != nil {
		return err
	}
	config := Config{
		Options: c.options(ctx), Path: c.File, Dir: c.Resume, Resume: c.Resume != "", Data: c.Data, Tool: c.Tool,
		Command: append([]string{"spillway"}, c.Args...), Prefix: prefix, Progress: c.Stderr,
	}
	if err := c.setPaths(&config); err != nil {
		return err
	}
	outcome, err := Run(ctx, config)
	if err != nil && outcome == nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w; continue with: spillway experiment %s --resume %s", err, c.File, config.Dir)
	}
	study, err := ReadStudy(outcome.Dir)
	if err != nil {
		return err
	}
	if err := c.printOutcome(outcome, study); err != nil {
		return err
	}
	if len(outcome.Failed) > 0 {
		return exit.FailedError(fmt.Errorf("%d of %d trials are not complete: see block.json in %s", len(outcome.Failed), outcome.Trials,
			outcome.Dir))
	}
	return study.nothingValid()
}

// nothingValid returns an error with the code exit.NothingValid if an SLO was given and no run is VALID.
func (s *Study) nothingValid() error {
	runs := make(map[result.Validity]int)
	for i := range s.Cells {
		for validity, n := range s.Cells[i].Validity {
			runs[validity] += n
		}
	}
	if runs[result.Valid] > 0 || len(runs) == 0 || !s.hasSLO() {
		return nil
	}
	var parts []string
	for _, validity := range slices.Sorted(maps.Keys(runs)) {
		parts = append(parts, fmt.Sprintf("%d %s", runs[validity], cmp.Or(validity, "not judged")))
	}
	return exit.NothingValidError(fmt.Errorf("nothing valid was measured, so the SLO was not judged: runs are %s; 'spillway report' on "+
		"the directory has the reasons",
		strings.Join(parts, ", ")))
}

// hasSLO reports whether the run judges an SLO.
func (s *Study) hasSLO() bool {
	m := &s.Manifest
	return m.SLO != "" || m.Peak != nil || slices.ContainsFunc(m.Levels, func(l LevelFacts) bool { return l.Flags["slo"] != "" })
}

// setPaths sets absolute paths, because the inner process works in several
// directories.
func (c *Command) setPaths(config *Config) error {
	config.Dir = cmp.Or(config.Dir, c.Out)
	if config.Dir == "" {
		name := strings.TrimSuffix(filepath.Base(c.File), filepath.Ext(c.File))
		if file, err := ReadFile(c.File); err == nil {
			name = file.Name
		}
		config.Dir = name + time.Now().Format("-20060102-150405")
	}
	var err error
	if config.Spillway, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	for _, path := range []*string{&config.Dir, &config.Data} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return nil
}

// install installs missing packages if Install is set.
func (c *Command) install(ctx context.Context) error {
	if !c.Install {
		return nil
	}
	file, err := ReadFile(c.File)
	if err != nil {
		return err
	}
	_, err = file.Programs(ctx)
	var missing *MissingError
	if !errors.As(err, &missing) {
		return err
	}
	fmt.Fprintf(c.Stderr, "experiment: %v\n", missing)
	return missing.Install(ctx, c.Stderr)
}

// printOutcome prints the study as JSON, or where the results are.
func (c *Command) printOutcome(outcome *Outcome, study *Study) error {
	if c.JSON {
		return study.WriteSummary(c.Stdout)
	}
	_, err := fmt.Fprintf(c.Stdout, "%d trials in %s\nspillway report %s\n", outcome.Trials, outcome.Dir, outcome.Dir)
	return err
}
