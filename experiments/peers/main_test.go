//go:build linux

package main

import (
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
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

// TestCompare measures each workload once on SQLite, and against a constant of nginx.
func TestCompare(t *testing.T) {
	out := filepath.Join(t.TempDir(), "peers.json")
	binary, err := apptest.Build(t.TempDir(), "spillway/cmd/spillway")
	if err != nil {
		t.Fatal(err)
	}
	o := options{
		Spillway: binary, Only: "q,w,slow,post", Databases: "sqlite", Connections: "2", Pools: "1,2", Pool: 2, Rounds: 1,
		Duration: 200 * time.Millisecond, Warmup: 50 * time.Millisecond, Seed: 1,
	}
	if err := compareAll(t.Context(), o, out, io.Discard); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r result
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, m := range r.Cells {
		seen = append(seen, m.Workload)
		if rate := summarize(m.Runs, "spillway", 0).Median; rate <= 0 || len(m.Ratios["again"]) != 3 || len(m.row()) != len(columns) {
			t.Errorf("%s: %f/s, ratios %v", m.Workload, rate, m.Ratios)
		}
	}
	if got := strings.Join(seen, ","); got != "q,w,slow,post" {
		t.Errorf("measured %s", got)
	}
}
