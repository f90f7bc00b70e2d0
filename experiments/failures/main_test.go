//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
		return // network namespaces need root
	}
	dir := t.TempDir()
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
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "nothing is left behind") {
		t.Errorf("%v: %s", err, out.String())
	}
	left, _ := filepath.Glob(filepath.Join(dir, "spillway-failures-*"))
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
