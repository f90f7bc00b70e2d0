// Command pgbench puts spillway's database rung beside pgbench: the same PostgreSQL, as many connections to it, taken in turn. It
// prints requests a second of each and the ratios within a round, and writes them as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pgbench:", err)
		os.Exit(1)
	}
}

// round holds one round's requests a second.
type round struct {
	Select   float64 `json:"pgbench_select_hz"`   // pgbench -S -M prepared
	One      float64 `json:"pgbench_one_hz"`      // pgbench with SELECT 1, the rung's own statement
	Empty    float64 `json:"probe_empty_hz"`      // spillway /probe/empty
	Database float64 `json:"probe_database_hz"`   // spillway /probe/database
	Ceiling  float64 `json:"select_with_http_hz"` // what pgbench -S would do if each transaction also cost an empty answer
}

// results is what is written.
type results struct {
	Database    string        `json:"database"` // version
	Connections int           `json:"database_connections"`
	Clients     int           `json:"http_connections"`
	Duration    time.Duration `json:"duration_ns"`
	Rounds      []round       `json:"rounds"`
}

type bench struct {
	spillway, database string
	connections        int
	clients            int
	duration           time.Duration
	folder             string
	url                string // of spillway
}

func run(ctx context.Context) error {
	b := bench{}
	flag.StringVar(&b.spillway, "spillway", "bin/spillway", "the program")
	flag.StringVar(&b.database, "database", "", "URL of a PostgreSQL database in which pgbench may make its tables")
	flag.IntVar(&b.connections, "connections", 5, "connections to the database, of pgbench and of spillway's pool")
	flag.IntVar(&b.clients, "clients", 128, "HTTP connections")
	flag.DurationVar(&b.duration, "duration", 10*time.Second, "of each measurement, whole seconds")
	rounds := flag.Int("rounds", 7, "rounds; one more goes before them and is dropped")
	output := flag.String("o", "", "file for the results")
	flag.Parse()
	if b.database == "" {
		return errors.New("--database is missing")
	}
	var err error
	if b.folder, err = os.MkdirTemp("", "ladder-pgbench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.folder)
	stopServing, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer stopServing()
	version, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	r := results{Database: version, Connections: b.connections, Clients: b.clients, Duration: b.duration}
	for i := range *rounds + 1 {
		one, err := b.round(ctx)
		if err != nil {
			return err
		}
		if i > 0 {
			r.Rounds = append(r.Rounds, one)
		}
	}
	r.print(os.Stdout)
	if *output == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*output, append(text, '\n'), 0o644)
}

// serve starts spillway on free ports with a pool of the right size.
func (b *bench) serve(ctx context.Context) (stop func(), err error) {
	file := filepath.Join(b.folder, "spillway.yaml")
	text := fmt.Sprintf("log: {level: warn}\npool: {min: %d, max: %d}\n", b.connections, b.connections)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	b.url = "http://" + address
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, b.spillway, "serve", file, "--listen", address, "--admin", admin, "--data", b.folder)
	cmd.Env = append(os.Environ(), "SPILLWAY_DATABASE="+b.database)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start spillway: %w", err)
	}
	stop = func() {
		cancel()
		_ = cmd.Wait() // it was told to end
	}
	for range 100 {
		response, err := http.Get(b.url + "/probe/database")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return stop, nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	return nil, errors.New("spillway does not answer")
}

// freeAddress returns an address that nobody listens on at this moment.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

// prepare makes pgbench's tables and its statement, and returns the server's version.
func (b *bench) prepare(ctx context.Context) (string, error) {
	if err := os.WriteFile(filepath.Join(b.folder, "one.sql"), []byte("SELECT 1;\n"), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "pgbench", "-i", "-q", "-s", "10", b.database).CombinedOutput(); err != nil {
		return "", fmt.Errorf("pgbench -i: %w: %s", err, out)
	}
	out, err := exec.CommandContext(ctx, "psql", "-X", "-A", "-t", "-c", "SHOW server_version", b.database).Output()
	return strings.TrimSpace(string(out)), err
}

// round measures each once.
func (b *bench) round(ctx context.Context) (r round, err error) {
	for _, each := range []struct {
		into    *float64
		measure func() (float64, error)
	}{
		{&r.Select, func() (float64, error) { return b.pgbench(ctx, "-S") }},
		{&r.Database, func() (float64, error) { return b.load(ctx, "/probe/database") }},
		{&r.One, func() (float64, error) { return b.pgbench(ctx, "-n", "-f", filepath.Join(b.folder, "one.sql")) }},
		{&r.Empty, func() (float64, error) { return b.load(ctx, "/probe/empty") }},
	} {
		if *each.into, err = each.measure(); err != nil {
			return r, err
		}
	}
	r.Ceiling = 1 / (1/r.Select + 1/r.Empty)
	return r, nil
}

// pgbench returns transactions a second.
func (b *bench) pgbench(ctx context.Context, args ...string) (float64, error) {
	seconds := strconv.Itoa(int(b.duration.Seconds()))
	args = append(args, "-M", "prepared", "-c", strconv.Itoa(b.connections), "-j", "1", "-T", seconds, b.database)
	out, err := exec.CommandContext(ctx, "pgbench", args...).Output()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(line, "tps = "); ok {
			return strconv.ParseFloat(strings.Fields(rest)[0], 64)
		}
	}
	return 0, errors.New("pgbench prints no tps")
}

// load returns answered requests a second.
func (b *bench) load(ctx context.Context, path string) (float64, error) {
	cmd := exec.CommandContext(ctx, b.spillway, "load", b.url+path, "-c", strconv.Itoa(b.clients), "-d", b.duration.String(), "--warmup", "1s", "--json")
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("spillway load: %w", err)
	}
	var document struct {
		Steps []struct {
			Rate   float64        `json:"rate_hz"`
			Errors map[string]int `json:"errors"`
		}
	}
	if err := json.Unmarshal(out, &document); err != nil {
		return 0, fmt.Errorf("read the load's document: %w", err)
	}
	if len(document.Steps) != 1 || len(document.Steps[0].Errors) > 0 {
		return 0, fmt.Errorf("load of %s: %s", path, out)
	}
	return document.Steps[0].Rate, nil
}

// print writes the medians with the lowest and the highest.
func (r results) print(w io.Writer) {
	fmt.Fprintf(w, "PostgreSQL %s, %d connections to it, %d HTTP connections, %d rounds of %v\n\n| | /s | over pgbench -S | over SELECT 1 |\n|---|---|---|---|\n",
		r.Database, r.Connections, r.Clients, len(r.Rounds), r.Duration)
	for _, row := range []struct {
		name string
		of   func(round) float64
	}{
		{"pgbench -S -M prepared", func(r round) float64 { return r.Select }},
		{"pgbench SELECT 1 -M prepared", func(r round) float64 { return r.One }},
		{"/probe/empty", func(r round) float64 { return r.Empty }},
		{"/probe/database", func(r round) float64 { return r.Database }},
		{"pgbench -S and an empty answer for each", func(r round) float64 { return r.Ceiling }},
	} {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", row.name, r.spread("%.0f", row.of),
			r.spread("%.2f", func(r round) float64 { return row.of(r) / r.Select }),
			r.spread("%.2f", func(r round) float64 { return row.of(r) / r.One }))
	}
}

// spread is the median of the rounds with the lowest and the highest.
func (r results) spread(format string, of func(round) float64) string {
	values := make([]float64, len(r.Rounds))
	for i, one := range r.Rounds {
		values[i] = of(one)
	}
	slices.Sort(values)
	if len(values) == 0 {
		return "-"
	}
	return fmt.Sprintf(format+" ("+format+"-"+format+")", values[len(values)/2], values[0], values[len(values)-1])
}
