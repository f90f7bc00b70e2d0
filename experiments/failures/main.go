//go:build linux

// Command failures makes the failures of the four stories fail on the real programs, one at a time: what doctor predicts, what a load
// sees, what diagnose names, and what each cure gives alone. -write turns the committed results into docs/failures.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"spillway/experiments/process"
)

// options are the flags.
type options struct {
	spillway, services, link string
	rounds                   int
	busy, list, write, add   bool
	out                      string
	only                     string
	level                    string
}

func main() {
	var o options
	flag.StringVar(&o.spillway, "spillway", "bin/spillway", "the program that loads and names")
	flag.StringVar(&o.services, "services", "bin/services", "the stories' own services")
	flag.StringVar(&o.link, "link", "bin/bottlenecks", "the program that is a slow link")
	flag.IntVar(&o.rounds, "rounds", 1, "runs of each failure")
	flag.BoolVar(&o.busy, "busy", false, "beside two busy loops, without the cures")
	flag.BoolVar(&o.list, "list", false, "list the failures")
	flag.BoolVar(&o.write, "write", false, "write docs/failures.md from the committed results")
	flag.StringVar(&o.out, "o", "", "write the results here, as JSON; those of other failures in the file stay")
	flag.StringVar(&o.only, "only", "", "only these variants, without the failure itself unless it is named: base,kept")
	flag.BoolVar(&o.add, "add", false, "add the runs to those of the file of -o")
	flag.StringVar(&o.level, "d", "", "length of a level in place of the failure's own: to try out")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := o.run(ctx, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "failures:", err)
		os.Exit(3)
	}
	if !ok {
		os.Exit(1)
	}
}

// run does what the flags say and reports whether every failure failed and was named.
func (o *options) run(ctx context.Context, names []string) (ok bool, err error) {
	if o.write {
		return true, writePage(".")
	}
	chosen, err := choose(scenarios(), names)
	if err != nil {
		return false, err
	}
	if o.list {
		for _, s := range chosen {
			fmt.Printf("%-16s %-30s %s\n", s.name, strings.Join(s.expect, "/"), s.title)
		}
		return true, nil
	}
	if os.Geteuid() != 0 {
		return false, errors.New("network namespaces and databases need root")
	}
	began, named := time.Now(), 0
	for _, s := range chosen {
		r, err := o.try(ctx, s)
		if ctx.Err() != nil {
			return false, errors.New("interrupted; nothing is left behind")
		}
		if err != nil {
			return false, fmt.Errorf("%s: %w", s.name, err)
		}
		r.print(os.Stdout)
		if r.named() {
			named++
		}
		if err := o.keep(r); err != nil {
			return false, err
		}
	}
	fmt.Printf("%d of %d failures were named first; %s\n", named, len(chosen), time.Since(began).Round(time.Second))
	return named >= len(chosen)-len(chosen)/10, nil
}

// choose returns the scenarios with these names, all without names.
func choose(all []scenario, names []string) ([]scenario, error) {
	return process.Choose(all, names, func(s scenario) string { return s.name })
}

// keep puts a result into the file of -o, in place of an earlier one of the same failure.
func (o *options) keep(r *failure) error {
	if o.out == "" {
		return nil
	}
	file, err := readResults(o.out)
	if errors.Is(err, os.ErrNotExist) {
		file, err = &results{Format: resultsFormat}, nil
	}
	if err != nil {
		return err
	}
	if err := file.put(r, o.busy, o.add); err != nil {
		return err
	}
	text, err := json.MarshalIndent(file, "", " ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(o.out), 0o755)
	}
	if err == nil {
		err = os.WriteFile(o.out, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep the results: %w", err)
	}
	return nil
}
