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
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
	"spillway/internal/yaml"
)

// Flags are the settings of `spillway experiment`, as written on the command line, with tags of kong.
type Flags struct {
	File string `arg:"" placeholder:"FILE" help:"The experiment."`

	Check bool `help:"Print the plan and its duration; start nothing."`
	Options
	Out     string `short:"o" placeholder:"DIR" help:"Directory of the results. Default: NAME-DATE-TIME."`
	Resume  string `placeholder:"DIR" help:"Continue a run that was interrupted, with its options."`
	Data    string `default:"spillway-data" placeholder:"DIR" help:"Directory for the data of services with 'keep'."`
	Install bool   `help:"Install missing Debian packages first (requires root)."`
	JSON    bool   `name:"json" help:"Print the study as one JSON document on standard output."`
}

// Command is `spillway experiment`: its settings and its surroundings.
type Command struct {
	Flags

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
	prefix := inner()
	if prefix != "" {
		return 0, describe(c.measure(ctx, prefix))
	}
	program, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("experiment: find this program: %w", err)
	}
	code, err = guard(program, c.Args, c.Stdout, c.Stderr)
	return code, describe(err)
}

// describe names the command in the error and marks mistakes in the file.
func describe(err error) error {
	if err == nil {
		return nil
	}
	if errors.As(err, new(yaml.Error)) || errors.As(err, new(yaml.Errors)) {
		err = exit.UsageError(err)
	}
	return fmt.Errorf("experiment: %w", err)
}

func (c *Command) options(ctx context.Context) Options {
	o := c.Options
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
	if err := planSheet(file, plan).WriteText(c.Stdout); err != nil {
		return err
	}
	_, err = c.programs(ctx, file)
	return err
}

// programs checks that a run is possible here, and finds the programs that it needs, or installs them if Install is set.
func (c *Command) programs(ctx context.Context, file *File) ([]Program, error) {
	if err := file.checkRoot(); err != nil {
		return nil, exit.UsageError(err)
	}
	if _, err := file.divide(); err != nil {
		return nil, err
	}
	if advice := file.advice(); advice != "" {
		fmt.Fprintln(c.Stderr, advice)
	}
	programs, err := file.Programs(ctx)
	missing, ok := errors.AsType[*MissingError](err)
	if !c.Install || c.Check || !ok {
		return programs, err
	}
	fmt.Fprintf(c.Stderr, "experiment: %v\n", missing)
	if err := missing.Install(ctx, c.Stderr); err != nil {
		return nil, err
	}
	return file.Programs(ctx)
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

// planSheet is the plan for people.
func planSheet(file *File, plan *Plan) *sheet.Sheet {
	table := &sheet.Table{Heads: []string{"variant", "compared with", "differs in", "services"}, Left: []int{0, 1, 2, 3}}
	for _, v := range plan.Variants {
		differs := strings.Join(v.Differs, ", ")
		if v.Again {
			differs = "nothing (A/A)"
		}
		table.Add("", v.Name, v.Baseline, differs, strings.Join(v.Services, ", "))
	}
	var levels []string
	for _, level := range plan.Levels {
		levels = append(levels, level.Name)
	}
	if file.Peak != nil {
		levels = append(levels, PeakName)
	}
	order := []sheet.Fact{{Name: "levels", Value: strings.Join(levels, ", ")}}
	for i, trials := range plan.Trials {
		var variants []string
		for _, trial := range trials {
			variants = append(variants, trial.Variant)
		}
		order = append(order, sheet.Fact{Name: fmt.Sprintf("block %d", i+1), Value: strings.Join(variants, ", ")})
	}
	return &sheet.Sheet{
		Title:    file.Name + ": " + file.Title,
		Sections: []sheet.Section{{Table: table}, {Facts: order, Note: plan.Time(time.Now(), len(plan.Trials))}},
	}
}

// measure runs the experiment in the inner process.
func (c *Command) measure(ctx context.Context, prefix string) error {
	e, err := c.open(ctx, prefix)
	if err != nil {
		return err
	}
	lock, err := e.begin()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := e.run(ctx); err != nil {
		return fmt.Errorf("%w; continue with: spillway experiment %s --resume %s", err, c.File, e.dir)
	}
	study, err := ReadStudy(e.dir)
	if err != nil {
		return err
	}
	if c.JSON {
		err = study.WriteSummary(c.Stdout)
	} else {
		_, err = fmt.Fprintf(c.Stdout, "%d trials in %s\nspillway report %s\n", e.trials(), e.dir, e.dir)
	}
	if err != nil {
		return err
	}
	if len(e.failed) > 0 {
		return exit.FailedError(fmt.Errorf("%d of %d trials are not complete: see block.json in %s", len(e.failed), e.trials(), e.dir))
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
	m := &s.Manifest
	judged := m.SLO != "" || m.Peak != nil || slices.ContainsFunc(m.Levels, func(l LevelFacts) bool { return l.Flags["slo"] != "" })
	if runs[result.Valid] > 0 || len(runs) == 0 || !judged {
		return nil
	}
	var parts []string
	for _, validity := range slices.Sorted(maps.Keys(runs)) {
		parts = append(parts, fmt.Sprintf("%d %s", runs[validity], validity.Word()))
	}
	return exit.NothingValidError(fmt.Errorf("nothing valid was measured, so the SLO was not judged: runs are %s; 'spillway report' on "+
		"the directory has the reasons",
		strings.Join(parts, ", ")))
}
