//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"spillway/internal/lab/diagnose"
)

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
			if together := v.name == "both" || v.name == "pool1"; changed != 1 && !(together && changed == 2) {
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
	all, err := readResults("../../" + resultsPath)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios() {
		if !slices.ContainsFunc(all.Failures, func(f *failure) bool { return f.Name == s.name }) {
			t.Errorf("%s was not measured", s.name)
		}
	}
}
