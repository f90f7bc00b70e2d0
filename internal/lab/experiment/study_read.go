package experiment

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"spillway/internal/lab/result"
)

// ErrNotExperiment means that a directory does not hold an experiment's run.
var ErrNotExperiment = errors.New("not the directory of an experiment")

// IsStudy reports whether dir holds an experiment's run.
func IsStudy(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, ManifestFile))
	return err == nil && info.Mode().IsRegular()
}

// ReadStudy evaluates the run in dir. Missing, truncated or unreadable files become Problems. Only an unreadable manifest is an
// error: ErrNotExperiment if there is none.
func ReadStudy(dir string) (*Study, error) {
	study := &Study{Format: StudyFormat, Version: StudyVersion, Problems: []Problem{}}
	r := &studyReader{dir: filepath.Clean(dir), study: study, runs: map[cellKey][]levelFigures{}}
	if err := r.readManifest(); err != nil {
		return nil, err
	}
	var state State
	if err := readJSON(filepath.Join(dir, StateFile), &state); err == nil {
		study.Ended = state.Ended
	}
	study.Blocks, study.Charts = len(study.Manifest.Plan), study.Manifest.Charts
	for block := range study.Blocks {
		r.readBlock(block + 1)
	}
	study.setCells(r.runs)
	study.compare(r.runs)
	if len(study.Charts) == 0 {
		study.Charts = study.defaultCharts()
	}
	return study, nil
}

// A studyReader reads a directory file by file and keeps only the figures.
type studyReader struct {
	dir   string
	study *Study
	runs  map[cellKey][]levelFigures // by block, from the first
}

type cellKey struct{ variant, level string }

// levelFigures holds the figures of one result file or of one peak search.
type levelFigures struct {
	read       bool
	figures    map[string]float64
	atLeast    map[string]bool // figures that are lower bounds
	failing    bool            // the share of errors is above result.ErrorShareMax; of a peak: no rate met the SLO
	overloaded bool            // the target did not keep up
	validity   result.Validity
	errors     result.Errors
	statuses   map[int]int64
}

// of returns the figure of a metric, NaN if there is none.
func (l *levelFigures) of(metric string) float64 {
	if v, ok := l.figures[metric]; ok {
		return v
	}
	return math.NaN()
}

func (r *studyReader) readManifest() error {
	path := filepath.Join(r.dir, ManifestFile)
	m := &r.study.Manifest
	err := readJSON(path, m)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: it has no %s", r.dir, ErrNotExperiment, ManifestFile)
	case err != nil:
		return fmt.Errorf("read study: %w", err)
	case m.Format != Format:
		return fmt.Errorf("%s: %w: its %s does not have the format %s", r.dir, ErrNotExperiment, ManifestFile, Format)
	}
	return checkVersion(path, m.Version, Version)
}

// keep keeps the figures of a block.
func (r *studyReader) keep(block int, key cellKey, figures levelFigures) {
	if r.runs[key] == nil {
		r.runs[key] = make([]levelFigures, r.study.Blocks)
	}
	r.runs[key][block-1] = figures
}

// problem records a problem of a block.
func (r *studyReader) problem(missing bool, block int, variant, level, format string, args ...any) {
	// a committed summary must not name local paths
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), r.dir+string(filepath.Separator), "")
	r.study.Problems = append(r.study.Problems, Problem{Block: block, Variant: variant, Level: level, Missing: missing, Text: text})
}

func (r *studyReader) readBlock(block int) {
	whole := true
	for _, plan := range r.study.Manifest.Plan[block-1] {
		dir := filepath.Join(r.dir, BlocksDir, fmt.Sprintf("%03d", block), plan.Variant)
		trial, err := ReadTrial(dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("the trial was not run, or was cut off")
		}
		whole = whole && err == nil && trial.Complete
		if err != nil {
			r.problem(true, block, plan.Variant, "", "%v", err)
			continue
		}
		r.readTrial(dir, block, plan.Variant, &trial)
	}
	if whole {
		r.study.Whole++
	}
}

func (r *studyReader) readTrial(dir string, block int, variant string, trial *Trial) {
	if trial.Error != "" {
		r.problem(!trial.Complete, block, variant, "", "%s", trial.Error)
	}
	for _, service := range trial.Services {
		if service.Ended != "" {
			r.problem(false, block, variant, "", "service %s: %s", service.Name, service.Ended)
		}
	}
	for i := range trial.Levels {
		r.readLevel(dir, block, variant, &trial.Levels[i])
	}
	r.checkLevels(block, variant, trial)
	if trial.Peak != nil {
		r.readPeak(block, variant, trial.Peak)
	}
}

// checkLevels records planned levels that the trial did not run.
func (r *studyReader) checkLevels(block int, variant string, trial *Trial) {
	for _, level := range r.study.Manifest.Levels {
		ran := slices.ContainsFunc(trial.Levels, func(l LevelRun) bool { return l.Name == level.Name })
		if !ran {
			r.problem(true, block, variant, level.Name, "the level was not run")
		}
	}
	if r.study.Manifest.Peak != nil && trial.Peak == nil {
		r.problem(true, block, variant, "", "the peak was not searched")
	}
}

func (r *studyReader) readLevel(dir string, block int, variant string, level *LevelRun) {
	if level.Error != "" {
		r.problem(true, block, variant, level.Name, "%s", level.Error)
		return
	}
	if !level.Cooldown.Reached {
		r.problem(false, block, variant, level.Name, "the cool-down ended by its limit: TIME_WAIT or accept queues were not back to base")
	}
	figures, ended, err := readFigures(filepath.Join(dir, filepath.Base(level.File)))
	if err != nil {
		r.problem(true, block, variant, level.Name, "%v", err)
		return
	}
	if ended != "" {
		r.problem(false, block, variant, level.Name, "the load ended early: %s", ended)
	}
	r.keep(block, cellKey{variant, level.Name}, figures)
}

// readFigures reads the result file of a level. ended says how its own --abort ended it, "" if none did.
func readFigures(path string) (figures levelFigures, ended string, err error) {
	run, err := result.ReadFile(path)
	switch {
	case err != nil:
		return figures, "", err
	case run.CutOff != "":
		return figures, "", fmt.Errorf("the result file is cut off: %s", run.CutOff)
	case run.End.Reason != result.Finished && !run.End.Aborted:
		return figures, "", fmt.Errorf("the load ended early: %s", run.End.Reason)
	case len(run.Steps) != 1:
		return figures, "", fmt.Errorf("the result file has %d steps, not one", len(run.Steps))
	}
	figures, err = observe(run, 0)
	if err != nil || !run.End.Aborted {
		return figures, "", err
	}
	if !figures.failing {
		figures.validity = result.Unjudged // of a part of the time
	}
	return figures, run.End.Reason, nil
}

func (r *studyReader) readPeak(block int, variant string, peak *PeakRun) {
	if peak.Note != "" {
		r.problem(false, block, variant, "", "peak: %s", peak.Note)
	}
	figures := levelFigures{read: true, validity: peak.Validity}
	if proved := peak.Validity == result.Valid; proved || peak.Feasible > 0 { // otherwise nothing is known about the peak
		figures.figures = map[string]float64{MetricPeak: peak.Feasible}
		figures.failing = peak.Feasible == 0
		figures.atLeast = map[string]bool{MetricPeak: peak.Feasible > 0 && peak.Infeasible == 0}
	}
	r.keep(block, cellKey{variant, ""}, figures)
}
