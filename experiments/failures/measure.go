//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/experiments/process"
	"spillway/internal/lab/result"
)

// try runs a failure and its cures, each in every round with fresh programs.
func (o *options) try(ctx context.Context, s *scenario) (*failure, error) {
	f := &failure{Name: s.name, Commit: commit(), Busy: o.busy, Expect: s.expect}
	all := append([]variant{{name: "base", title: "the failure"}}, s.cures...)
	for range o.rounds {
		for _, v := range all {
			if o.busy && v.name != "base" || o.only != "" && !slices.Contains(strings.Split(o.only, ","), v.name) {
				continue
			}
			set, err := s.with(v)
			if err != nil {
				return nil, err
			}
			one, err := o.measure(ctx, s, v, set)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			f.add(v, one)
		}
	}
	return f, nil
}

// measure starts a variant, predicts, loads it and reads what came of it.
func (o *options) measure(ctx context.Context, s *scenario, v variant, set settings) (one *run, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	st := newStage(ctx, o, set.sysctls()...)
	defer func() { err = errors.Join(err, st.close()) }()
	t := s.start(st, set)
	one = &run{}
	if s.predict != nil && st.err == nil {
		st.files = set.loadFiles()
		if p := s.predict(st, set, t); p.Text != "" {
			one.Predicted = &p
		}
		st.files = 0
	}
	if o.busy {
		for range 2 {
			st.start(process.Command{Name: "loop", Args: []string{"sh", "-c", "while :; do :; done"}})
		}
	}
	if st.err == nil && t.side != nil {
		done := make(chan struct{})
		side, stop := context.WithCancel(ctx)
		go func() { defer close(done); beside := *st; beside.ctx = side; t.side(&beside, set) }()
		defer func() { stop(); <-done }()
	}
	file := filepath.Join(st.dir, "run.ndjson")
	if o.keepRuns != "" {
		file = st.abs(filepath.Join(o.keepRuns, fmt.Sprintf("%s-%s-%d.ndjson", s.name, v.name, time.Now().Unix())))
	}
	flags := s.flags(set)
	if i := slices.Index(flags, "-d"); o.level != "" {
		flags[i+1] = o.level
	}
	st.load(slices.Concat([]string{st.abs(o.spillway), "load", t.url, "-o", file}, flags, t.flags), set)
	var diagnosis struct {
		Verdicts []struct{ Name, Sentence string }
	}
	if out := st.inside(st.network, st.abs(o.spillway), "diagnose", file, "--json"); st.err == nil {
		st.check(json.Unmarshal(out, &diagnosis))
	}
	if st.err != nil {
		return nil, st.err
	}
	for _, found := range diagnosis.Verdicts {
		one.Verdicts = append(one.Verdicts, found.Name)
	}
	one.Sentence = diagnosis.Verdicts[0].Sentence
	one.Logged = st.logged(t.logs)
	return one, one.read(file)
}

// sysctls are the settings of the kernel.
func (s settings) sysctls() []string {
	var all []string
	for _, key := range []string{
		"net.ipv4.ip_local_port_range", "net.ipv4.tcp_tw_reuse", "net.ipv4.tcp_max_tw_buckets",
		"net.core.somaxconn",
	} {
		if value, ok := s[key]; ok {
			all = append(all, key+"="+strings.ReplaceAll(value, "-", " "))
		}
	}
	return all
}

// flags are those of load: a word with {KEY} has that setting.
func (s *scenario) flags(set settings) []string {
	var all []string
	for _, word := range s.load {
		for key, value := range set {
			word = strings.ReplaceAll(word, "{"+key+"}", value)
		}
		all = append(all, word)
	}
	return all
}

// loadFiles is the limit of open files of the load.
func (s settings) loadFiles() int {
	if n, err := strconv.Atoi(s["load-files"]); err == nil {
		return n
	}
	return 16384
}

// load runs a load in the stage's namespace, with as many open files as a setting says. It goes first on its core, except beside busy
// loops, which are to disturb it too.
func (s *stage) load(args []string, set settings) {
	if s.err != nil {
		return
	}
	if !s.o.busy {
		args = append([]string{s.find("chrt", "util-linux", ""), "--rr", "1"}, args...)
	}
	p := s.start(process.Command{Name: "load", Args: args, Cores: loadCores, Files: set.loadFiles()})
	if s.err != nil {
		return
	}
	if _, code, err := p.Wait(s.ctx); err != nil || code != 0 && code != 1 && code != 4 {
		s.check(fmt.Errorf("load: exit code %d: %w: %s", code, errors.Join(err), p.LogTail()))
	}
}

// said finds the lines of a program's log that say why it failed.
var said = regexp.MustCompile(`(?i)[^\n]*(99: Cannot assign|Cannot assign requested|too many (open files|clients|connections)|\(24: |worker_connections|no more connections)[^\n]*`)

// logged is the first line of the logs that says why something failed, without its time.
func (s *stage) logged(files []string) string {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if line := said.FindString(string(text)); line != "" {
			if at := strings.Index(line, "connect() "); at > 0 {
				line = line[at:]
			}
			line, _, _ = strings.Cut(line, ", client:")
			return strings.TrimSpace(line[:min(len(line), 200)])
		}
	}
	return ""
}

// read reads the failing level of a result file: the last one.
func (r *run) read(file string) error {
	all, err := result.ReadFile(file)
	if err != nil {
		return err
	}
	i := len(all.Steps) - 1
	step := &all.Steps[i]
	t := &step.Total
	r.OfferedHz, r.GoodHz, r.Errors, r.Validity = step.OfferedHz, round(t.Rate()), round(t.ErrorShare()), string(t.Validity)
	if len(t.Reasons) > 0 && t.Validity != result.Valid {
		r.Doubt = t.Reasons[0].String()
	}
	r.Met = !slices.ContainsFunc(t.SLO, func(c result.Criterion) bool { return !c.Met })
	class, most := result.Other, int64(0)
	for c, n := range t.Errors {
		if n > most {
			class, most = result.ErrorClass(c), n
		}
	}
	if most > 0 {
		r.Class = class.String()
	}
	for status, n := range t.Statuses {
		if status >= 400 && n > t.Statuses[r.Status] {
			r.Status = status
		}
	}
	for _, reason := range t.Reasons {
		if reason.Code == result.FirstError && reason.Class == r.Class {
			r.First = reason.Text
		}
	}
	for j := range step.Slices {
		s := &step.Slices[j]
		if r.FirstSecond == nil && s.Errors.Total() > s.Errors[result.Unsent] { // the unsent are counted at the end
			second := s.Second
			r.FirstSecond = &second
		}
		r.Failed = append(r.Failed, s.Errors.Total())
	}
	if responses, err := t.Latency.Responses(); err == nil && responses.Known.Count() > 0 {
		p50, _ := responses.Quantile(0.5)
		p99, _ := responses.Quantile(0.99)
		r.P50, r.P99 = round(p50.Seconds()), round(p99.Seconds())
	}
	r.figures(all, i)
	return nil
}

// figures are what was used in the failing level, and the ports in each second.
func (r *run) figures(all *result.Run, i int) {
	step := &all.Steps[i]
	r.Figures = map[string]float64{}
	set := func(name string, v float64) {
		if v > 0 {
			r.Figures[name] = round(v)
		}
	}
	usage := all.Usage(i)
	for _, t := range usage.Of(result.SamplerTCP) {
		set("ports", t.Value(result.PortsMax))
		set("range", t.Value(result.PortsRange))
		set("time-wait", t.Value(result.TimeWaitMax))
		set("overflows", t.Value(result.Overflows))
	}
	for _, p := range usage.Of(result.SamplerProcess) {
		set(p.Name+"-user", p.Value(result.CPUUserCores))
		set(p.Name+"-system", p.Value(result.CPUSystemCores))
		set(p.Name+"-files", p.Value(result.FDsMax))
	}
	for _, d := range usage.Databases() {
		set("connections", d.Value(result.ConnectionsMax))
	}
	r.Ports = make([]float64, len(step.Slices))
	for _, s := range all.Samples {
		second := int(s.At - step.Start)
		if v, ok := s.Values["ports_in_use"]; ok && s.Sampler == result.SamplerTCP && s.At >= step.Start && second < len(r.Ports) {
			r.Ports[second] = max(r.Ports[second], v)
		}
	}
	if !slices.ContainsFunc(r.Ports, func(n float64) bool { return n > 200 }) {
		r.Ports = nil
	}
}
