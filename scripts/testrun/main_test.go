package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Packages of all modules are tested, with the same flags, in the module that they belong to.
func TestSplit(t *testing.T) {
	for args, want := range map[string][]moduleTest{
		"-short -p 4 ./... ./experiments/...": {{".", []string{"-short", "-p", "4", "./..."}}, {"experiments", []string{"-short", "-p", "4", "./..."}}},
		"-run TestX ./experiments/aa":         {{"experiments", []string{"-run", "TestX", "./aa"}}},
		"./deploy/... ./internal/yaml":        {{".", []string{"./internal/yaml"}}, {"deploy", []string{"./..."}}},
		". ./internal/yaml":                   {{".", []string{".", "./internal/yaml"}}},
		"-short":                              {{".", []string{"-short"}}},
	} {
		got := split(strings.Fields(args))
		if !slices.EqualFunc(got, want, func(a, b moduleTest) bool { return a.dir == b.dir && slices.Equal(a.args, b.args) }) {
			t.Errorf("%s: %s", args, cmp.Diff(want, got, cmp.AllowUnexported(moduleTest{})))
		}
	}
}
