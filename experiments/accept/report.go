//go:build linux

package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"spillway/internal/stats"
)

// A table is as scripts/readmetable reads it.
type table struct {
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

func (t table) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.Columns}, t.Rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // to standard output, as the rest
	fmt.Fprintln(out)
}

// costTable has a row for each server and kind of connection.
func costTable(r *result) table {
	t := table{Columns: []string{
		fmt.Sprintf("closed loop, %d connections, n = %d", connections, r.Rounds), "us per request (min–max)",
		"of it in the kernel", "server busy", "requests/s", "of epoll's (min–max)",
	}}
	for _, kind := range []struct {
		name  string
		short bool
	}{{"one request each", true}, {"kept", false}} {
		base := costsOf(r, oneSocket, kind.short)
		for _, server := range []struct{ name, title string }{{oneSocket, "epoll (`front`)"}, {byRing, "io_uring"}} {
			costs := costsOf(r, server.name, kind.short)
			var micros, ratios, system, busy, rates []float64
			for i, c := range costs {
				micros = append(micros, c.Micros)
				ratios = append(ratios, c.Micros/base[i].Micros)
				system = append(system, c.System)
				busy = append(busy, c.Busy)
				rates = append(rates, c.Rate)
			}
			ratio := "1"
			if server.name != oneSocket {
				ratio = spread("%.3f", ratios)
			}
			t.Rows = append(t.Rows, []string{
				server.title + ", " + kind.name, spread("%.2f", micros), percent(median(system)), percent(median(busy)),
				fmt.Sprintf("%.0f", median(rates)), ratio,
			})
		}
	}
	return t
}

// costsOf returns the costs of a server by round.
func costsOf(r *result, server string, short bool) []cost {
	var costs []cost
	for _, c := range r.Costs {
		if c.Server == server && c.Short == short {
			costs = append(costs, c)
		}
	}
	return costs
}

// balanceTable has a row for each number of connections and loops.
func balanceTable(r *result) table {
	t := table{Columns: []string{
		fmt.Sprintf("connections of the busiest loop, n = %d", r.Rounds), "even", "a socket per loop, `SO_REUSEPORT`",
		"one socket, `EPOLLEXCLUSIVE`", "one socket, `front`",
	}}
	for _, open := range openCounts() {
		for _, loops := range loopCounts() {
			row := []string{fmt.Sprintf("%d connections, %d %s", open, loops, plural(loops, "loop")), percent(1 / float64(loops))}
			for _, name := range acceptors() {
				var shares []float64
				for _, s := range r.Shares {
					if s.Server == name && s.Loops == loops && s.Open == open {
						shares = append(shares, 100*s.Connections)
					}
				}
				row = append(row, spread("%.0f", shares)+" %")
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// contended returns how many costs were measured while others took the server's core for more than 5 % of the time.
func contended(r *result) int {
	n := 0
	for _, c := range r.Costs {
		if c.Waited > 0.05 {
			n++
		}
	}
	return n
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// spread writes the median and the range of values.
func spread(format string, values []float64) string {
	return fmt.Sprintf(format+" ("+format+"–"+format+")", median(values), slices.Min(values), slices.Max(values))
}

func median(values []float64) float64 { return stats.Summarize(values, stats.Level).Median }

// describeMachine names the processor and the kernel.
func describeMachine() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return "", fmt.Errorf("read processor: %w", err)
	}
	processors, err := proc.CPUInfo()
	if err != nil || len(processors) == 0 {
		return "", fmt.Errorf("read processor: %w", err)
	}
	return fmt.Sprintf("%d cores (%s), Linux %s; server on core %d, load on core %d", runtime.NumCPU(), processors[0].ModelName,
		unix.ByteSliceToString(name.Release[:]), serverCore, loadCore), nil
}
