// Command testrun runs go test with its arguments, and beside it for the packages below experiments/
// and deploy/ in their modules. It reports what a person wants to know: what runs while it runs, and each failure
// with its first message and with the place of the servers' logs. At its end come the tests that were
// not run and the command that runs them, and one last line with the counts, the time and the slowest
// packages.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"spillway/internal/apptest"
)

func main() { os.Exit(run(os.Args[1:])) }

// otherModules returns the directories of the modules beside the product's.
func otherModules() []string { return []string{"experiments", "deploy"} }

// run returns the exit code: the highest of go test, or 1.
func run(args []string) int {
	logs, err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM) // go test gets it too, and ends
	r := newReport(os.Stdout, logs, time.Now())
	stop := showProgress(r)
	modules := split(args)
	codes := make([]int, len(modules))
	var wg sync.WaitGroup
	for i, m := range modules {
		wg.Go(func() { codes[i] = m.test(r) })
	}
	wg.Wait()
	stop()
	r.finish(time.Now())
	if len(interrupted) > 0 {
		return 130
	}
	return slices.Max(codes)
}

// moduleTest is a run of go test in a module's root directory.
type moduleTest struct {
	dir  string
	args []string
}

// split gives the packages below the directory of another module to a run in that module, because go test tests
// packages of one module only. All have the flags.
func split(args []string) []moduleTest {
	var flags, product []string
	others := map[string][]string{}
	for _, arg := range args {
		dir, path, _ := strings.Cut(strings.TrimPrefix(arg, "./"), "/")
		switch {
		case strings.HasPrefix(arg, "./") && slices.Contains(otherModules(), dir):
			others[dir] = append(others[dir], "./"+path)
		case strings.HasPrefix(arg, "."):
			product = append(product, arg)
		default:
			flags = append(flags, arg)
		}
	}
	var modules []moduleTest
	if len(product) > 0 || len(others) == 0 {
		modules = append(modules, moduleTest{".", slices.Concat(flags, product)})
	}
	for _, dir := range otherModules() {
		if len(others[dir]) > 0 {
			modules = append(modules, moduleTest{dir, slices.Concat(flags, others[dir])})
		}
	}
	return modules
}

// test adds the run's events to the report and returns the exit code.
func (m moduleTest) test(r *report) int {
	cmd := exec.Command(goCommand(), append([]string{"test", "-json"}, m.args...)...)
	cmd.Dir, cmd.Stderr = m.dir, os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	readErr := read(events, r)
	err = errors.Join(readErr, cmd.Wait())
	code := cmd.ProcessState.ExitCode()
	if err != nil && code <= 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func goCommand() string {
	if command := os.Getenv("GO"); command != "" {
		return command
	}
	return "go"
}

// prepare builds the binary that the tests use and empties the directory for logs, both in
// bin/, where go test notices that the binary has changed.
func prepare() (logs string, err error) {
	dir, err := filepath.Abs("bin")
	if err != nil {
		return "", err
	}
	logs, binary := filepath.Join(dir, "test-logs"), filepath.Join(dir, "test-spillway")
	if err := os.RemoveAll(logs); err != nil {
		return "", err
	}
	text, err := exec.Command(goCommand(), "build", "-buildvcs=false", "-o", binary+".new", "./cmd/spillway").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build ./cmd/spillway: %w\n%s", err, text)
	}
	if err := replace(binary, binary+".new"); err != nil {
		return "", err
	}
	return logs, errors.Join(os.Setenv(apptest.LogsVariable, logs), os.Setenv(apptest.BinaryVariable, binary))
}

// replace renames a file to old, or removes it if both have the same content: then the results
// of tests that used old are still good.
func replace(old, file string) error {
	before, beforeErr := os.ReadFile(old)
	after, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if beforeErr == nil && bytes.Equal(before, after) {
		return os.Remove(file)
	}
	return os.Rename(file, old)
}

// read passes the events of go test on. A line that is none is printed as it is.
func read(from io.Reader, r *report) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				r.add(e)
			} else {
				r.print(string(line))
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the output of go test: %w", err)
		}
	}
}

// showProgress says what runs: on a terminal in a line that is written anew each second,
// otherwise in a line every half minute.
func showProgress(r *report) (stop func()) {
	interval := 30 * time.Second
	if info, err := os.Stdout.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		r.terminal, interval = true, time.Second
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(interval)
		defer ticks.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-ticks.C:
				r.progress(now)
			}
		}
	}()
	return func() { close(done); <-ended }
}
