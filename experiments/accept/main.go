//go:build linux

// Command accept compares event loops that answer a fixed response of 1.7 kB: the loops of internal/serve/front, which use
// epoll, with a loop that uses io_uring. Server and load generator have a core each, rounds are interleaved, and CPU is that
// of the server's threads as the kernel counts it.
//
// It also counts how evenly connections that stay open are spread over loops, for three ways to accept them.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	spillway := flag.String("spillway", "bin/spillway", "the program that makes the load")
	rounds := flag.Int("rounds", 7, "rounds, interleaved")
	seconds := flag.Int("seconds", 4, "seconds of a measurement of CPU; the balance takes one second")
	out := flag.String("json", "", "write the result to this file")
	server := flag.String("serve", "", "be a server: front, plain, reuseport or io_uring")
	loops := flag.Int("loops", 1, "of the server")
	counts := flag.Bool("counts", false, "the server counts connections by loop")
	flag.Parse()
	var err error
	switch {
	case *server != "":
		err = serve(*server, *loops, *counts, os.Stdin, os.Stdout)
	case *rounds < 1 || *seconds < 1:
		err = fmt.Errorf("-rounds %d -seconds %d: at least 1 is required", *rounds, *seconds)
	default:
		err = run(&measurer{spillway: *spillway, duration: time.Duration(*seconds) * time.Second}, *rounds, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "accept:", err)
		os.Exit(1)
	}
}

// A result is what is written as JSON.
type result struct {
	Machine string           `json:"machine"`
	Rounds  int              `json:"rounds"`
	Seconds float64          `json:"seconds"` // of a measurement of CPU
	Tables  map[string]table `json:"tables"`
	Costs   []cost           `json:"costs"`
	Shares  []share          `json:"shares"`
}

// run measures and reports. Each round has every measurement once; every other round has them in reverse order.
func run(m *measurer, rounds int, out string) error {
	machine, err := describeMachine()
	if err != nil {
		return err
	}
	r := &result{Machine: machine, Rounds: rounds, Seconds: m.duration.Seconds()}
	started := time.Now()
	for round := range rounds {
		if err := m.measureRound(round, r); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		left := time.Since(started) / time.Duration(round+1) * time.Duration(rounds-round-1)
		fmt.Fprintf(os.Stderr, "round %d of %d, %v left\n", round+1, rounds, left.Round(time.Second))
	}
	r.Tables = map[string]table{"cost": costTable(r), "balance": balanceTable(r)}
	for _, name := range []string{"cost", "balance"} {
		t := r.Tables[name]
		t.print(os.Stdout)
	}
	if n := contended(r); n > 0 {
		fmt.Fprintf(os.Stderr, "accept: in %d of %d measurements of CPU, other programs took the server's core for more than 5 %% of the "+
			"time: repeat them on a quiet machine\n", n, len(r.Costs))
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
