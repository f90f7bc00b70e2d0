//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/experiments/process"
)

// flags are for every load.
func (o *options) flags() []string {
	if o.awake {
		return []string{"--awake"}
	}
	return nil
}

// A report is what one round of a scenario gave.
type report struct {
	verdict  string // in first place
	evidence string
	advice   string
	second   string  // verdict in second place, if there is one
	feasible float64 // highest rate that met the SLO
	missed   float64 // lowest rate that missed it
	took     time.Duration
	busy     float64 // share of the CPUs that other programs used before the start
	err      error   // there is no verdict
}

// try starts a scenario, measures it and ends it.
func (o *options) try(ctx context.Context, s scenario, round int) report {
	busy, err := awaitQuiet(ctx, o.quiet)
	if err != nil {
		return report{err: err}
	}
	began := time.Now()
	r, err := o.measure(ctx, s, round)
	r.took, r.busy, r.err = time.Since(began), busy, err
	return r
}

func (o *options) measure(ctx context.Context, s scenario, round int) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*o.maxTime+2*time.Minute)
	defer cancel()
	st, err := newStage(ctx, o.spillway)
	if err != nil {
		return report{}, err
	}
	defer st.close()
	set, err := s.start(st)
	if err != nil {
		return report{}, fmt.Errorf("start: %w", err)
	}
	file := filepath.Join(st.dir, "run.ndjson")
	set.flags = append(set.flags, o.flags()...)
	if o.sweep {
		if err := sweep(ctx, st, set, set.length(), time.Second, file); err != nil {
			return report{}, err
		}
		r, err := diagnoseFile(ctx, st, file)
		return r, errors.Join(err, o.keepFile(file, s.name, round))
	}
	r, err := o.search(ctx, st, set, file)
	return r, errors.Join(err, o.keepFile(file, s.name, round))
}

// spillwayCommand returns a command of spillway that runs where the setup says.
func (set *setup) spillwayCommand(st *stage, verb string, args ...string) process.Command {
	c := set.at
	c.Name = verb
	c.Args = slices.Concat([]string{st.spillway, verb}, args)
	return c
}

// search runs peak.
func (o *options) search(ctx context.Context, st *stage, set *setup, file string) (report, error) {
	args := slices.Concat([]string{set.url, "--slo", set.slo, "--max-time", o.maxTime.String(), "--json", "-o", file}, set.flags)
	p, err := st.start(set.spillwayCommand(st, "peak", args...))
	if err != nil {
		return report{}, err
	}
	out, code, err := p.Wait(ctx)
	if err != nil {
		return report{}, fmt.Errorf("peak: %w", err)
	}
	r, err := readPeak(out)
	if errors.Is(err, errNoBottleneck) { // a search without an answer names none, but its steps may show it
		found, err := diagnoseFile(ctx, st, file)
		found.feasible, found.missed = r.feasible, r.missed
		return found, err
	}
	if err != nil {
		return r, fmt.Errorf("peak: exit code %d: %w: %s", code, err, p.LogTail())
	}
	return r, nil
}

// length returns how long a step of a sweep takes: enough answers for a p95.
func (set *setup) length() time.Duration {
	return max(6*time.Second, time.Duration(400/float64(slices.Min(set.rates))*float64(time.Second)).Round(time.Second))
}

// sweep runs load at the rates of a setup.
func sweep(ctx context.Context, st *stage, set *setup, length, warmup time.Duration, file string) error {
	var rates []string
	for _, rate := range set.rates {
		rates = append(rates, strconv.Itoa(rate))
	}
	args := slices.Concat([]string{
		set.url, "--slo", set.slo, "--rate", strings.Join(rates, ","), "--duration", length.String(), "--warmup", warmup.String(), "-o", file,
	}, set.flags)
	p, err := st.start(set.spillwayCommand(st, "load", args...))
	if err != nil {
		return err
	}
	_, code, err := p.Wait(ctx)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if code != 0 && code != 1 && code != 4 {
		return fmt.Errorf("load: exit code %d: %s", code, p.LogTail())
	}
	return nil
}

// diagnoseFile runs diagnose on a result file.
func diagnoseFile(ctx context.Context, st *stage, file string) (report, error) {
	p, err := st.start(process.Command{Name: "diagnose", Args: []string{st.spillway, "diagnose", file, "--json"}})
	if err != nil {
		return report{}, err
	}
	out, code, err := p.Wait(ctx)
	if err != nil {
		return report{}, fmt.Errorf("diagnose: %w", err)
	}
	r, err := readDiagnosis(out)
	if err != nil {
		return r, fmt.Errorf("diagnose: exit code %d: %w: %s", code, err, p.LogTail())
	}
	return r, nil
}

// errNoBottleneck is the error of a document with an answer but without a verdict.
var errNoBottleneck = errors.New("the document names no bottleneck")

// readPeak reads the document of peak.
func readPeak(document []byte) (report, error) {
	var d struct {
		Feasible   float64 `json:"feasible_max_hz"`
		Infeasible float64 `json:"infeasible_min_hz"`
		Bottleneck *struct {
			Name     string `json:"name"`
			Sentence string `json:"sentence"`
			Advice   string `json:"advice"`
		} `json:"bottleneck"`
		Others []struct {
			Name string `json:"name"`
		} `json:"other_verdicts"`
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return report{}, fmt.Errorf("read document: %w", err)
	}
	r := report{feasible: d.Feasible, missed: d.Infeasible}
	if d.Bottleneck == nil || d.Bottleneck.Name == "" {
		return r, errNoBottleneck
	}
	r.verdict, r.evidence, r.advice = d.Bottleneck.Name, d.Bottleneck.Sentence, d.Bottleneck.Advice
	if len(d.Others) > 0 {
		r.second = d.Others[0].Name
	}
	return r, nil
}

// readDiagnosis reads the document of diagnose.
func readDiagnosis(document []byte) (report, error) {
	var d struct {
		Verdicts []struct {
			Name     string `json:"name"`
			Sentence string `json:"sentence"`
			Advice   string `json:"advice"`
		} `json:"verdicts"`
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return report{}, fmt.Errorf("read document: %w", err)
	}
	if len(d.Verdicts) == 0 {
		return report{}, errors.New("the document has no verdict")
	}
	r := report{verdict: d.Verdicts[0].Name, evidence: d.Verdicts[0].Sentence, advice: d.Verdicts[0].Advice}
	if len(d.Verdicts) > 1 {
		r.second = d.Verdicts[1].Name
	}
	return r, nil
}

// keepFile copies a result file to where -keep says.
func (o *options) keepFile(file, name string, round int) error {
	if o.keep == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.MkdirAll(o.keep, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(o.keep, fmt.Sprintf("%s-%d.ndjson", name, round+1)), text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep result file: %w", err)
	}
	return nil
}

// holdOne starts one scenario and waits.
func (o *options) holdOne(ctx context.Context, chosen []scenario, out io.Writer) error {
	if len(chosen) != 1 {
		return errors.New("-hold needs the name of one scenario: -list lists them")
	}
	st, err := newStage(ctx, o.spillway)
	if err != nil {
		return err
	}
	defer st.close()
	set, err := chosen[0].start(st)
	if err != nil {
		return err
	}
	network := set.at.Network
	if network == 0 {
		network = os.Getpid()
	}
	words := []string{"nsenter", "--net", "--target", strconv.Itoa(network)}
	if len(set.at.Cores) > 0 {
		words = append(words, "taskset", "--cpu-list", strings.Trim(strings.ReplaceAll(fmt.Sprint(set.at.Cores), " ", ","), "[]"))
	}
	words = append(words, o.spillway, "peak", set.url, "--slo", "'"+set.slo+"'")
	fmt.Fprintln(out, strings.Join(append(words, set.flags...), " "))
	if set.at.Group != "" {
		fmt.Fprintln(out, "# in the control group", set.at.Group)
	}
	<-ctx.Done()
	return nil
}
