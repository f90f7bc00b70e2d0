//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	serverCore  = 0
	loadCore    = 1
	anyCore     = -1
	connections = 32 // that are loaded while CPU is measured
	warmup      = 300 * time.Millisecond
	balancing   = time.Second
	grace       = 20 * time.Second // until a program that does not end is killed
)

// measurer runs servers and loads.
type measurer struct {
	spillway string
	duration time.Duration // of a measurement of CPU
}

// A cost is the CPU that a server used.
type cost struct {
	Round  int     `json:"round"`
	Server string  `json:"server"`
	Short  bool    `json:"short"` // connections for one request each
	Micros float64 `json:"microseconds_per_request"`
	System float64 `json:"system_share"` // of that, in the kernel
	Rate   float64 `json:"rate_hz"`
	Busy   float64 `json:"busy_share"`   // of the time, the server ran
	Waited float64 `json:"waited_share"` // of the time, it could have run and its core was taken
}

// A share is what the busiest loop had.
type share struct {
	Round       int     `json:"round"`
	Server      string  `json:"server"`
	Loops       int     `json:"loops"`
	Open        int     `json:"open"`
	Connections float64 `json:"busiest_connections"`
	Requests    float64 `json:"busiest_requests"`
}

// measureRound makes each measurement once and adds it to r.
func (m *measurer) measureRound(round int, r *result) error {
	var steps []func() error
	for _, short := range []bool{true, false} {
		for _, name := range []string{oneSocket, byRing} {
			steps = append(steps, func() error {
				c, err := m.cost(name, short)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				c.Round = round
				r.Costs = append(r.Costs, c)
				return nil
			})
		}
	}
	for _, open := range openCounts() {
		for _, loops := range loopCounts() {
			for _, name := range acceptors() {
				steps = append(steps, func() error {
					s, err := m.share(name, loops, open)
					if err != nil {
						return fmt.Errorf("%s, %d loops, %d connections: %w", name, loops, open, err)
					}
					s.Round = round
					r.Shares = append(r.Shares, s)
					return nil
				})
			}
		}
	}
	if round%2 == 1 {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func openCounts() []int   { return []int{32, 256} }
func loopCounts() []int   { return []int{1, 2, 4} }
func acceptors() []string { return []string{reusePort, plain, oneSocket} }

// cost measures the CPU per request of a server with one loop.
func (m *measurer) cost(name string, short bool) (c cost, err error) {
	s, err := startServer(serverCore, name, 1, false)
	if err != nil {
		return c, err
	}
	defer func() {
		_, stopped := s.stop()
		err = errors.Join(err, stopped)
	}()
	args := []string{"-c", strconv.Itoa(connections), "--workers", "1"}
	if short {
		args = append(args, "--per-connection", "1")
	}
	if _, err := m.load(loadCore, s.url, warmup, args); err != nil {
		return c, err
	}
	before, err := s.used()
	if err != nil {
		return c, err
	}
	started := time.Now()
	step, err := m.load(loadCore, s.url, m.duration, args)
	if err != nil {
		return c, err
	}
	took := time.Since(started).Seconds()
	after, err := s.used()
	if err != nil {
		return c, err
	}
	user, system := after.user-before.user, after.system-before.system
	total := after.total - before.total
	return cost{
		Server: name, Short: short, Rate: step.Rate, Micros: float64(total.Nanoseconds()) / 1e3 / step.Done,
		System: float64(system) / float64(max(1, user+system)), Busy: total.Seconds() / took,
		Waited: (after.waited - before.waited).Seconds() / took,
	}, nil
}

// share measures how evenly a server's loops serve connections that stay open. Server and load may use every core.
func (m *measurer) share(name string, loops, open int) (share, error) {
	s, err := startServer(anyCore, name, loops, true)
	if err != nil {
		return share{}, err
	}
	_, err = m.load(anyCore, s.url, balancing, []string{"-c", strconv.Itoa(open)})
	l, stopped := s.stop()
	if err := errors.Join(err, stopped); err != nil {
		return share{}, err
	}
	if served := sum(l.Connections); served != open || len(l.Connections) != loops {
		return share{}, fmt.Errorf("%d connections were served by %d loops", served, len(l.Connections))
	}
	return share{
		Server: name, Loops: loops, Open: open,
		Connections: float64(slices.Max(l.Connections)) / float64(open),
		Requests:    float64(slices.Max(l.Requests)) / float64(sum(l.Requests)),
	}, nil
}

func sum(counts []int) int {
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

// loadStep is what spillway load says.
type loadStep struct {
	Requests, Done float64
	Rate           float64 `json:"rate_hz"`
	ErrorTotal     float64 `json:"error_total"`
}

// load puts load on a server. It is an error if a response is missing or wrong.
func (m *measurer) load(core int, url string, d time.Duration, args []string) (loadStep, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+grace)
	defer cancel()
	args = append([]string{"load", url, "-d", d.String(), "--json", "--check", "status=200", "--check", "body~=" + bodyEnd}, args...)
	cmd := exec.CommandContext(ctx, m.spillway, args...)
	var output, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &complaint
	if err := startOn(cmd, core); err != nil {
		return loadStep{}, fmt.Errorf("start load: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return loadStep{}, fmt.Errorf("load: %w: %s", err, complaint.String())
	}
	var document struct{ Steps []loadStep }
	if err := json.Unmarshal([]byte(output.String()), &document); err != nil {
		return loadStep{}, fmt.Errorf("read what load says: %w", err)
	}
	if len(document.Steps) != 1 {
		return loadStep{}, fmt.Errorf("load made %d steps", len(document.Steps))
	}
	step := document.Steps[0]
	if step.Done == 0 || step.Done != step.Requests || step.ErrorTotal != 0 {
		return step, fmt.Errorf("not every request was answered well: %+v", step)
	}
	return step, nil
}

// server is a server in a process of its own.
type server struct {
	cmd    *exec.Cmd
	cancel context.CancelFunc
	stdin  io.WriteCloser
	stdout *bufio.Reader
	url    string
}

func startServer(core int, name string, loops int, counts bool) (*server, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{
		cmd:    exec.CommandContext(ctx, program, "-serve", name, "-loops", strconv.Itoa(loops), "-counts="+strconv.FormatBool(counts)),
		cancel: cancel,
	}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		s.stdin, err = s.cmd.StdinPipe()
	}
	if err == nil {
		err = startOn(s.cmd, core)
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("start server: %w", err)
	}
	s.stdout = bufio.NewReader(out)
	address, err := s.stdout.ReadString('\n')
	if err != nil {
		_, stopped := s.stop()
		return nil, errors.Join(fmt.Errorf("start server: %w", err), stopped)
	}
	s.url = "http://" + strings.TrimSpace(address) + "/"
	return s, nil
}

// stop ends the server and returns its loads.
func (s *server) stop() (loads, error) {
	defer s.cancel()
	late := time.AfterFunc(grace, s.cancel)
	defer late.Stop()
	s.stdin.Close()
	var l loads
	said, _ := io.ReadAll(s.stdout) // Wait tells why it is incomplete
	if err := s.cmd.Wait(); err != nil {
		return l, fmt.Errorf("server: %w", err)
	}
	if err := json.Unmarshal(said, &l); err != nil {
		return l, fmt.Errorf("read what the server says: %w", err)
	}
	return l, nil
}

// usage is the CPU that a process has used.
type usage struct {
	total, waited time.Duration // running, and waiting for the core
	user, system  uint          // in ticks, for their ratio
}

// used returns the CPU that the threads of the server have used.
func (s *server) used() (usage, error) {
	var u usage
	pid := s.cmd.Process.Pid
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(threads) == 0 {
		return u, fmt.Errorf("read CPU of the server: no threads: %w", err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			return u, fmt.Errorf("read CPU of the server: %w", err)
		}
		var ran, waited time.Duration
		if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
			return u, fmt.Errorf("read CPU of the server: %s: %w", thread, err)
		}
		u.total += ran
		u.waited += waited
	}
	process, err := procfs.NewProc(pid)
	if err != nil {
		return u, fmt.Errorf("read CPU of the server: %w", err)
	}
	stat, err := process.Stat()
	if err != nil {
		return u, fmt.Errorf("read CPU of the server: %w", err)
	}
	u.user, u.system = stat.UTime, stat.STime
	return u, nil
}

// startOn starts a program that may use one core only, or any.
func startOn(cmd *exec.Cmd, core int) error {
	if core == anyCore {
		return cmd.Start()
	}
	runtime.LockOSThread() // the program inherits the cores of the thread that starts it
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("sched_getaffinity: %w", err)
	}
	one.Set(core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("core %d is not available: %w", core, err)
	}
	err := cmd.Start()
	if restored := unix.SchedSetaffinity(0, &all); restored != nil {
		return errors.Join(err, fmt.Errorf("sched_setaffinity: %w", restored)) // the thread stays locked, and ends with the goroutine
	}
	runtime.UnlockOSThread()
	return err
}
