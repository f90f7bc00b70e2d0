package report

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

func fact(name, value string) sheet.Fact { return sheet.Fact{Name: name, Value: value} }

// manifest describes how and where a run was measured.
func (r *run) manifest() []sheet.Fact {
	h := &r.Header
	facts := []sheet.Fact{
		fact("target", h.Target),
		fact("command", strings.Join(quoted(h.Command), " ")),
		fact("started", h.StartedAt.UTC().Format(time.RFC3339)),
		fact("spillway", h.Tool+", "+h.Go),
		fact("seed", strconv.FormatUint(h.Seed, 10)),
	}
	if r.usage != nil { // spillway watch has no target and no seed
		facts = facts[1 : len(facts)-1]
	}
	if h.SLO != "" {
		facts = append(facts, fact("SLO", h.SLO+r.impliedSLO()))
	}
	if len(h.Parts) == 0 {
		facts = append(facts, partFacts(h)...)
		facts = append(facts, machineFacts(&h.Machine)...)
	}
	for i := range h.Parts {
		facts = append(facts, partFacts(&h.Parts[i])...)
		facts = append(facts, machineFacts(&h.Parts[i].Machine)...)
	}
	for i := range h.Hosts {
		facts = append(facts, fact("host "+h.Hosts[i].Name, fmt.Sprintf("%g CPUs on cores %s", h.Hosts[i].CPUs, h.Hosts[i].Cores)))
	}
	for i := range r.Watches {
		facts = append(facts, r.watchFacts(&r.Watches[i])...)
	}
	for _, note := range h.Notes {
		facts = append(facts, fact("note", note))
	}
	return facts
}

// impliedSLO names the criterion that was judged without being typed.
func (r *run) impliedSLO() string {
	for _, s := range r.steps {
		for _, c := range s.Total.SLO {
			if c.Default {
				return ", and by default " + c.Text
			}
		}
	}
	return ""
}

// partFacts describe a part of a load; of a whole load there are none.
func partFacts(h *result.Header) []sheet.Fact {
	if h.Part == nil {
		return nil
	}
	name, start := fmt.Sprintf("part %d of %d", h.Part.Number, h.Part.Of), h.Part.StartAt.UTC().Format(time.RFC3339)
	return []sheet.Fact{fact(name, fmt.Sprintf("%s, to begin at %s; its clock is %s", h.Machine.Host, start, h.Part.Clock))}
}

// watchFacts list what was watched, and for another host its machine and clock.
func (r *run) watchFacts(w *result.Watch) []sheet.Fact {
	var subjects []string
	for _, s := range w.Subjects {
		name := cmp.Or(s.Name, s.Sampler)
		if s.Detail != "" {
			name += " (" + s.Detail + ")"
		}
		subjects = append(subjects, name)
	}
	if w.Host == "" {
		return []sheet.Fact{fact("watched", strings.Join(subjects, ", "))}
	}
	facts := []sheet.Fact{fact("watched on "+w.Host, strings.Join(subjects, ", "))}
	if w.ClockOffset != 0 || w.ClockError != 0 {
		facts = append(facts, fact("clock of "+w.Host, clockText(w)))
	}
	return append(facts, machineFacts(&w.Machine)...)
}

func clockText(w *result.Watch) string {
	way := "ahead of"
	if w.ClockOffset < 0 {
		way = "behind"
	}
	return fmt.Sprintf("%s %s ours, to within %s; corrected", sheet.Duration(math.Abs(w.ClockOffset)), way, sheet.Duration(w.ClockError))
}

func machineFacts(m *result.Machine) []sheet.Fact {
	return []sheet.Fact{
		fact("machine", fmt.Sprintf("%s: %s, %s, %s, %s", m.Host, sheet.Plural(m.Cores, "core"), m.CPU, sheet.Size(float64(m.Memory)), m.Arch)),
		fact("system", fmt.Sprintf("%s, kernel %s, GOMAXPROCS %d", m.OS, m.Kernel, m.GOMAXPROCS)),
		fact("limits", fmt.Sprintf("nofile %d, local ports %d-%d, somaxconn %d, tcp_tw_reuse %s, tcp_max_tw_buckets %d",
			m.NoFile, m.PortLow, m.PortHigh, m.SoMaxConn, twReuse(m.TCPTWReuse), m.MaxTWBuckets)),
	}
}

func twReuse(v int) string {
	if v < 0 {
		return "unknown"
	}
	return strconv.Itoa(v)
}

// quoted quotes arguments for a shell.
func quoted(args []string) []string {
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = arg
		if arg == "" || strings.ContainsAny(arg, " \t\n\"'`$&|;<>()*?[]{}!\\#~") {
			out[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return out
}

// studyManifest describes how and where a study was measured.
func studyManifest(s *experiment.Study) []sheet.Fact {
	m := &s.Manifest
	facts := []sheet.Fact{
		fact("experiment", m.Name+", file and templates "+m.Sum[:min(len(m.Sum), 12)]),
		fact("command", strings.Join(quoted(m.Command), " ")),
		fact("started", m.StartedAt.UTC().Format(time.RFC3339)),
		fact("blocks", fmt.Sprintf("%d, of which %d whole; order of variants random, seed %d", s.Blocks, s.Whole, m.Seed)),
		fact("spillway", m.Tool+", "+m.Go),
	}
	if m.SLO != "" {
		facts = append(facts, fact("SLO", m.SLO))
	}
	facts = append(facts, machineFacts(&m.Machine)...)
	for _, p := range m.Programs {
		value := cmp.Or(p.Version, p.Path)
		if p.Package != "" {
			value += " (package " + p.Package + ")"
		}
		facts = append(facts, fact(p.Name, value))
	}
	for _, h := range m.Hosts {
		value := h.Address
		if h.Ports != "" {
			value += ", local ports " + h.Ports
			if scale := h.PortScale(); scale > 1 {
				value += fmt.Sprintf(" (scaled: %s times fewer than the %s of the kernel)", sheet.Number(scale), sheet.Integer(experiment.KernelPorts))
			}
		}
		if h.CPUs > 0 {
			value += fmt.Sprintf(", %g CPUs on cores %s", h.CPUs, h.Cores)
		}
		for _, name := range slices.Sorted(maps.Keys(h.Sysctl)) {
			value += ", " + name + " " + h.Sysctl[name]
		}
		facts = append(facts, fact("host "+h.Name, value))
	}
	return facts
}
