package plan

import (
	"encoding/json"
	"errors"
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
	From        []string // result files, and directories of experiments
	Variant     string   // of the experiments; "": the only one
	Rate        float64
	Hosts       int
	SLO         string
	Headroom    string // "30%" or "0.3"
	Connections string
	CPUs        map[string]float64
	Shared      []string
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

// ParseOptions parses the options of a plan as words, like 'rate=50000 headroom=50% connections=short', 'hosts=2'. From is empty.
func ParseOptions(text string) (Options, error) {
	o := Options{Headroom: "30%"}
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch name {
		case "rate":
			o.Rate, err = strconv.ParseFloat(value, 64)
		case "hosts":
			o.Hosts, err = strconv.Atoi(value)
		case "headroom":
			o.Headroom = value
		case "connections":
			o.Connections = value
		default:
			err = errors.New("unknown name")
		}
		if err != nil {
			return o, exit.UsageError(fmt.Errorf("--plan %q: %q: write rate=R or hosts=N, and headroom=30%% and connections=short|keep-alive "+
				"if needed", text, word))
		}
	}
	return o, nil
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
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, exit.UsageError(fmt.Errorf("%s is not the directory of a run of spillway experiment (it has no %s): name such a "+
			"directory, or result files", path, experiment.ManifestFile))
	}
	run, err := result.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, result.ErrNotResult) || errors.Is(err, result.ErrVersion) {
		err = exit.UsageError(err)
	}
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
	var m experiment.Manifest
	if err := readJSON(filepath.Join(dir, experiment.ManifestFile), &m); err != nil {
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
		var record experiment.Trial
		if err := readJSON(filepath.Join(trial, experiment.TrialFile), &record); err != nil {
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

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read experiment: %w", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
