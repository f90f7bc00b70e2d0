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
	"path/filepath"
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
	Only        []string      `json:"workloads"`
	Databases   []string      `json:"databases"`
	Connections []int         `json:"connections"`
	Pools       []int         `json:"pools_of_the_other_program"`
	Pool        int           `json:"pool_of_spillway"`
	Rounds      int           `json:"rounds"`
	Duration    time.Duration `json:"duration_nanoseconds"`
	Warmup      time.Duration `json:"warmup_nanoseconds"`
	Seed        uint64        `json:"seed"`
}

func main() {
	var o options
	var only, databases, connections, pools string
	serve := flag.String("serve", "", "be the other program, for that database: postgres, mysql, sqlite or redis")
	url := flag.String("url", "", "database of the other program")
	listen := flag.String("listen", "", "address of the other program")
	span := flag.Int("span", 0, "rows that a slow query of the other program reads")
	out := flag.String("o", "", "write the result as JSON to this file")
	flag.StringVar(&o.Spillway, "spillway", "bin/spillway", "the program that is measured and makes the load")
	flag.StringVar(&o.Base, "base", "", "another build of spillway to compare with")
	flag.StringVar(&only, "only", "q,w,slow,popup,post", "workloads")
	flag.StringVar(&databases, "databases", "postgres,mariadb,sqlite", "databases of q, w and slow")
	flag.StringVar(&connections, "connections", "1,4,16,64,1000", "kept connections")
	flag.StringVar(&pools, "pools", "4,8,16,32", "connections of the other program to the database; the best counts")
	flag.IntVar(&o.Pool, "pool", 8, "connections of spillway to the database; for -serve, of the other program")
	flag.IntVar(&o.Rounds, "rounds", 7, "rounds")
	flag.DurationVar(&o.Duration, "duration", 3*time.Second, "of each load")
	flag.DurationVar(&o.Warmup, "warmup", 500*time.Millisecond, "before each load")
	flag.Uint64Var(&o.Seed, "seed", 1, "of the order")
	flag.Parse()
	o.Only, o.Databases = strings.Split(only, ","), strings.Split(databases, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *serve != "" {
		err = servePeer(*serve, *url, o.Pool, *span, *listen)
	} else {
		o.Connections, err = numbers(connections)
		if err == nil {
			o.Pools, err = numbers(pools)
		}
		if err == nil {
			err = compareAll(ctx, o, *out, os.Stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		stop()
		os.Exit(1)
	}
}

func numbers(list string) (all []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("read a list of numbers: %w", err)
		}
		all = append(all, n)
	}
	return all, nil
}

// result is the file that -o writes.
type result struct {
	Options options          `json:"options"`
	Started time.Time        `json:"started_at"`
	Elapsed float64          `json:"elapsed_seconds"`
	Cells   []*cell          `json:"cells"`
	Tables  map[string]table `json:"tables"` // for make readme-table
}

type table struct {
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

// compareAll runs all contests, one database after the other.
func compareAll(ctx context.Context, o options, out string, progress io.Writer) error {
	r := &result{Options: o, Started: time.Now().UTC()}
	random := rand.New(rand.NewPCG(o.Seed, 0))
	for _, database := range []string{"postgres", "mariadb", "sqlite", "redis", ""} {
		if !o.uses(database) {
			continue
		}
		err := withStage(ctx, o, database, func(s *stage) error {
			contests, err := s.contests(database)
			for _, c := range contests {
				for _, n := range o.Connections {
					if err != nil {
						return err
					}
					var measured *cell
					if measured, err = s.measure(c, n, random); err == nil {
						r.Cells = append(r.Cells, measured)
						fmt.Fprintln(progress, measured)
					}
				}
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("measure %s: %w", database, err)
		}
	}
	r.Elapsed = time.Since(r.Started).Seconds()
	r.Tables = tablesOf(r.Cells)
	for name, t := range r.Tables {
		fmt.Fprintf(progress, "\n%s\n\n| %s |\n%s|\n", name, strings.Join(t.Columns, " | "), strings.Repeat("|---", len(t.Columns)))
		for _, row := range t.Rows {
			fmt.Fprintf(progress, "| %s |\n", strings.Join(row, " | "))
		}
	}
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

// uses reports whether something is measured with the database; "" stands for none.
func (o *options) uses(database string) bool {
	switch database {
	case "":
		return slices.Contains(o.Only, "post")
	case "redis":
		return slices.Contains(o.Only, "popup")
	}
	return slices.Contains(o.Databases, database) &&
		slices.ContainsFunc(o.Only, func(workload string) bool { return slices.Contains(statements, workload) })
}

// statements are the workloads that every database has.
var statements = []string{"q", "w", "slow"}

// withStage starts a stage, calls a function, and ends all that runs on the stage.
func withStage(ctx context.Context, o options, name string, use func(*stage) error) error {
	dir, err := os.MkdirTemp("", "peers-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // the databases have users of their own
		return fmt.Errorf("open the folder: %w", err)
	}
	s, err := newStage(ctx, o, dir, filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer s.end()
	return use(s)
}
