package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

const (
	sqlForPgbench  = "\\set aid random(1, 100000)\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
	sqlForSpillway = "SELECT abalance FROM pgbench_accounts WHERE aid = :aid"
)

// compareSQL runs one prepared statement from both tools in turn against a
// database that 'pgbench -i' has filled: at full speed over 1, 8 and 32
// connections, then at a fixed rate.
func compareSQL(spillway, url string, rounds, seconds int) error {
	dir, err := os.MkdirTemp("", "load-cost-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "script.sql")
	if err := os.WriteFile(script, []byte(sqlForPgbench), 0o600); err != nil {
		return err
	}
	d := strconv.Itoa(seconds)
	for _, level := range []struct{ connections, rate string }{{"1", ""}, {"8", ""}, {"32", ""}, {"8", "2000"}} {
		theirs := []string{"-n", "-M", "prepared", "-f", script, "-c", level.connections, "-j", "1", "-T", d, url}
		ours := []string{"load", url, "--sql", sqlForSpillway, "--param", "aid=random(1,100000)", "-c", level.connections, "-d", d + "s", "--json"}
		title := level.connections + " connections, full speed"
		if level.rate != "" {
			theirs = append([]string{"--rate=" + level.rate}, theirs...)
			ours = append(ours, "--rate", level.rate, "--arrival", "poisson")
			title = level.connections + " connections, " + level.rate + "/s"
		}
		if err := compareRates(title, spillway, theirs, ours, rounds); err != nil {
			return err
		}
	}
	return nil
}

func compareRates(title, spillway string, theirs, ours []string, rounds int) error {
	var a, b, ratios []float64
	for range rounds {
		output, err := exec.Command("pgbench", theirs...).Output()
		if err != nil {
			return fmt.Errorf("pgbench: %w", err)
		}
		match := regexp.MustCompile(`(?m)^tps = ([0-9.]+)`).FindSubmatch(output)
		if match == nil {
			return fmt.Errorf("pgbench says no tps: %s", output)
		}
		tps, err := strconv.ParseFloat(string(match[1]), 64)
		if err != nil {
			return err
		}
		output, err = exec.Command(spillway, ours...).Output()
		if err != nil {
			return fmt.Errorf("spillway: %w", err)
		}
		var document struct {
			Steps []struct {
				Rate float64 `json:"rate_hz"`
			}
		}
		if err := json.Unmarshal(output, &document); err != nil || len(document.Steps) != 1 {
			return fmt.Errorf("read what load says: %w", err)
		}
		a, b = append(a, tps), append(b, document.Steps[0].Rate)
		ratios = append(ratios, document.Steps[0].Rate/tps)
	}
	fmt.Printf("%-32s pgbench %8.0f/s (%.0f-%.0f)   spillway %8.0f/s (%.0f-%.0f)   ratio, paired: %.3f (%.3f-%.3f)\n", title,
		median(a), slices.Min(a), slices.Max(a), median(b), slices.Min(b), slices.Max(b), median(ratios), slices.Min(ratios), slices.Max(ratios))
	return nil
}
