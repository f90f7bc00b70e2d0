//go:build linux

// Command aa proves the statistics of an experiment on a real server: it compares a server with itself many times, and
// with a variant that costs 10 % more CPU per request, as `spillway experiment` compares variants: paired blocks, random
// order, a fresh process for each side of a block, the verdict of internal/stats. It counts how often a difference is
// seen that is not there, and how often the one that is.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"spillway/internal/stats"
)

// A plan is what to run.
type plan struct {
	Same    int           `json:"same"`    // comparisons of the server with itself
	Planted int           `json:"planted"` // comparisons with the slower variant
	Effect  float64       `json:"planted_effect"`
	Blocks  int           `json:"blocks"` // of a comparison
	Rate    int           `json:"rate_hz"`
	Length  time.Duration `json:"-"`
	Seconds float64       `json:"seconds"` // of a load
	Work    int           `json:"work"`    // rounds of arithmetic per request
	Seed    uint64        `json:"seed"`
}

func main() {
	var p plan
	serve := flag.Int("serve", 0, "be the server, with that much work per request")
	listen := flag.String("listen", "", "address of the server")
	spillway := flag.String("spillway", "bin/spillway", "the program that makes the load")
	out := flag.String("o", "", "write the result as JSON to this file, and as Markdown beside it")
	flag.IntVar(&p.Same, "same", 40, "comparisons of the server with itself")
	flag.IntVar(&p.Planted, "planted", 20, "comparisons with the slower variant")
	flag.Float64Var(&p.Effect, "effect", 0.1, "how much more, as a share")
	flag.IntVar(&p.Blocks, "blocks", stats.MinPairs, "blocks of a comparison")
	flag.IntVar(&p.Rate, "rate", 3000, "requests per second")
	flag.DurationVar(&p.Length, "duration", 750*time.Millisecond, "of the load on each side of a block")
	flag.IntVar(&p.Work, "work", 60000, "rounds of arithmetic per request, about 1 ns each")
	flag.Uint64Var(&p.Seed, "seed", 1, "of the order")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *serve > 0 {
		err = serveWork(ctx, *serve, *listen)
	} else {
		err = prove(ctx, p, *spillway, *out, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "aa:", err)
		stop()
		os.Exit(1)
	}
}

// An outcome is one comparison and its verdict.
type outcome struct {
	Planted       bool          `json:"planted"`
	Ratio         float64       `json:"ratio"`
	Low           float64       `json:"low"`
	High          float64       `json:"high"`
	P             float64       `json:"p"`
	MinimumEffect float64       `json:"minimum_effect"`
	Verdict       stats.Verdict `json:"verdict"`
	Repeated      int           `json:"blocks_repeated"` // because a run was not VALID
}

// A proof is the whole result.
type proof struct {
	Plan     plan      `json:"plan"`
	Started  time.Time `json:"started_at"`
	Elapsed  float64   `json:"elapsed_seconds"`
	Base     float64   `json:"cpu_seconds_per_request"`
	False    int       `json:"false_differences"`
	Allowed  int       `json:"false_differences_allowed"`
	Found    int       `json:"planted_found"`
	Wanted   int       `json:"planted_wanted"`
	Outcomes []outcome `json:"outcomes"`
	// Tables holds the table of README.md, which make readme-table writes.
	Tables map[string]table `json:"tables"`
}

type table struct {
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

func prove(ctx context.Context, p plan, spillway, out string, progress io.Writer) error {
	p.Seconds = p.Length.Seconds()
	dir, err := os.MkdirTemp("", "aa-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(dir)
	m, err := newMeasurer(spillway, filepath.Join(dir, "log"), p)
	if err != nil {
		return err
	}
	started := time.Now()
	slower, base, err := m.calibrate(ctx)
	if err != nil {
		return fmt.Errorf("calibrate: %w", err)
	}
	fmt.Fprintf(progress, "a request costs %.1f µs of CPU; %d rounds of work make it %.0f %% more than %d do\n", base*1e6, slower,
		p.Effect*100, p.Work)
	result := &proof{Plan: p, Started: started.UTC(), Base: base}
	random := rand.New(rand.NewPCG(p.Seed, 0))
	kinds := make([]bool, p.Same+p.Planted) // whether an effect is planted; in random order, so that a change of the host affects both
	for i := range p.Planted {
		kinds[i] = true
	}
	random.Shuffle(len(kinds), func(i, k int) { kinds[i], kinds[k] = kinds[k], kinds[i] })
	for i, planted := range kinds {
		work := p.Work
		if planted {
			work = slower
		}
		o, err := m.compare(ctx, random, work)
		if err != nil {
			return fmt.Errorf("comparison %d: %w", i+1, err)
		}
		o.Planted = planted
		result.add(o)
		left := time.Since(started) / time.Duration(i+1) * time.Duration(len(kinds)-i-1)
		fmt.Fprintf(progress, "%d of %d: %s; %v left\n", i+1, len(kinds), o, left.Round(time.Second))
	}
	result.Elapsed = time.Since(started).Seconds()
	if err := result.write(out, progress); err != nil {
		return err
	}
	return result.judge()
}

func (o outcome) String() string {
	kind := "same"
	if o.Planted {
		kind = "planted"
	}
	return fmt.Sprintf("%s: ratio %.3f (%.3f to %.3f), p %.4f, %s, could have seen %.1f %%", kind, o.Ratio, o.Low, o.High, o.P, o.Verdict,
		100*(o.MinimumEffect-1))
}

func (r *proof) add(o outcome) {
	r.Outcomes = append(r.Outcomes, o)
	switch {
	case o.Planted && o.Verdict == stats.Higher:
		r.Found++
	case !o.Planted && (o.Verdict == stats.Higher || o.Verdict == stats.Lower):
		r.False++
	}
	r.Allowed, r.Wanted = r.Plan.Same/8, r.Plan.Planted*9/10 // 5 of 40 and 18 of 20
}

// judge is an error when the proof fails.
func (r *proof) judge() error {
	if r.False > r.Allowed {
		return fmt.Errorf("%d false differences, %d are allowed", r.False, r.Allowed)
	}
	if r.Found < r.Wanted {
		return fmt.Errorf("%d planted effects found, %d are wanted", r.Found, r.Wanted)
	}
	return nil
}

func (r *proof) write(out string, progress io.Writer) error {
	r.Tables = map[string]table{"verdicts": {
		Columns: []string{"variants", "comparisons", "difference seen", "bound"},
		Rows: [][]string{
			{"the same twice", fmt.Sprint(r.Plan.Same), fmt.Sprint(r.False), fmt.Sprintf("at most %d", r.Allowed)},
			{
				fmt.Sprintf("%.0f %% more CPU planted", r.Plan.Effect*100), fmt.Sprint(r.Plan.Planted), fmt.Sprint(r.Found),
				fmt.Sprintf("at least %d", r.Wanted),
			},
		},
	}}
	for _, row := range r.Tables["verdicts"].Rows {
		fmt.Fprintf(progress, "%s: a difference in %s of %s comparisons (%s)\n", row[0], row[2], row[1], row[3])
	}
	if out == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	if err := os.WriteFile(out, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}
