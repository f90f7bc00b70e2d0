package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"spillway/internal/lab/load"
)

// selfTest tests the generator and prints a line for each part.
func (c *loadCmd) selfTest(env *environment) error {
	if c.Target != "" {
		return usageError{errors.New("load --self-test: it brings its own target; name none")}
	}
	findings := []load.Finding{}
	passed, err := load.SelfTest(env.ctx, c.RandomSeed, func(f load.Finding) {
		findings = append(findings, f)
		if !c.JSON {
			fmt.Fprintf(env.stdout, "%-4s  %-17s  %s\n", verdict(f.Passed), f.Name, f.Text)
		}
	})
	if err != nil {
		return err
	}
	if c.JSON {
		document := struct {
			Passed   bool           `json:"passed"`
			Findings []load.Finding `json:"findings"`
		}{passed, findings}
		out := json.NewEncoder(env.stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(document); err != nil {
			return fmt.Errorf("write findings: %w", err)
		}
	}
	if !passed {
		return failedError{errors.New("self-test failed: figures measured on this machine now are not to be trusted")}
	}
	return nil
}

func verdict(passed bool) string {
	if passed {
		return "pass"
	}
	return "FAIL"
}
