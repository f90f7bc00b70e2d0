package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"spillway/internal/exit"
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/load"
	"spillway/internal/lab/result"
)

// FilesOptions are the settings of `spillway report`, as written on the command
// line.
type FilesOptions struct {
	Files  []string `arg:"" name:"file" help:"Result files of load or watch, compressed or not, or the directory of an experiment. LABEL=FILE names a run. The formats text, markdown and html show one run."`
	Format string   `short:"f" enum:",text,markdown,json,csv,csv-seconds,bench,html,junit,summary" default:"" placeholder:"FORMAT" help:"text, markdown, json, csv (a row per step), csv-seconds (a row per second), bench (Go benchmark text, for benchstat), html (one page with charts that works offline), junit (JUnit XML, a case per step and criterion) or summary (short Markdown for CI). Default: by the name of --out, otherwise text."`
	Out    string   `short:"o" placeholder:"FILE" help:"Write to FILE instead of standard output."`
	Merge  bool     `help:"Put the parts of a load together, and exit with 1 if the whole misses its SLO. With -o FILE.ndjson, FILE is a result file, for plan and diagnose."`

	Against string `filled:"" placeholder:"FILE" help:"Compare with this result file, step by step, matched by name."`
	FailIf  string `filled:"" placeholder:"LIMITS" help:"Exit with 1 if a change exceeds its limit and the 95 % intervals do not overlap: 'p99>+10%,rate<-5%,errors>+1%pt'. Exit with 4 if a step is not VALID."`
}

// WriteFiles reads result files or an experiment and writes the report to Out or
// stdout.
func WriteFiles(o FilesOptions, stdout io.Writer, log *slog.Logger) error {
	format := o.format()
	if o.FailIf != "" && o.Against == "" {
		return exit.UsageError(errors.New("--fail-if needs --against BASE"))
	}
	if err := o.spareInputs(); err != nil {
		return err
	}
	if len(o.Files) == 1 && o.Against == "" && experiment.IsStudy(o.Files[0]) {
		study, err := experiment.ReadStudy(o.Files[0])
		if err != nil {
			return err
		}
		return writeOut(stdout, o.Out, func(w io.Writer) error { return WriteStudy(w, format, study) })
	}
	runs, err := readRuns(o.Files, len(o.Files) > 1 && !o.Merge)
	if err != nil {
		return err
	}
	if o.Merge {
		merged, err := load.Merge(runs)
		if err != nil {
			return exit.UsageError(err)
		}
		runs = []*result.Run{merged}
	}
	if o.Against != "" {
		return o.writeAgainst(format, runs, stdout)
	}
	for _, run := range runs {
		if run.CutOff != "" {
			log.Warn("the result file is incomplete", "target", run.Header.Target, "missing", run.CutOff)
		}
	}
	if o.Merge && o.Format == "" && isResult(o.Out) {
		err = result.WriteFile(o.Out, runs[0])
	} else {
		err = writeOut(stdout, o.Out, func(w io.Writer) error { return Write(w, format, runs) })
	}
	if err != nil || !o.Merge {
		return err
	}
	if err := load.Judge(runs[0]); err != nil {
		return err
	}
	return load.Broken(runs[0])
}

// isResult reports whether a file of that name is a result file, as load -o writes it.
func isResult(path string) bool { return strings.HasSuffix(strings.TrimSuffix(path, ".gz"), ".ndjson") }

// spareInputs returns an error if Out is one of the files to read.
func (o *FilesOptions) spareInputs() error {
	out, err := os.Stat(o.Out)
	if err != nil {
		return nil // it is a new file
	}
	for _, file := range append([]string{o.Against}, o.Files...) {
		_, path := splitLabel(file)
		if in, err := os.Stat(path); err == nil && os.SameFile(in, out) {
			return exit.UsageError(fmt.Errorf("-o %s would replace a file that the report reads: choose another name", o.Out))
		}
	}
	return nil
}

// writeAgainst compares a run with the base.
func (o *FilesOptions) writeAgainst(format Format, runs []*result.Run, stdout io.Writer) error {
	if len(runs) != 1 {
		return exit.UsageError(errors.New("--against compares one run: give one file, or several with --merge"))
	}
	bases, err := readRuns([]string{o.Against}, false)
	if err != nil {
		return err
	}
	base, now := bases[0], runs[0]
	base.Header.Label = cmp.Or(base.Header.Label, "base")
	now.Header.Label = cmp.Or(now.Header.Label, "this run")
	var failed error
	err = writeOut(stdout, o.Out, func(w io.Writer) error {
		err := WriteAgainst(w, format, base, now, o.FailIf)
		if code := exit.Code(err); code == exit.Failed || code == exit.NothingValid {
			failed = err // the comparison was written
			return nil
		}
		return err
	})
	return errors.Join(err, failed)
}

// format returns Format, or the format for the extension of Out.
func (o *FilesOptions) format() Format {
	if o.Format != "" {
		return Format(o.Format)
	}
	byExtension := map[string]Format{".html": HTML, ".htm": HTML, ".md": Markdown, ".xml": JUnit, ".json": JSON, ".csv": CSV}
	return cmp.Or(byExtension[strings.ToLower(filepath.Ext(o.Out))], Text)
}

// readRuns reads each file. byFile names runs without a label by their files.
func readRuns(files []string, byFile bool) ([]*result.Run, error) {
	var runs []*result.Run
	for _, file := range files {
		label, path := splitLabel(file)
		run, err := experiment.ReadRun(path)
		if err != nil {
			return nil, err
		}
		if label != "" {
			run.Header.Label = label
		}
		if run.Header.Label == "" && byFile {
			run.Header.Label = baseName(path)
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// splitLabel splits "label=file", unless a file has that name.
func splitLabel(file string) (label, path string) {
	if _, err := os.Stat(file); err == nil {
		return "", file
	}
	if label, path, ok := strings.Cut(file, "="); ok {
		return label, path
	}
	return "", file
}

// baseName is the file's name without directory and extensions.
func baseName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	if name == "" {
		return filepath.Base(path)
	}
	return name
}

// writeOut writes to the file out, or to stdout. The file appears only when it is
// complete.
func writeOut(stdout io.Writer, out string, write func(io.Writer) error) error {
	if out == "" || out == "-" {
		return write(stdout)
	}
	file, err := os.CreateTemp(filepath.Dir(out), ".report-*")
	if err != nil {
		return fmt.Errorf("create report: %w", err)
	}
	defer os.Remove(file.Name()) // fails after the rename
	err = errors.Join(write(file), file.Chmod(0o644), file.Close())
	if err != nil {
		return fmt.Errorf("write report %s: %w", out, err)
	}
	if err := os.Rename(file.Name(), out); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
