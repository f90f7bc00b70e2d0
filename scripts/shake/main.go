// Command shake runs test packages many times under bad conditions, to find the tests that
// depend on the machine's speed, on the order of tests or on the number of cores:
//
//	go run ./scripts/shake -rounds 50 ./internal/serve/front
//
// Each package is compiled once. Each run has a shuffle seed of its own, GOMAXPROCS of 1, 2 and
// 8 in turn, busy loops beside it, and is stopped for 50 ms at random moments. It prints each
// failure once, with its seed and its count, keeps the output in bin/shake, and exits with 1
// if there was one.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// shake is one command's work.
type shake struct {
	rounds, together, loops int
	long                    bool
	module                  string // directory
	output                  string // directory of the binaries and of the output of failures

	mu       sync.Mutex
	failures map[string]*failure // by package and test
	order    []string
}

// failure is a test that failed at least once.
type failure struct {
	count int
	first string // seed, GOMAXPROCS and file of the first output
}

// testPackage is a compiled package.
type testPackage struct{ name, dir, binary string }

func main() {
	if len(os.Args) == 2 && os.Args[1] == "busy-loop" {
		for n := 1; n != 0; n += 2 { // it stays odd, so it never ends
		}
	}
	s := &shake{failures: map[string]*failure{}, output: filepath.Join("bin", "shake")}
	flag.IntVar(&s.rounds, "rounds", 20, "runs of each package")
	flag.IntVar(&s.together, "p", 2, "packages that run at the same time")
	flag.IntVar(&s.loops, "loops", 4, "busy loops beside the tests")
	flag.BoolVar(&s.long, "long", false, "also run the tests that make test leaves to make race")
	flag.StringVar(&s.module, "C", ".", "directory of the module: experiments is one of its own")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (s *shake) run(ctx context.Context, patterns []string) error {
	packages, err := s.compile(ctx, patterns)
	if err != nil {
		return err
	}
	stop, err := startLoops(ctx, s.loops)
	if err != nil {
		return err
	}
	defer stop()
	for round := range s.rounds {
		begin := time.Now()
		slots := make(chan struct{}, s.together)
		var wg sync.WaitGroup
		for _, p := range packages {
			slots <- struct{}{}
			wg.Go(func() {
				s.once(ctx, p, round)
				<-slots
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			break
		}
		fmt.Printf("round %d of %d: %d packages in %.0f s\n", round+1, s.rounds, len(packages), time.Since(begin).Seconds())
	}
	for _, name := range s.order {
		f := s.failures[name]
		fmt.Printf("%d of %d: %s (%s)\n", f.count, s.rounds, name, f.first)
	}
	if len(s.order) > 0 {
		return fmt.Errorf("%d tests failed", len(s.order))
	}
	return ctx.Err()
}

// compile builds the test binary of each package that has tests.
func (s *shake) compile(ctx context.Context, patterns []string) ([]testPackage, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	output, err := filepath.Abs(s.output)
	if err != nil {
		return nil, err
	}
	s.output = output
	if err := os.MkdirAll(output, 0o755); err != nil {
		return nil, err
	}
	format := "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}\t{{.Dir}}{{end}}"
	list, err := exec.CommandContext(ctx, "go", append([]string{"-C", s.module, "list", "-f", format}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	var packages []testPackage
	for line := range strings.Lines(string(list)) {
		name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if name == "" {
			continue
		}
		p := testPackage{name, dir, filepath.Join(output, strings.ReplaceAll(name, "/", "_")+".test")}
		if text, err := exec.CommandContext(ctx, "go", "-C", s.module, "test", "-c", "-o", p.binary, name).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("compile the tests of %s: %w\n%s", name, err, text)
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// startLoops starts processes that use a core each.
func startLoops(ctx context.Context, n int) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var loops []*exec.Cmd
	stop = func() {
		cancel()
		for _, loop := range loops {
			_ = loop.Wait()
		}
	}
	for range n {
		loop := exec.CommandContext(ctx, self, "busy-loop")
		if err := loop.Start(); err != nil {
			stop()
			return nil, fmt.Errorf("start a busy loop: %w", err)
		}
		loops = append(loops, loop)
	}
	return stop, nil
}

// once runs the tests of a package and notes which fail.
func (s *shake) once(ctx context.Context, p testPackage, round int) {
	seed, procs := rand.Uint32(), []int{1, 2, 8}[round%3]
	args := []string{"-test.parallel=8", "-test.timeout=30m", fmt.Sprintf("-test.shuffle=%d", seed)}
	if !s.long {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(ctx, p.binary, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", procs))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		s.note(p.name, "start", err.Error())
		return
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { interrupt(cmd.Process.Pid, ended) })
	err := cmd.Wait()
	close(ended)
	wg.Wait()
	if err == nil || ctx.Err() != nil {
		return
	}
	file := filepath.Join(s.output, fmt.Sprintf("%s-%d.log", strings.ReplaceAll(p.name, "/", "_"), round))
	if writeErr := os.WriteFile(file, output.Bytes(), 0o644); writeErr != nil {
		err = errors.Join(err, writeErr)
	}
	where := fmt.Sprintf("first with -test.shuffle=%d GOMAXPROCS=%d: %s", seed, procs, file)
	failed := regexp.MustCompile(`(?m)^--- FAIL: (\S+)`).FindAllStringSubmatch(output.String(), -1)
	for _, match := range failed {
		s.note(p.name, match[1], where)
	}
	if len(failed) == 0 {
		s.note(p.name, err.Error(), where)
	}
}

func (s *shake) note(name, test, where string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := strings.TrimPrefix(name, "spillway/") + " " + test
	f := s.failures[key]
	if f == nil {
		f = &failure{first: where}
		s.failures[key], s.order = f, append(s.order, key)
		fmt.Printf("FAIL %s (%s)\n", key, where)
	}
	f.count++
}
