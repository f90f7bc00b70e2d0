package main

import (
	"encoding/json"
	"fmt"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	sqlForPgbench  = "\\set aid random(1, 100000)\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
	sqlForSpillway = "SELECT abalance FROM pgbench_accounts WHERE aid = :aid"
	sqlOfSysbench  = "SELECT c FROM sbtest1 WHERE id = :id" // what its oltp_point_select prepares
)

// rival is a database's own load tool, and the same statement for spillway.
type rival struct {
	name string
	args func(connections, seconds, rate string) []string // rate "": full speed
	tps  *regexp.Regexp
	sql  []string // flags for spillway load
}

// pgbench is the rival on PostgreSQL, on tables that 'pgbench -i' made.
func pgbench(url, dir string) (*rival, error) {
	script := filepath.Join(dir, "script.sql")
	if err := os.WriteFile(script, []byte(sqlForPgbench), 0o600); err != nil {
		return nil, err
	}
	return &rival{
		name: "pgbench", tps: regexp.MustCompile(`(?m)^tps = ([0-9.]+)`),
		args: func(connections, seconds, rate string) []string {
			args := []string{"-n", "-M", "prepared", "-f", script, "-c", connections, "-j", "1", "-T", seconds}
			if rate != "" {
				args = append(args, "--rate="+rate)
			}
			return append(args, url)
		},
		sql: []string{url, "--sql", sqlForSpillway, "--param", "aid=random(1,100000)"},
	}, nil
}

// sysbench is the rival on MySQL and MariaDB, on the table that its own prepare made.
func sysbench(url string) (*rival, error) {
	address, err := neturl.Parse(url)
	if err != nil {
		return nil, err
	}
	password, _ := address.User.Password()
	options := []string{
		"oltp_point_select", "--db-driver=mysql", "--mysql-host=" + address.Hostname(), "--mysql-port=" + address.Port(),
		"--mysql-user=" + address.User.Username(), "--mysql-password=" + password, "--mysql-db=" + strings.Trim(address.Path, "/"),
		"--tables=1", "--table-size=100000", "--rand-type=uniform",
	}
	_ = exec.Command("sysbench", append(slices.Clone(options), "cleanup")...).Run() // there may be none
	if output, err := exec.Command("sysbench", append(slices.Clone(options), "prepare")...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("sysbench prepare: %w: %s", err, output)
	}
	return &rival{
		name: "sysbench", tps: regexp.MustCompile(`transactions: +\d+ +\(([0-9.]+) per sec`),
		args: func(connections, seconds, rate string) []string {
			args := append(slices.Clone(options), "--threads="+connections, "--time="+seconds)
			if rate != "" {
				args = append(args, "--rate="+rate)
			}
			return append(args, "run")
		},
		sql: []string{url, "--sql", sqlOfSysbench, "--param", "id=random(1,100000)"},
	}, nil
}

// compareSQL runs one prepared statement from both tools in turn: at full speed
// over 1, 8 and 32 connections, then at a fixed rate.
func compareSQL(spillway, url string, rounds, seconds int) error {
	dir, err := os.MkdirTemp("", "load-cost-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r, err := pgbench(url, dir)
	if strings.HasPrefix(url, "mysql:") {
		r, err = sysbench(url)
	}
	if err != nil {
		return err
	}
	d := strconv.Itoa(seconds)
	for _, level := range []struct{ connections, rate string }{{"1", ""}, {"8", ""}, {"32", ""}, {"8", "2000"}} {
		ours := append([]string{"load"}, r.sql...)
		ours = append(ours, "-c", level.connections, "-d", d+"s", "--json")
		title := level.connections + " connections, full speed"
		if level.rate != "" {
			ours = append(ours, "--rate", level.rate, "--arrival", "poisson")
			title = level.connections + " connections, " + level.rate + "/s"
		}
		if err := compareRates(title, spillway, r, r.args(level.connections, d, level.rate), ours, rounds); err != nil {
			return err
		}
	}
	return nil
}

func compareRates(title, spillway string, r *rival, theirs, ours []string, rounds int) error {
	var a, b, ratios []float64
	for range rounds {
		output, err := exec.Command(r.name, theirs...).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		match := r.tps.FindSubmatch(output)
		if match == nil {
			return fmt.Errorf("%s says no rate: %s", r.name, output)
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
	fmt.Printf("%-32s %-8s %8.0f/s (%.0f-%.0f)   spillway %8.0f/s (%.0f-%.0f)   ratio, paired: %.3f (%.3f-%.3f)\n", title, r.name,
		median(a), slices.Min(a), slices.Max(a), median(b), slices.Min(b), slices.Max(b), median(ratios), slices.Min(ratios), slices.Max(ratios))
	return nil
}
