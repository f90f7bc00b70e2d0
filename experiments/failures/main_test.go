//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/lab/diagnose"
)

// TestMain is also the program that a test starts and interrupts.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args[1:], "-spillway") {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestInterrupted: Ctrl-C in the middle of a load ends all processes, and with them the namespace and its settings.
func TestInterrupted(t *testing.T) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, t.Name()+" is not root: network namespaces need that, so that it tests nothing")
		return
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // what is started does not ignore it, even if this test does
	defer signal.Stop(hangups)
	for _, sent := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		t.Run(sent.String(), func(t *testing.T) { interrupt(t, sent) })
	}
}

// interrupt sends a signal in the middle of a load, and looks for what is left of that and of an earlier run that was killed.
func interrupt(t *testing.T, sent os.Signal) {
	dir := t.TempDir()
	killed := filepath.Join(dir, fmt.Sprintf("%s%d-1", leftMark, ended(t)))
	running := filepath.Join(dir, fmt.Sprintf("%s%d-1", leftMark, os.Getpid()))
	if err := errors.Join(os.Mkdir(killed, 0o755), os.Mkdir(running, 0o755)); err != nil {
		t.Fatal(err)
	}
	slow := filepath.Join(dir, "spillway")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\n: >"+dir+"/loading\nexec sleep 100\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-spillway", slow, "accept-queue")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	apptest.Await(t, "the load begins", func() bool {
		_, err := os.Stat(filepath.Join(dir, "loading"))
		return err == nil
	})
	if err := cmd.Process.Signal(sent); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "nothing is left behind") {
		t.Errorf("%v: %s", err, out.String())
	}
	left, _ := filepath.Glob(filepath.Join(dir, leftMark+"*"))
	if i := slices.Index(left, running); i >= 0 {
		left = slices.Delete(left, i, i+1)
	} else {
		t.Error("removed the folder of a run that goes on")
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		if text, err := os.ReadFile(line); err == nil && !strings.Contains(line, fmt.Sprintf("/%d/",
			os.Getpid())) && bytes.Contains(text, []byte(dir)) {
			left = append(left, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// ended is the number of a process that ended.
func ended(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// TestVariants: each variant differs from its failure in one setting; one that is called both differs in two.
func TestVariants(t *testing.T) {
	names := map[string]bool{}
	for _, s := range scenarios() {
		if names[s.name] || s.title == "" || s.scale == "" || s.today == "" || s.start == nil || len(s.cures) == 0 {
			t.Errorf("%s is not complete, or there twice", s.name)
		}
		names[s.name] = true
		for _, sentence := range append(s.story[:], s.scale, s.today) {
			if !strings.HasSuffix(sentence, ".") {
				t.Errorf("%s: no sentence: %s", s.name, sentence)
			}
		}
		for _, name := range s.expect {
			if name == diagnose.Unknown || name == diagnose.Failures {
				t.Errorf("%s expects %s, which names nothing", s.name, name)
			}
		}
		for _, v := range s.cures {
			set, err := s.with(v)
			if err != nil {
				t.Error(err)
				continue
			}
			changed := 0
			for key, value := range set {
				if s.base[key] != value {
					changed++
				}
			}
			if together := v.name == "both" || v.name == "pool1" || v.name == "mysql57-c4"; changed != 1 && !(together && changed == 2) {
				t.Errorf("%s: %s changes %d settings", s.name, v.name, changed)
			}
		}
	}
	if len(names) < 10 {
		t.Errorf("%d failures, want ten and more", len(names))
	}
}

// TestComplete: the committed results have every failure and every variant of the table, and expect what the table does.
func TestComplete(t *testing.T) {
	all, err := readResults(filepath.Join("../..", resultsPath))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios() {
		i := slices.IndexFunc(all.Failures, func(f *failure) bool { return f.Name == s.name })
		if i < 0 {
			t.Errorf("no results of %s", s.name)
			continue
		}
		f := all.Failures[i]
		if !slices.Equal(f.Expect, s.expect) {
			t.Errorf("%s: results for %q, the table expects %q", s.name, f.Expect, s.expect)
		}
		names := map[string]bool{"base": true}
		for _, v := range s.cures {
			names[v.name] = true
		}
		for name := range names {
			if f.variant(name) == nil {
				t.Errorf("no results of %s/%s", s.name, name)
			}
		}
		for _, r := range f.Runs {
			if !names[r.Name] {
				t.Errorf("results of %s/%s, which is not in the table", s.name, r.Name)
			}
		}
		if uncured := f.uncured(&s); uncured != nil {
			t.Errorf("cures that do not cure: %q", uncured)
		}
	}
}

// TestPage: the page and its pictures are made from the committed results.
func TestPage(t *testing.T) {
	files, err := renderPage("../..")
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what the results say: run bin/failures -write (%v)", name, err)
		}
		if strings.HasSuffix(name, ".svg") {
			size += len(want)
		}
	}
	if size > 400_000 {
		t.Errorf("the pictures have %d bytes", size)
	}
}
