// Package readmetable is the program behind `make readme-table`: it writes the tables of the documents from the
// committed summaries of experiments, so that no figure is typed.
//
// A document names a table between two comments, and what stands between them is replaced:
//
//	<!-- table:freight-stacks columns=peak_hz,cpu_percent.db@rate-300 published -->
//	<!-- /table -->
//
// The name is that of a directory under experiments/; its summary is results/study.json there, or results/NAME.json after
// "freight-stacks/NAME". Options: view, columns, variants, published as in report.StudySelection. -check writes nothing
// and fails when a document is stale. Text between "table:NAME begin" and "table:NAME end" is another program's.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/report"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail when a document is stale")
	root := flag.String("root", ".", "the repository")
	flag.Parse()
	if err := run(*root, *check, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "readmetable:", err)
		os.Exit(1)
	}
}

// run writes the tables of every document below root, or checks them.
func run(root string, check bool, out io.Writer) error {
	documents, err := findDocuments(root)
	if err != nil {
		return err
	}
	var problems []error
	done := func(name string, changed bool, err error) {
		switch {
		case err != nil:
			problems = append(problems, err)
		case changed && check:
			problems = append(problems, fmt.Errorf("%s is stale: run make readme-table", name))
		case changed:
			fmt.Fprintln(out, "wrote", name)
		}
	}
	for _, document := range documents {
		changed, err := update(root, document, check)
		done(document, changed, err)
		pictures, err := findPictures(root, document)
		if err != nil {
			problems = append(problems, err)
		}
		for i := range pictures {
			changed, err := updatePicture(root, &pictures[i], check)
			done(pictures[i].path, changed, err)
		}
	}
	return errors.Join(problems...)
}

// findDocuments lists the documents that may hold tables, relative to root.
func findDocuments(root string) ([]string, error) {
	var documents []string
	for _, pattern := range []string{"README.md", "README.zh-CN.md", "experiments/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, fmt.Errorf("find documents: %w", err)
		}
		for _, path := range found {
			relative, err := filepath.Rel(root, path)
			if err != nil {
				return nil, fmt.Errorf("find documents: %w", err)
			}
			documents = append(documents, relative)
		}
	}
	return documents, nil
}

// update brings one document up to date and says whether anything changed; with check it is left as it was.
func update(root, document string, check bool) (changed bool, err error) {
	path := filepath.Join(root, document)
	before, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("read document: %w", err)
	}
	language := english
	if strings.HasSuffix(document, ".zh-CN.md") {
		language = chinese
	}
	after, err := replaceTables(string(before), func(directive string) (string, error) { return render(root, directive, language) })
	if err != nil {
		return false, fmt.Errorf("%s: %w", document, err)
	}
	if after == string(before) || check {
		return after != string(before), nil
	}
	if err := os.WriteFile(path, []byte(after), 0o644); err != nil {
		return false, fmt.Errorf("write document: %w", err)
	}
	return true, nil
}

var (
	opening = regexp.MustCompile(`^<!-- table:(.*) -->$`)
	fence   = regexp.MustCompile("^ {0,3}(```+|~~~+)")
)

const closing = "<!-- /table -->"

// unmeasured stands where no result has been committed yet.
const unmeasured = "(No result has been committed yet.)\n"

// replaceTables replaces what stands between the comments, outside of code.
func replaceTables(text string, render func(directive string) (string, error)) (string, error) {
	var out strings.Builder
	inside, fenced := "", ""
	number := 0
	for line := range strings.Lines(text) {
		number++
		bare := strings.TrimRight(line, "\r\n")
		if mark := fence.FindStringSubmatch(bare); mark != nil && inside == "" {
			if fenced == "" {
				fenced = mark[1][:3]
			} else if strings.HasPrefix(mark[1], fenced) {
				fenced = ""
			}
		}
		match := opening.FindStringSubmatch(bare)
		if match != nil && foreign(match[1]) {
			match = nil
		}
		switch {
		case inside != "" && bare == closing:
			inside = ""
		case inside != "" && match != nil:
			return "", fmt.Errorf("line %d: a table begins inside of another: %q is not closed by %s", number, inside, closing)
		case inside != "":
			continue // the old table
		case match != nil && fenced == "":
			table, err := render(match[1])
			if err != nil {
				return "", fmt.Errorf("line %d: %w", number, err)
			}
			inside = match[1]
			out.WriteString(line + table)
			continue
		}
		out.WriteString(line)
	}
	if inside != "" {
		return "", fmt.Errorf("table %q is not closed by %s", inside, closing)
	}
	return out.String(), nil
}

// foreign says whether a directive is another program's: "feed begin".
func foreign(directive string) bool {
	fields := strings.Fields(directive)
	return len(fields) == 2 && (fields[1] == "begin" || fields[1] == "end")
}

// render writes the table of a directive: "freight-stacks columns=peak_hz published".
func render(root, directive string, language map[string]string) (string, error) {
	fields := strings.Fields(directive)
	if len(fields) == 0 {
		return "", errors.New("a table without a name")
	}
	study, err := readSummary(root, fields[0])
	if errors.Is(err, os.ErrNotExist) && isExperiment(root, fields[0]) {
		return unmeasured, nil
	}
	if err != nil {
		return "", err
	}
	selection, err := parseSelection(fields[1:])
	if err != nil {
		return "", fmt.Errorf("table %s: %w", fields[0], err)
	}
	selection.Words = language
	table, err := report.StudyTable(study, selection)
	if err != nil {
		return "", fmt.Errorf("table %s: %w", fields[0], err)
	}
	return table, nil
}

// isExperiment says whether there is an experiment that a name can stand for.
func isExperiment(root, name string) bool {
	folder, _, _ := strings.Cut(name, "/")
	info, err := os.Stat(filepath.Join(root, "experiments", folder))
	return err == nil && info.IsDir()
}

func parseSelection(options []string) (report.StudySelection, error) {
	var s report.StudySelection
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "view":
			s.View = value
		case "columns":
			s.Columns = strings.Split(value, ",")
		case "variants":
			s.Variants = strings.Split(value, ",")
		case "published":
			s.Published = true
		default:
			return s, fmt.Errorf("unknown option %q: view, columns, variants or published", name)
		}
	}
	return s, nil
}

// readSummary reads the committed summary that a name stands for.
func readSummary(root, name string) (*experiment.Study, error) {
	folder, file, ok := strings.Cut(name, "/")
	if !ok {
		file = "study"
	}
	if !filepath.IsLocal(folder) || !filepath.IsLocal(file) || folder == "." {
		return nil, fmt.Errorf("table %q: not the name of an experiment", name)
	}
	path := filepath.Join("experiments", folder, "results", file+".json")
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return nil, fmt.Errorf("read summary: %w", err)
	}
	study, err := experiment.ReadSummary(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return study, nil
}

// english is the words as they are.
var english = map[string]string{}

// chinese is the words of tables in README.zh-CN.md. What is missing stays English.
var chinese = map[string]string{
	"variant":    "方案",
	"peak":       "峰值",
	"requests/s": "每秒请求数",
	"connect":    "连接",
	"first byte": "首字节",
	"errors":     "错误",
	"blocks":     "区组数",
	"against":    "对照",
	"ratio":      "比值",
	"interval":   "区间",
	"verdict":    "结论",
	"pairs":      "配对数",
	"metric":     "指标",
	"level":      "负载",
	"published":  "原文",
	"measured":   "实测",

	"ratio there":     "原文比值",
	"ratio here":      "实测比值",
	"direction":       "方向",
	"note":            "备注",
	"could have seen": "可检出的最小差异",

	"agrees":             "一致",
	"differs":            "不一致",
	"faster":             "更快",
	"slower":             "更慢",
	"less CPU":           "CPU 更少",
	"more CPU":           "CPU 更多",
	"no difference seen": "未见差异",
}
