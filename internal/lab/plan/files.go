package plan

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
)

// Options are the settings of `spillway plan`, as written on the command line.
type Options struct {
	From        []string           `filled:"" required:"" placeholder:"RUN,…" help:"Result files of load or peak with --watch, compressed or not, and directories of experiments. Repeatable."`
	Variant     string             `filled:"" placeholder:"NAME" help:"Variant of the experiments."`
	Rate        float64            `filled:"" placeholder:"R" help:"Good answers per second to plan for."`
	Hosts       int                `filled:"" placeholder:"N" help:"Instead of --rate: the highest rate of so many application hosts."`
	SLO         string             `filled:"" name:"slo" placeholder:"TEXT" help:"'p99<70ms errors<0.5%'. Default: that of the runs."`
	Headroom    string             `filled:"" default:"30%" placeholder:"SHARE" help:"Part of the rate that is added to it."`
	Connections string             `filled:"" placeholder:"short|keep-alive" help:"Use only steps with these connections: short is one per request. Default: all steps."`
	CPUs        map[string]float64 `name:"cpus" placeholder:"NAME=N" help:"Cores that a watched process could use, instead of what the run tells: app=0.5."`
	Shared      []string           `placeholder:"NAME" help:"Watched processes of which there is one for all application hosts, besides databases and Redis."`
}

// Execute reads the files and writes the plan to stdout, as text or JSON.
func Execute(o Options, asJSON bool, stdout io.Writer) error {
	p, err := Read(o)
	if err != nil {
		return err
	}
	if asJSON {
		return p.WriteJSON(stdout)
	}
	return p.WriteText(stdout)
}

// Read reads the files and plans.
func Read(o Options) (*Plan, error) {
	settings := Settings{
		RateHz: o.Rate, Hosts: o.Hosts, SLO: o.SLO, Connections: o.Connections, CPUs: o.CPUs, Shared: o.Shared,
	}
	var err error
	if settings.Headroom, err = parseHeadroom(o.Headroom); err != nil {
		return nil, exit.UsageError(err)
	}
	for name, n := range o.CPUs {
		if !(n > 0) || n > 1e5 {
			return nil, exit.UsageError(fmt.Errorf("--cpus %s=%g: write how many cores the process could use, as %s=0.5", name, n, name))
		}
	}
	sources, err := readSources(o.From, o.Variant)
	if err != nil {
		return nil, err
	}
	if err := settings.checkNames(sources); err != nil {
		return nil, exit.UsageError(err)
	}
	return Make(sources, settings)
}

// parseHeadroom parses 30% or 0.3.
func parseHeadroom(text string) (float64, error) {
	digits, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if percent {
		v /= 100
	}
	if err != nil || v > 1 && !percent {
		return 0, fmt.Errorf("--headroom %q: write a part of the rate, as 30%%", text)
	}
	return v, nil
}

// checkNames returns an error if the settings name a process that no run watched.
func (s *Settings) checkNames(sources []Source) error {
	var watched []string
	for _, source := range sources {
		for _, t := range source.Run.Series() {
			if t.Sampler == result.SamplerProcess {
				watched = append(watched, t.Subject)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.CPUs)) {
		if !slices.Contains(watched, name) {
			return fmt.Errorf("--cpus %s: no run watched a process of that name", name)
		}
	}
	for _, name := range s.Shared {
		if !slices.Contains(watched, name) {
			return fmt.Errorf("--shared %s: no run watched a process of that name", name)
		}
	}
	return nil
}

// readSources reads result files and experiments.
func readSources(from []string, variant string) ([]Source, error) {
	var sources []Source
	for _, path := range from {
		if experiment.IsStudy(path) {
			found, err := readStudy(path, variant)
			if err != nil {
				return nil, err
			}
			sources = append(sources, found...)
			continue
		}
		run, err := readRun(path)
		if err != nil {
			return nil, err
		}
		sources = append(sources, Source{File: path, Run: run})
	}
	return sources, nil
}

func readRun(path string) (*result.Run, error) {
	run, err := experiment.ReadRun(path)
	if err != nil {
		return nil, err
	}
	if err := run.Header.CheckWhole(); err != nil {
		return nil, exit.UsageError(fmt.Errorf("%s: %w", path, err))
	}
	return run, nil
}

// readStudy reads all result files of a variant of an experiment. Those of one trial are one search.
func readStudy(dir, variant string) ([]Source, error) {
	m, err := experiment.ReadManifest(dir)
	if err != nil {
		return nil, exit.UsageError(err)
	}
	var names []string
	for _, v := range m.Variants {
		names = append(names, v.Name)
	}
	if variant == "" && len(names) == 1 {
		variant = names[0]
	}
	if !slices.Contains(names, variant) {
		return nil, exit.UsageError(fmt.Errorf("%s has the variants %s: choose one with --variant", dir, strings.Join(names, ", ")))
	}
	shares := map[string]float64{}
	for _, h := range m.Hosts {
		shares[h.Name] = h.CPUs
	}
	files, err := fs.Glob(os.DirFS(dir), path.Join(experiment.BlocksDir, "*", variant, "*"+experiment.ResultSuffix))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var sources []Source
	for _, file := range files {
		file = filepath.Join(dir, file)
		run, err := readRun(file)
		if err != nil {
			return nil, err
		}
		trial := filepath.Dir(file)
		s := Source{File: file, Group: trial, Run: run, CPUs: map[string]Share{}}
		record, err := experiment.ReadTrial(trial)
		if err != nil {
			return nil, fmt.Errorf("%w; the trial did not end", err)
		}
		for _, service := range record.Services {
			if n := shares[service.Host]; n > 0 && service.Watched != "" {
				s.CPUs[service.Watched] = Share{Pool: "share " + service.Host, Cores: n}
			}
		}
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		return nil, exit.NothingValidError(fmt.Errorf("%s has no result file of the variant %s", dir, variant))
	}
	return sources, nil
}
