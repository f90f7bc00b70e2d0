//go:build linux

package main

import (
	"slices"
	"strconv"

	"spillway/experiments/process"
)

// A scenario plants one fault, which is the first limit that a growing load meets.
type scenario struct {
	name   string
	expect []string // verdicts that are right in first place
	plants string   // what is wrong, in a phrase
	limit  string   // the arithmetic of where it binds, and why nothing else binds before
	start  func(*stage) (*setup, error)
}

// A setup is a started scenario: what to load and how.
type setup struct {
	url   string
	slo   string
	flags []string        // of load and peak, with those that watch
	rates []int           // of a sweep across the limit
	at    process.Command // where the generator runs: its network namespace, cores and control group
}

// right reports whether a verdict is the expected one.
func (s scenario) right(verdict string) bool { return slices.Contains(s.expect, verdict) }

// watch returns flags that watch processes.
func watch(processes ...*process.Process) []string {
	var flags []string
	for _, p := range processes {
		flags = append(flags, "--watch", p.Name+"="+strconv.Itoa(p.PID))
	}
	return flags
}

// faults returns the scenarios with a planted fault.
func faults() []scenario {
	return slices.Concat(programFaults(), databaseFaults(), systemFaults())
}

// choose returns the scenarios with these names, all without names.
func choose(all []scenario, names []string) ([]scenario, error) {
	return process.Choose(all, names, func(s scenario) string { return s.name })
}
