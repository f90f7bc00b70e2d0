package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// reportCmd turns result files into tables, text formats or a page.
type reportCmd struct {
	Files  []string `arg:"" name:"file" help:"Result files that load or watch wrote, compressed or not. label=file names a run in a comparison."`
	Format string   `short:"f" enum:",text,markdown,json,csv,csv-seconds,csv-watch,bench,hdr,html" default:"" help:"text, markdown, json, csv (a row per step), csv-seconds (a row per second), csv-watch (a row per figure of what was watched), bench (Go benchmark text, for benchstat), hdr (HdrHistogram log) or html (one page with charts, nothing fetched). Default: by the name of --out, else text."`
	Out    string   `short:"o" placeholder:"FILE" help:"Write to FILE instead of standard output."`
	Merge  bool     `help:"The files are the shares of several hosts in one run: add them up. Without it they are shown side by side."`
}

// Run reads the files and writes the report.
func (c *reportCmd) Run(env *environment) error {
	if len(c.Files) == 1 && experiment.IsStudy(c.Files[0]) {
		if !slices.Contains(report.StudyFormats(), c.format()) {
			return usageError{fmt.Errorf("an experiment is shown as text, markdown, json or html, not as %s", c.format())}
		}
		study, err := experiment.ReadStudy(c.Files[0])
		if err != nil {
			return err
		}
		return writeOut(env.stdout, c.Out, func(w io.Writer) error { return report.WriteStudy(w, c.format(), study) })
	}
	runs, err := readRuns(c.Files)
	if err != nil {
		return err
	}
	if c.Merge {
		merged, err := result.Merge(runs)
		if err != nil {
			return usageError{err}
		}
		runs = []*result.Run{merged}
	}
	for _, run := range runs {
		if run.CutOff != "" {
			env.log.Warn("the result file is incomplete", "target", run.Header.Target, "missing", run.CutOff)
		}
	}
	return writeOut(env.stdout, c.Out, func(w io.Writer) error { return report.Write(w, c.format(), runs) })
}

// format is the one asked for, or the one that the name of the output suggests.
func (c *reportCmd) format() report.Format {
	if c.Format != "" {
		return report.Format(c.Format)
	}
	switch strings.ToLower(filepath.Ext(c.Out)) {
	case ".html", ".htm":
		return report.HTML
	case ".md":
		return report.Markdown
	case ".json":
		return report.JSON
	case ".csv":
		return report.CSV
	case ".hlog", ".hdr":
		return report.HDR
	}
	return report.Text
}

// readRuns reads each file; several runs without a label are called by their file's name.
func readRuns(files []string) ([]*result.Run, error) {
	var runs []*result.Run
	for _, file := range files {
		label, path := splitLabel(file)
		run, err := result.ReadFile(path)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, result.ErrNotResult), errors.Is(err, result.ErrVersion):
			return nil, usageError{err}
		case err != nil:
			return nil, err
		}
		if label != "" {
			run.Header.Label = label
		}
		if run.Header.Label == "" && len(files) > 1 {
			run.Header.Label = baseName(path)
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// splitLabel takes "label=file" apart, unless a file has that very name.
func splitLabel(file string) (label, path string) {
	if _, err := os.Stat(file); err == nil {
		return "", file
	}
	if label, path, ok := strings.Cut(file, "="); ok {
		return label, path
	}
	return "", file
}

// baseName is the file's name without directory and endings.
func baseName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	if name == "" {
		return filepath.Base(path)
	}
	return name
}

// writeOut writes to the file named, or to stdout. A file appears only when it is whole.
func writeOut(stdout io.Writer, out string, write func(io.Writer) error) error {
	if out == "" || out == "-" {
		return write(stdout)
	}
	file, err := os.CreateTemp(filepath.Dir(out), ".report-*")
	if err != nil {
		return fmt.Errorf("create report: %w", err)
	}
	defer os.Remove(file.Name()) // gone already when all went well
	err = errors.Join(write(file), file.Chmod(0o644), file.Close())
	if err != nil {
		return fmt.Errorf("write report %s: %w", out, err)
	}
	if err := os.Rename(file.Name(), out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
