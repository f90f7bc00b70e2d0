//go:build linux

// Command failures makes the failures of the four stories fail on the real programs, one at a time: what doctor predicts, what a load
// sees, what diagnose names, and what each cure gives alone. -write turns the committed results into docs/explanation/failures.md.
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
	keepRuns                 string
}

func main() {
	var o options
	flag.StringVar(&o.spillway, "spillway", "bin/spillway", "the program that loads and names")
	flag.StringVar(&o.services, "services", "bin/services", "the stories' own services")
	flag.StringVar(&o.link, "link", "bin/bottlenecks", "the program that is a slow link")
	flag.IntVar(&o.rounds, "rounds", 1, "runs of each failure")
	flag.BoolVar(&o.busy, "busy", false, "beside two busy loops, without the cures")
	flag.BoolVar(&o.list, "list", false, "list the failures")
	flag.BoolVar(&o.write, "write", false, "write docs/explanation/failures.md from the committed results")
	flag.StringVar(&o.out, "o", "", "write the results here, as JSON; those of other failures in the file stay")
	flag.StringVar(&o.only, "only", "", "only these variants, without the failure itself unless it is named: base,kept")
	flag.BoolVar(&o.add, "add", false, "add the runs to those of the file of -o")
	flag.StringVar(&o.level, "d", "", "length of a level in place of the failure's own: to try out")
	flag.StringVar(&o.keepRuns, "runs", "", "directory for the result files of the loads")
	flag.Parse()
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup does
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
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

// run does what the flags say and reports whether the failures failed and were named, and whether the cures cured.
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
	if err := removeLeft(); err != nil {
		fmt.Fprintln(os.Stderr, "failures: a run that was killed left this:", err)
	}
	return o.all(ctx, chosen)
}

// all makes failures, one after the other. One that cannot be made does not stop the others, and is an error at the end.
func (o *options) all(ctx context.Context, chosen []scenario) (ok bool, err error) {
	began, made, right := time.Now(), 0, 0
	var uncured []string
	var broken []error
	for i := range chosen {
		s := &chosen[i]
		r, err := o.try(ctx, s)
		if ctx.Err() != nil {
			if errors.Is(err, errLeft) {
				return false, fmt.Errorf("interrupted: %w", err)
			}
			return false, errors.New("interrupted; nothing is left behind")
		}
		if err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", s.name, err))
			fmt.Fprintln(os.Stderr, "failures: cannot make", broken[len(broken)-1])
			continue
		}
		r.print(os.Stdout)
		isMade, isNamed := r.made()
		if isMade {
			made++
		}
		if isNamed {
			right++
		}
		uncured = append(uncured, r.uncured(s)...)
		if err := o.keep(r); err != nil {
			return false, err
		}
	}
	fmt.Printf("%d of %d failures failed and were named first; %s\n", right, made, time.Since(began).Round(time.Second))
	if uncured != nil {
		fmt.Println("cures that do not cure:", strings.Join(uncured, ", "))
	}
	return right >= made-made/10 && uncured == nil, errors.Join(broken...)
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
