//go:build linux

package main

import (
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// TestMain is the other program too: the stage starts its own binary again.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "-serve" {
		main()
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// TestCompare measures each workload once on SQLite, and against a constant of nginx. A run in which a busy machine got
// nothing done is repeated with a longer one.
func TestCompare(t *testing.T) {
	out := filepath.Join(t.TempDir(), "peers.json")
	binary, err := apptest.Build(t.TempDir(), "spillway/cmd/spillway")
	if err != nil {
		t.Fatal(err)
	}
	left := []string{"q", "page", "w", "slow", "post"}
	for duration := 200 * time.Millisecond; len(left) > 0; duration *= 4 {
		o := options{
			Spillway: binary, Only: strings.Join(left, ","), Databases: "sqlite", Connections: "2", Pools: "1", Pool: 2, Rounds: 1,
			Duration: duration, Warmup: 50 * time.Millisecond, Seed: 1,
		}
		if err := compareAll(t.Context(), o, out, io.Discard); err != nil {
			t.Fatal(err)
		}
		measured := readResult(t, out)
		for _, row := range measured.Tables["short"].Rows {
			if len(row) != len(measured.Tables["short"].Columns) {
				t.Errorf("row %v for columns %v", row, measured.Tables["short"].Columns)
			}
		}
		var seen, idle []string
		for _, m := range measured.Cells {
			seen = append(seen, m.Workload)
			if slices.ContainsFunc(m.Runs, func(r run) bool { return r.Rate == 0 }) {
				idle = append(idle, m.Workload)
			} else if r := m.Ratios["again"]; len(r) != 3 || r[0].Ratio <= 0 || len(m.row()) != len(columns) {
				t.Errorf("%s: ratios %v", m.Workload, m.Ratios)
			}
		}
		if !slices.Equal(seen, left) {
			t.Fatalf("measured %s of %s", seen, left)
		}
		if left = idle; len(left) > 0 && duration > 10*time.Second {
			t.Fatalf("no answer to %s within %s", left, duration)
		}
	}
}

func readResult(t *testing.T, path string) (r result) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}
