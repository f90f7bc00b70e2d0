// Command load-cost compares what a request costs the load generator: spillway
// load against wrk and ab, on keep-alive and on short connections, in a closed
// loop of 32 connections against nginx on loopback. Rounds are interleaved, and
// each tool's CPU is that of its whole process as the kernel counts it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"spillway/internal/stats"
)

func main() {
	spillway := flag.String("spillway", "bin/spillway", "the program to measure")
	rounds := flag.Int("rounds", 7, "rounds, interleaved")
	seconds := flag.Int("seconds", 4, "seconds a run")
	database := flag.String("database", "", "compare SQL instead: with pgbench on this postgres:// filled by 'pgbench -i', or with "+
		"sysbench on this mysql://")
	flag.Parse()
	measure := func() error { return run(*spillway, *rounds, *seconds) }
	if *database != "" {
		measure = func() error { return compareSQL(*spillway, *database, *rounds, *seconds) }
	}
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "load-cost:", err)
		os.Exit(1)
	}
}

// tool is one command and how it tells the requests it made.
type tool struct {
	name     string
	args     []string
	requests func(output []byte) (float64, error)
}

// cost is what one run of a tool came to.
type cost struct {
	user, system float64 // microseconds per request
	rate         float64 // requests per second
}

func run(spillway string, rounds, seconds int) error {
	dir, err := os.MkdirTemp("", "load-cost-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	url, stop, err := startNginx(dir)
	if err != nil {
		return err
	}
	defer stop()
	d := strconv.Itoa(seconds)
	for _, comparison := range []struct {
		title string
		tools []tool
	}{
		{"keep-alive, 32 connections", []tool{
			{"wrk -t1 -c32", []string{"wrk", "-t1", "-c32", "-d" + d, url}, countedBy(`(\d+) requests in`)},
			{"spillway load -c 32", []string{spillway, "load", url, "-c", "32", "-d", d + "s", "--json"}, document},
		}},
		{"short connections, 32 at once", []tool{
			{
				"wrk -t1 -c32, Connection: close",
				[]string{"wrk", "-t1", "-c32", "-d" + d, "-H", "Connection: close", url},
				countedBy(`(\d+) requests in`),
			},
			{"ab -c 32", []string{"ab", "-q", "-c", "32", "-t", d, "-n", "100000000", url}, countedBy(`Complete requests:\s+(\d+)`)},
			{
				"spillway load -c 32 --per-connection 1",
				[]string{spillway, "load", url, "-c", "32", "--per-connection", "1", "-d", d + "s", "--json"},
				document,
			},
		}},
	} {
		if err := compare(comparison.title, comparison.tools, rounds); err != nil {
			return err
		}
	}
	return nil
}

// compare runs the tools in turn and prints each one's medians and its ratio to
// the first, paired by round.
func compare(title string, tools []tool, rounds int) error {
	costs := make([][]cost, len(tools))
	for range rounds {
		for i, t := range tools {
			c, err := measure(t)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			costs[i] = append(costs[i], c)
		}
	}
	fmt.Printf("%s, %d rounds\n", title, rounds)
	fmt.Printf("  %-40s %8s %8s %8s  %-15s %10s  %s\n", "", "user us", "sys us", "us", "min-max", "req/s", "of the first, median (min-max)")
	for i, t := range tools {
		total := func(c cost) float64 { return c.user + c.system }
		var ratios []float64
		for round := range costs[i] {
			ratios = append(ratios, total(costs[i][round])/total(costs[0][round]))
		}
		all := each(costs[i], total)
		fmt.Printf("  %-40s %8.2f %8.2f %8.2f  %6.2f-%-8.2f %10.0f  %.3f (%.3f-%.3f)\n", t.name,
			median(each(costs[i], func(c cost) float64 { return c.user })), median(each(costs[i], func(c cost) float64 { return c.system })),
			median(all), slices.Min(all), slices.Max(all), median(each(costs[i], func(c cost) float64 { return c.rate })),
			median(ratios), slices.Min(ratios), slices.Max(ratios))
	}
	return nil
}

func measure(t tool) (cost, error) {
	cmd := exec.Command(t.args[0], t.args[1:]...)
	start := time.Now()
	output, err := cmd.Output()
	took := time.Since(start).Seconds()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return cost{}, err
	}
	requests, err := t.requests(output)
	if err != nil || requests == 0 {
		return cost{}, fmt.Errorf("no count of requests in its output: %w", err)
	}
	used := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return cost{float64(used.Utime.Nano()) / 1e3 / requests, float64(used.Stime.Nano()) / 1e3 / requests, requests / took}, nil
}

func countedBy(pattern string) func([]byte) (float64, error) {
	re := regexp.MustCompile(pattern)
	return func(output []byte) (float64, error) {
		match := re.FindSubmatch(output)
		if match == nil {
			return 0, errors.New("not found")
		}
		return strconv.ParseFloat(string(match[1]), 64)
	}
}

// document reads the requests answered from spillway's JSON.
func document(output []byte) (float64, error) {
	var d struct {
		Steps []struct{ Done, Requests float64 }
	}
	if err := json.Unmarshal(output, &d); err != nil {
		return 0, err
	}
	if len(d.Steps) != 1 || d.Steps[0].Done != d.Steps[0].Requests {
		return 0, fmt.Errorf("not every request was answered: %+v", d.Steps)
	}
	return d.Steps[0].Done, nil
}

func each(costs []cost, of func(cost) float64) []float64 {
	var values []float64
	for _, c := range costs {
		values = append(values, of(c))
	}
	return values
}

func median(values []float64) float64 { return stats.Summarize(values, stats.Level).Median }

// startNginx starts nginx with one process and a fixed answer of 1.5 kB.
func startNginx(dir string) (url string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address := listener.Addr().String()
	listener.Close()
	config := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log %[1]s/log; worker_processes 1;
events { worker_connections 8192; }
http { access_log off; keepalive_requests 1000000000; keepalive_timeout 600s;
server { listen %[2]s backlog=4096; location / { default_type text/plain; return 200 "%[3]s"; } } }`, dir, address, strings.Repeat("x", 1500))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "nginx", "-c", config)
	if err := cmd.Start(); err != nil {
		cancel()
		return "", nil, err
	}
	stop = func() {
		cancel()
		_ = cmd.Wait() // killed above
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return "http://" + address + "/", stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return "", nil, fmt.Errorf("nginx does not answer: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
