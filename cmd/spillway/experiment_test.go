package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"spillway/internal/lab/experiment"
)

// TestExperimentKnowsTheFlagsOfLoad: every flag of load is a key of an experiment's load, unless the experiment sets it.
func TestExperimentKnowsTheFlagsOfLoad(t *testing.T) {
	t.Parallel()
	own := []string{
		"label", "seed", "out", "run", "json", "report-interval", "watch", "watch-db", "watch-from", "watch-interval", "watch-token", "pin",
		"part", "start-at", "live", "metrics", "hosts",
	}
	parser, err := kong.New(&loadCmd{}, kong.NoDefaultHelp())
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[experiment.Load]()) {
		keys[strings.ReplaceAll(field.Tag.Get("yaml"), "_", "-")] = true
	}
	for _, flag := range parser.Model.Flags {
		if !keys[flag.Name] && !slices.Contains(own, flag.Name) {
			t.Errorf("--%s of load is no key of experiment.Load", flag.Name)
		}
	}
}
