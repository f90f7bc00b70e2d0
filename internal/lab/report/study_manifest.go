package report

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/lab/experiment"
)

// studyManifest says where the figures come from.
func studyManifest(s *experiment.Study) []fact {
	m := &s.Manifest
	facts := []fact{
		{"experiment", m.Name + ", file and templates " + shortSum(m.Sum)},
		{"command", strings.Join(quoted(m.Command), " ")},
		{"started", m.StartedAt.UTC().Format(time.RFC3339)},
		{"blocks", fmt.Sprintf("%d, of which %d whole; order of variants random, seed %s", s.Blocks, s.Whole, strconv.FormatUint(m.Seed, 10))},
		{"spillway", m.Tool + ", " + m.Go},
	}
	if m.SLO != "" {
		facts = append(facts, fact{"SLO", m.SLO})
	}
	facts = append(facts, machineFacts(&m.Machine)...)
	for _, p := range m.Programs {
		value := p.Version
		if value == "" {
			value = p.Path
		}
		if p.Package != "" {
			value += " (package " + p.Package + ")"
		}
		facts = append(facts, fact{p.Name, value})
	}
	for _, h := range m.Hosts {
		value := h.Address + ", local ports " + h.Ports
		for _, name := range slices.Sorted(maps.Keys(h.Sysctl)) {
			value += ", " + name + " " + h.Sysctl[name]
		}
		facts = append(facts, fact{"host " + h.Name, value})
	}
	return facts
}

// shortSum is enough of a checksum to tell two files apart by eye.
func shortSum(sum string) string { return sum[:min(len(sum), 12)] }
