//go:build linux

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Settings are what a scenario's variants may change, by name.
type settings map[string]string

// A scenario is one failure of the stories: a row of a table and a function that starts its programs.
type scenario struct {
	name, title string
	story       [3]string // in three sentences
	scale       string    // what is smaller than in the story, and by how much
	doubt       string    // what the story says and a run does not show, with figures of runs as {VARIANT FIGURE}; "" for nothing
	today       string    // what to do
	expect      []string  // verdicts that are right
	load        []string  // flags of load, with a light and a failing level
	base        settings  // of the failure
	cures       []variant
	start       func(*stage, settings) target
	predict     func(*stage, settings, target) prediction
	predictor   string // who predicts: one of the predictors
	chart       string // its kind
}

// A variant differs from the failure in one setting, or in those that only help together.
type variant struct {
	name, title string
	set         string // "key=value", several with a blank between them
	cures       bool   // the SLO is met with it
	spillway    bool
}

// with returns the settings of a variant.
func (s *scenario) with(v variant) (settings, error) {
	all := maps.Clone(s.base)
	for one := range strings.FieldsSeq(v.set) {
		key, value, _ := strings.Cut(one, "=")
		if before, ok := all[key]; !ok || before == value {
			return nil, fmt.Errorf("%s: %s sets %s, which the failure has not or has alike", s.name, v.name, one)
		}
		all[key] = value
	}
	return all, nil
}

// A target is a started scenario.
type target struct {
	url   string
	flags []string               // of load: what is watched
	logs  []string               // files of the programs, searched for the first line that says why
	side  func(*stage, settings) // runs beside the load; nil: nothing
}

// Predictors.
const (
	byDoctor     = "doctor"
	byArithmetic = "arithmetic" // in the source of the experiment
	byLoad       = "own load"   // of the experiment, of one connection
)

// Kinds of charts.
const (
	chartPorts = "ports"
	chartCPU   = "cpu"
	chartRate  = "rate"
	chartTime  = "time"
)

// scenarios returns the table.
func scenarios() []scenario {
	return slices.Concat(portScenarios(), connectionScenarios(), commitScenarios(), readScenarios())
}
