package main

import (
	"bytes"
	"errors"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// repository is a tree with one committed summary and these documents.
func repository(t *testing.T, documents map[string]string) string {
	t.Helper()
	root := t.TempDir()
	summary, err := os.ReadFile("../../internal/lab/experiment/testdata/study.json")
	if err != nil {
		t.Fatal(err)
	}
	documents["experiments/stacks/results/study.json"] = string(summary)
	for name, text := range documents {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// contended is the summary of the same runs on a busy host.
func contended(summary string) string {
	return strings.NewReplacer(`"VALID":`, `"HOST_CONTENDED":`, `{"n":`, `{"unproved":true,"n":`).Replace(summary)
}

func read(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTablesAreWrittenAndChecked(t *testing.T) {
	root := repository(t, map[string]string{
		"README.md": "before\n<!-- table:stacks columns=peak_hz,cpu_percent.db@rate-300 variants=php,go published -->\nold\n<!-- /table -->\nafter\n" +
			"```\n<!-- table:stacks -->\n```\n",
		"README.zh-CN.md":               "<!-- table:stacks columns=peak_hz variants=go -->\n<!-- /table -->\n",
		"experiments/stacks/README.md":  "<!-- table:stacks comparisons -->\n<!-- /table -->\n",
		"experiments/published.csv":     "stacks,php,peak_hz,300,\nstacks,php,cpu_percent.db@rate-300,219,\nstacks,go,peak_hz,3000,a note\nother,go,peak_hz,1,\nstacks,go,cpu_percent.db@rate-300,28,\n",
		"experiments/other/README.md":   "<!-- table:feed begin -->\nof another program\n<!-- table:feed end -->\n",
		"experiments/other/notes/x.txt": "<!-- table:none -->\n",
	})
	err := run(root, true, &bytes.Buffer{})
	if err == nil || strings.Count(err.Error(), "is stale: run make readme-table") != 3 {
		t.Fatalf("check of stale documents: %v", err)
	}
	var out bytes.Buffer
	if err := run(root, false, &out); err != nil {
		t.Fatal(err)
	}
	if want := "wrote README.md\nwrote README.zh-CN.md\nwrote experiments/stacks/README.md\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	want := "before\n<!-- table:stacks columns=peak_hz,cpu_percent.db@rate-300 variants=php,go published -->\n" +
		"| variant | peak | db CPU, rate-300 |\n|---|--:|--:|\n" +
		"| php | 334 (263–377)/s; published 300/s | 67.6 (57.2–82.2) %; published 219 % |\n" +
		"| go | 3,082 (2,472–3,541)/s; published 3,000/s | 10.6 (9.62–13.2) %; published 28 % |\n" +
		"<!-- /table -->\nafter\n```\n<!-- table:stacks -->\n```\n"
	if diff := cmp.Diff(want, read(t, root, "README.md")); diff != "" {
		t.Errorf("README.md (-want +got):\n%s", diff)
	}
	if got := read(t, root, "README.zh-CN.md"); !strings.Contains(got, "| 方案 | 峰值 |") {
		t.Errorf("README.zh-CN.md: %s", got)
	}
	if got := read(t, root, "experiments/stacks/README.md"); !strings.Contains(got, "| variant | against | metric | level |") ||
		!strings.Contains(got, "\n| go | pooled | peak | - |") {
		t.Errorf("comparisons: %s", got)
	}
	if err := run(root, true, &bytes.Buffer{}); err != nil {
		t.Errorf("check of what was just written: %v", err)
	}
	out.Reset()
	if err := run(root, false, &out); err != nil || out.Len() != 0 {
		t.Errorf("a second time: %v, %q", err, out.String())
	}
}

// A table shows no figure without a VALID run behind it.
func TestValidFiguresOnly(t *testing.T) {
	const directive = "<!-- table:stacks columns=rate_hz@rate-300 variants=php,go names -->\n<!-- /table -->\n"
	root := repository(t, map[string]string{"README.md": directive})
	if err := run(root, false, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root, "README.md"); strings.Contains(got, "| - |") {
		t.Errorf("all runs are valid: %s", got)
	}
	name := filepath.Join("experiments", "stacks", "results", "study.json")
	if err := os.WriteFile(filepath.Join(root, name), []byte(contended(read(t, root, name))), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(root, false, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root, "README.md"); !strings.Contains(got, "| php | - |\n| go | - |") {
		t.Errorf("no run is valid: %s", got)
	}
}

// With nolevel, the heads do not name the level. In README.zh-CN.md they are translated.
func TestHeadsWithoutLevel(t *testing.T) {
	const directive = "<!-- table:stacks columns=rate_hz@rate-300 variants=go names nolevel -->\n<!-- /table -->\n"
	root := repository(t, map[string]string{"README.md": directive, "README.zh-CN.md": directive})
	if err := run(root, false, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	for name, head := range map[string]string{"README.md": "| variant | requests/s |", "README.zh-CN.md": "| 方案 | 每秒请求数 |"} {
		if got := read(t, root, name); !strings.Contains(got, head) {
			t.Errorf("%s lacks %s: %s", name, head, got)
		}
	}
}

// A table leaves out the figures that the study's comparisons leave out.
func TestGeneratorLimitedFigures(t *testing.T) {
	root := repository(t, map[string]string{"README.md": "<!-- table:stacks columns=rate_hz@rate-300 variants=php,go names -->\n<!-- /table -->\n"})
	name := filepath.Join("experiments", "stacks", "results", "study.json")
	summary := strings.ReplaceAll(contended(read(t, root, name)), "HOST_CONTENDED", "GENERATOR_LIMITED")
	if err := os.WriteFile(filepath.Join(root, name), []byte(summary), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(root, false, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root, "README.md"); !strings.Contains(got, "| php | - |") || !strings.Contains(got, "| go | - |") {
		t.Errorf("figures of the generator: %s", got)
	}
}

func TestRows(t *testing.T) {
	root := repository(t, map[string]string{
		"README.md":                           "<!-- table:tools/cost rows=http -->\n<!-- /table -->\n",
		"experiments/tools/results/cost.json": `{"tables":{"http":{"columns":["tool","us"],"rows":[["wrk","7.99 (6.76–8.49)"]]},"odd":{"columns":["a","b"],"rows":[["c"]]}}}`,
	})
	if err := run(root, false, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	want := "<!-- table:tools/cost rows=http -->\n| tool | us |\n|---|--:|\n| wrk | 7.99 (6.76–8.49) |\n<!-- /table -->\n"
	if diff := cmp.Diff(want, read(t, root, "README.md")); diff != "" {
		t.Errorf("README.md (-want +got):\n%s", diff)
	}
	for table, want := range map[string]string{"none": `has no table "none"`, "odd": "row 1 has 1 cells, want 2"} {
		if _, err := render(root, "tools/cost rows="+table, english); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", table, err, want)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"<!-- table:stacks columns=peak_hz -->\n":                                           "is not closed by",
		"<!-- table:stacks columns=peak_hz -->\n<!-- table:stacks -->\n":                    "begins inside of another",
		"<!-- table:none columns=peak_hz -->\n<!-- /table -->\n":                            "no such file",
		"<!-- table:../stacks columns=peak_hz -->\n<!-- /table -->\n":                       "not the name of an experiment",
		"<!-- table:stacks -->\n<!-- /table -->\n":                                          "needs columns",
		"<!-- table:stacks colums=peak_hz -->\n<!-- /table -->\n":                           `unknown option "colums"`,
		"<!-- table:stacks columns=speed -->\n<!-- /table -->\n":                            `no metric "speed"`,
		"<!-- table:stacks columns=rate_hz@fast -->\n<!-- /table -->\n":                     `no level "fast"`,
		"<!-- table:stacks columns=peak_hz variants=asp -->\n<!-- /table -->\n":             `no variant "asp"`,
		"<!-- table:stacks view=pie -->\n<!-- /table -->\n":                                 `unknown option "view"`,
		"<!-- table:stacks/../../../x/results/study columns=peak_hz -->\n<!-- /table -->\n": "not the name of an experiment",
	} {
		root := repository(t, map[string]string{"README.md": text})
		err := run(root, false, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if read(t, root, "README.md") != text {
			t.Errorf("%q was changed", text)
		}
	}
}

func TestReplaceTablesKeepsTheRest(t *testing.T) {
	text := "a\r\n<!-- table:x -->\r\n| 1 |\r\n<!-- /table -->\r\nno newline at the end"
	got, err := replaceTables(text, func(string) (string, error) { return "| 2 |\n", nil })
	if want := "a\r\n<!-- table:x -->\r\n| 2 |\n<!-- /table -->\r\nno newline at the end"; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	failed := errors.New("failed")
	if _, err := replaceTables("\n<!-- table:x -->\n<!-- /table -->", func(string) (string, error) { return "", failed }); !errors.Is(err, failed) || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("error: %v", err)
	}
}

func TestPicturesAreDrawnAndChecked(t *testing.T) {
	const directive = "<!-- picture:stacks column=cpu_percent.db@rate-300 variants=php,go -->\n![Database CPU](images/cpu.png)\n"
	root := repository(t, map[string]string{"experiments/stacks/README.md": directive})
	if err := run(root, true, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "images/cpu.png is stale") {
		t.Fatalf("check of a missing picture: %v", err)
	}
	var out bytes.Buffer
	if err := run(root, false, &out); err != nil || out.String() != "wrote experiments/stacks/images/cpu.png\n" {
		t.Fatalf("%v, printed %q", err, out.String())
	}
	drawn := read(t, root, "experiments/stacks/images/cpu.png")
	config, err := png.DecodeConfig(strings.NewReader(drawn))
	if err != nil || config.Width < 800 || len(drawn) > pictureBytesMax {
		t.Fatalf("%d bytes, %d pixels wide, %v", len(drawn), config.Width, err)
	}
	if err := run(root, true, &bytes.Buffer{}); err != nil {
		t.Errorf("check of what was just drawn: %v", err)
	}
	document := filepath.Join(root, "experiments/stacks/README.md")
	if err := os.WriteFile(document, []byte(strings.Replace(directive, "php,go", "php,pooled", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(root, true, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "is stale") {
		t.Errorf("check after a change of variants: %v", err)
	}
}

func TestPictureMistakesAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"<!-- picture:stacks column=peak_hz -->\n":                                      "on the next line",
		"<!-- picture:stacks column=peak_hz -->\n![x](x.svg)\n":                         "on the next line",
		"<!-- picture:stacks colum=peak_hz -->\n![x](x.png)\n":                          `unknown option "colum"`,
		"<!-- picture:stacks column=speed -->\n![x](x.png)\n":                           `no metric "speed"`,
		"<!-- picture:stacks column=peak_hz variants=asp -->\n![x](x.png)\n":            `no variant "asp"`,
		"<!-- picture:stacks column=rate_hz@fast -->\n![x](x.png)\n":                    `no variant has rate_hz at level "fast"`,
		"<!-- picture:stacks column=peak_hz -->\n![x](../x.png)\n":                      "outside of the repository",
		"<!-- picture:none column=peak_hz -->\n![x](x.png)\n":                           "no such file",
		"<!-- picture:contended column=rate_hz@rate-300 variants=go -->\n![x](x.png)\n": "no valid run supports it; leave it out",
	} {
		root := repository(t, map[string]string{"README.md": text})
		summary := read(t, root, "experiments/stacks/results/study.json")
		path := filepath.Join(root, "experiments/contended/results/study.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(contended(summary)), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := run(root, false, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
