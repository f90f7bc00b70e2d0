//go:build linux

// Command bottlenecks checks that spillway names what limits a service. It starts real servers with one planted fault each,
// searches for the highest rate that meets an SLO, and compares the verdict in first place with the fault.
//
// With -accuracy it checks the search instead, on servers whose capacity is known.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	spillway string
	rounds   int
	maxTime  time.Duration // of a search
	sweep    bool
	programs bool
	own      bool
	twice    bool
	list     bool
	hold     bool
	keep     string
	quiet    time.Duration // longest wait for the machine to be idle
	awake    bool

	accuracy bool
	servers  string
	rates    string

	plant  plant
	link   string
	marker string
}

func main() {
	var o options
	o.define(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := o.run(ctx, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "bottlenecks:", err)
		stop()
		os.Exit(3)
	}
	if !ok {
		stop()
		os.Exit(1)
	}
}

func (o *options) define(f *flag.FlagSet) {
	f.StringVar(&o.spillway, "spillway", "bin/spillway", "the program that searches")
	f.IntVar(&o.rounds, "rounds", 3, "rounds")
	f.DurationVar(&o.maxTime, "max-time", time.Minute, "longest search")
	f.BoolVar(&o.sweep, "sweep", false, "a load of three fixed rates instead of a search: faster")
	f.BoolVar(&o.programs, "programs", false, "start real programs as they come, and print what is said about them")
	f.BoolVar(&o.own, "own", false, "search on the parts of spillway itself, and print what stops them")
	f.BoolVar(&o.twice, "plan", false, "compare what plan says of two processes with half of a core each with what they then do")
	f.BoolVar(&o.list, "list", false, "list the scenarios")
	f.BoolVar(&o.hold, "hold", false, "start one scenario, print the command that loads it, and wait for Ctrl-C")
	f.StringVar(&o.keep, "keep", "", "keep the result files in this directory")
	f.DurationVar(&o.quiet, "quiet", time.Minute, "longest wait for an idle machine before each scenario")
	f.BoolVar(&o.awake, "awake", false, "load with --awake")
	f.BoolVar(&o.accuracy, "accuracy", false, "search on servers of known capacity instead")
	f.StringVar(&o.servers, "servers", "bucket,sleepers,burner", "of -accuracy")
	f.StringVar(&o.rates, "rates", "", "capacities of -accuracy instead of the 20 of each server: 100,1000")

	f.StringVar(&o.plant.kind, "serve", "", "internal: be a server of this kind")
	f.StringVar(&o.plant.listen, "listen", "", "internal: its address")
	f.DurationVar(&o.plant.work, "work", 0, "internal: its work per request, or the delay of a link")
	f.IntVar(&o.plant.k, "k", 0, "internal: its workers, connections or backlog")
	f.IntVar(&o.plant.size, "size", 0, "internal: its bytes per request")
	f.Float64Var(&o.plant.rate, "rate", 0, "internal: its limit per second")
	f.StringVar(&o.plant.backend, "backend", "", "internal: URL behind it")
	f.StringVar(&o.plant.database, "database", "", "internal: URL of its database")
	f.StringVar(&o.plant.sql, "sql", "", "internal: its statements or script")
	f.StringVar(&o.link, "link", "", "internal: be a link between the network namespaces of two processes")
	f.StringVar(&o.marker, "marker", "", "internal: file that the link makes when it is up")
}

// run does what the flags say and reports whether the check passed.
func (o *options) run(ctx context.Context, names []string) (ok bool, err error) {
	switch {
	case o.plant.kind != "":
		return true, o.plant.serve(ctx)
	case o.link != "":
		return true, forward(ctx, o.link, o.plant.work, o.marker)
	case o.rounds < 1 || o.maxTime <= 0:
		return false, errors.New("-rounds and -max-time must be positive")
	}
	if !o.list {
		if err := isolate(); err != nil {
			return false, err
		}
	}
	if o.accuracy {
		return o.checkAccuracy(ctx, os.Stdout)
	}
	if o.twice {
		return o.checkPlan(ctx, os.Stdout)
	}
	all := append(faults(), healthy()...)
	switch {
	case o.programs:
		all = programs()
	case o.own:
		all = own()
	}
	chosen, err := choose(all, names)
	if err != nil {
		return false, err
	}
	switch {
	case o.list:
		for _, s := range chosen {
			fmt.Printf("%-18s %-14s %s; %s\n", s.name, s.expected(), s.plants, s.limit)
		}
		return true, nil
	case o.hold:
		return true, o.holdOne(ctx, chosen, os.Stdout)
	}
	t := &table{out: os.Stdout, rounds: o.rounds}
	for round := range o.rounds {
		for _, s := range chosen {
			r := o.try(ctx, s, round)
			if ctx.Err() != nil {
				t.summarize()
				return false, errors.New("interrupted")
			}
			t.add(s, r)
		}
	}
	t.summarize()
	return t.passed(), nil
}
