//go:build linux

// Command peers compares spillway with what a user would write instead: forty lines of Go that run one statement per request.
// All of them run on the same cores, and the load on another one. In each round all variants run once, in random order. Before
// the rounds, a short pilot finds the best pool of the other program. A second process of spillway is the A/A control.
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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// options say what is measured.
type options struct {
	Spillway    string        `json:"-"`
	Base        string        `json:"-"`
	Only        string        `json:"workloads"`
	Databases   string        `json:"databases"`
	Connections string        `json:"connections"`
	Pools       string        `json:"pools_of_the_other_program"`
	Pool        int           `json:"pool_of_spillway"`
	Rounds      int           `json:"rounds"`
	Duration    time.Duration `json:"duration_nanoseconds"`
	Warmup      time.Duration `json:"warmup_nanoseconds"`
	Seed        uint64        `json:"seed"`
}

func main() {
	var o options
	serve := flag.String("serve", "", "be the other program, for that database: postgres, mysql, sqlite or redis")
	url := flag.String("url", "", "database of the other program")
	listen := flag.String("listen", "", "address of the other program")
	span := flag.Int("span", 0, "rows that a slow query of the other program reads")
	out := flag.String("o", "", "write the result as JSON to this file")
	flag.StringVar(&o.Spillway, "spillway", "bin/spillway", "the program that is measured and makes the load")
	flag.StringVar(&o.Base, "base", "", "another build of spillway to compare with")
	flag.StringVar(&o.Only, "only", "q,page,w,slow,stuck,popup,post", "workloads")
	flag.StringVar(&o.Databases, "databases", "postgres,mysql,sqlite", "databases of q, page, w, slow and stuck")
	flag.StringVar(&o.Connections, "connections", "1,4,16,64,1000", "kept connections")
	flag.StringVar(&o.Pools, "pools", "4,8,16,32", "connections of the other program to the database; the best counts")
	flag.IntVar(&o.Pool, "pool", 8, "connections of spillway to the database; for -serve, of the other program")
	flag.IntVar(&o.Rounds, "rounds", 7, "rounds")
	flag.DurationVar(&o.Duration, "duration", 3*time.Second, "of each load")
	flag.DurationVar(&o.Warmup, "warmup", 500*time.Millisecond, "before each load")
	flag.Uint64Var(&o.Seed, "seed", 1, "of the order")
	flag.Parse()
	var err error
	if *serve != "" {
		err = servePeer(*serve, *url, o.Pool, *span, *listen)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = compareAll(ctx, o, *out, os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// has reports whether a list has a word.
func has(list, word string) bool { return strings.Contains(","+list+",", ","+word+",") }

// result is the file that -o writes.
type result struct {
	Options options           `json:"options"`
	Started time.Time         `json:"started_at"`
	Elapsed float64           `json:"elapsed_seconds"`
	Cells   []*cell           `json:"cells"`
	Tables  map[string]*table `json:"tables"` // by database, and short, for make readme-table
}

type table struct {
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

var columns = []string{
	"workload", "connections", "spillway/s", "other", "other/s", "ratio", "A/A", "ratio to base", "p50 ratio", "p99 ratio", "p50 µs", "p99 µs",
	"app CPU µs", "database CPU µs", "errors", "VALID",
}

// short is a table of valid cells of q and w, for people who ask only whether they would be faster.
func (r *result) short() *table {
	t := &table{Columns: []string{"request", "connections", "spillway/s", "Go/s", "ratio", "p99 ratio", "app CPU µs"}}
	for _, m := range r.Cells {
		request, ok := map[string]string{"q": "SELECT by key", "w": "INSERT"}[m.Workload]
		if row := m.row(); ok && m.Valid && slices.Contains([]int{1, 16, 1000}, m.Connections) {
			request += map[string]string{"postgres": ", PostgreSQL", "mysql": ", MariaDB", "sqlite": ", SQLite"}[m.Database]
			rate := func(variant string) string { return fmt.Sprintf("%.0f", summarize(m.Runs, variant, 0).Median) }
			t.Rows = append(t.Rows, []string{request, row[1], rate("spillway"), rate(m.Other), row[5], row[9], row[12]})
		}
	}
	return t
}

// compareAll runs all contests, one database after the other.
func compareAll(ctx context.Context, o options, out string, progress io.Writer) error {
	r := &result{Options: o, Started: time.Now().UTC(), Tables: map[string]*table{}}
	random := rand.New(rand.NewPCG(o.Seed, 0))
	for _, database := range []string{"postgres", "mysql", "sqlite", "redis", "nothing"} {
		s, err := newStage(ctx, o)
		if err == nil {
			err = r.compare(s, database, random, progress)
			s.end()
		}
		if err != nil {
			return fmt.Errorf("measure %s: %w", database, err)
		}
	}
	r.Elapsed = time.Since(r.Started).Seconds()
	r.Tables["short"] = r.short()
	if out == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", " ")
	if err == nil {
		err = os.WriteFile(out, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// compare runs the contests of a database.
func (r *result) compare(s *stage, database string, random *rand.Rand, progress io.Writer) error {
	contests, err := s.contests(database)
	if err != nil || len(contests) == 0 {
		return err
	}
	t := &table{Columns: columns}
	r.Tables[database] = t
	fmt.Fprintf(progress, "\n%s\n\n| %s |\n%s|\n", database, strings.Join(t.Columns, " | "), strings.Repeat("|---", len(t.Columns)))
	for _, c := range contests {
		for text := range strings.SplitSeq(s.options.Connections, ",") {
			connections, err := strconv.Atoi(text)
			if err != nil {
				return fmt.Errorf("read the connections: %w", err)
			}
			m, err := s.measure(c, connections, random)
			if err != nil {
				return err
			}
			r.Cells, t.Rows = append(r.Cells, m), append(t.Rows, m.row())
			fmt.Fprintf(progress, "| %s |\n", strings.Join(m.row(), " | "))
		}
	}
	return nil
}

// row returns the columns of a cell.
func (m *cell) row() []string {
	spread := func(variant string) string {
		s := summarize(m.Runs, variant, 0)
		return fmt.Sprintf("%.0f (%.0f–%.0f)", s.Median, s.Min, s.Max)
	}
	ratioOf := func(variant string, figure int) string {
		r := m.Ratios[variant]
		if r == nil || r[figure].N == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f (%.2f–%.2f)", r[figure].Ratio, r[figure].Low, r[figure].High)
	}
	row := []string{
		m.Workload, strconv.Itoa(m.Connections), spread("spillway"), m.Other, spread(m.Other), ratioOf(m.Other, 0), ratioOf("again", 0),
		ratioOf("base", 0), ratioOf(m.Other, 1), ratioOf(m.Other, 2),
	}
	for figure := 1; figure < len(figures); figure++ {
		row = append(row, fmt.Sprintf("%.0f, %.0f", summarize(m.Runs, "spillway", figure).Median, summarize(m.Runs, m.Other, figure).Median))
	}
	valid := 0
	if m.Valid {
		valid = len(values(m.Runs, "spillway", 0))
	}
	return append(row, fmt.Sprintf("%d of %d", valid, m.Tried))
}
