// Command readmetable is the program behind `make readme-table`. It writes the tables and pictures of the documents from the committed
// summaries of experiments.
//
// A document marks a table by two comments. The text between them is replaced:
//
//	<!-- table:freight-stacks columns=peak_hz,cpu_percent.db@rate-300 published -->
//	<!-- /table -->
//
// It marks a picture by a comment above an image. The alternative text is the title of the picture. A translation of the
// document shows the same picture without the comment:
//
//	<!-- picture:freight-stacks column=cpu_percent.db@rate-300 variants=go,spillway -->
//	![Database CPU at 300 requests/s](docs/images/freight-stacks.png)
//
// The first word is a directory below experiments/ with the summary results/study.json, or "freight-stacks/NAME" for
// results/NAME.json. "configuration" stands for the tables of all configuration keys. The options of a table are comparisons,
// columns, variants, published, names and nolevel, as in selection. published adds the figures that others measured, from
// experiments/published.csv. A result file that is not a summary has its own tables: "freight-feed/summary rows=servers". With
// -check, the command writes nothing and fails if a document is stale. "table:NAME begin" and "table:NAME end" belong to another
// program.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"spillway/internal/lab/experiment"
)

func main() {
	check := flag.Bool("check", false, "write nothing and fail if a document is stale")
	root := flag.String("root", "..", "root directory of the repository")
	flag.Parse()
	if err := run(*root, *check, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "readmetable:", err)
		os.Exit(1)
	}
}

// run writes or checks the tables and pictures of every document below root.
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

// findDocuments returns the documents that may have tables, relative to root.
func findDocuments(root string) ([]string, error) {
	var documents []string
	for _, pattern := range []string{"README.md", "README.zh-CN.md", "docs/reference/configuration.md", "experiments/*/README.md"} {
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

// update updates the tables of one document and reports whether they changed. With check it does not write.
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

// unmeasured replaces a table without a committed result.
const unmeasured = "(No result has been committed yet.)\n"

// replaceTables replaces the tables of a document outside of code blocks.
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

// foreign reports whether a directive belongs to another program: "feed begin".
func foreign(directive string) bool {
	fields := strings.Fields(directive)
	return len(fields) == 2 && (fields[1] == "begin" || fields[1] == "end")
}

// render returns the table for a directive: "freight-stacks columns=peak_hz published".
func render(root, directive string, language map[string]string) (string, error) {
	fields := strings.Fields(directive)
	if len(fields) == 0 {
		return "", errors.New("a table without a name")
	}
	if fields[0] == "configuration" {
		return manual(), nil
	}
	if len(fields) == 2 && strings.HasPrefix(fields[1], "rows=") {
		return renderRows(root, fields[0], strings.TrimPrefix(fields[1], "rows="))
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
	selection.words = language
	var theirs published
	if selection.published {
		if theirs, err = readPublished(root, fields[0]); err != nil {
			return "", err
		}
	}
	table, err := selection.table(study, theirs)
	if err != nil {
		return "", fmt.Errorf("table %s: %w", fields[0], err)
	}
	return table, nil
}

// isExperiment reports whether a name refers to an existing experiment.
func isExperiment(root, name string) bool {
	folder, _, _ := strings.Cut(name, "/")
	info, err := os.Stat(filepath.Join(root, "experiments", folder))
	return err == nil && info.IsDir()
}

func parseSelection(options []string) (selection, error) {
	var s selection
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "comparisons":
			s.comparisons = true
		case "columns":
			s.columns = strings.Split(value, ",")
		case "variants":
			s.variants = strings.Split(value, ",")
		case "published":
			s.published = true
		case "names":
			s.names = true
		case "nolevel":
			s.noLevel = true
		default:
			return s, fmt.Errorf("unknown option %q: comparisons, columns, variants, published, names or nolevel", name)
		}
	}
	return s, nil
}

// readSummary reads the committed summary of a name.
func readSummary(root, name string) (*experiment.Study, error) {
	path, err := summaryPath(name)
	if err != nil {
		return nil, err
	}
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

// summaryPath is the path of the result file that a name stands for, relative to the repository.
func summaryPath(name string) (string, error) {
	folder, file, ok := strings.Cut(name, "/")
	if !ok {
		file = "study"
	}
	if !filepath.IsLocal(folder) || !filepath.IsLocal(file) || folder == "." {
		return "", fmt.Errorf("table %q: not the name of an experiment", name)
	}
	return filepath.Join("experiments", folder, "results", file+".json"), nil
}

// english leaves words as they are.
var english = map[string]string{}

// chinese translates words of tables in README.zh-CN.md. Missing words stay in English.
var chinese = map[string]string{
	"variant":          "方案",
	"peak":             "峰值",
	"requests/s":       "每秒请求数",
	"connect":          "连接",
	"first byte":       "首字节",
	"errors":           "错误",
	"p50":              "p50 响应时间",
	"p99":              "p99 响应时间",
	"published":        "原文",
	"database CPU/req": "每请求数据库 CPU",
}

// A rowTable is a table as it stands in the "tables" of a result file that is not the summary of a study.
type rowTable struct {
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

// renderRows writes the table of that name from a result file: "freight-feed/cost rows=servers".
func renderRows(root, file, name string) (string, error) {
	path, err := summaryPath(file)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return "", fmt.Errorf("read result: %w", err)
	}
	var result struct {
		Tables map[string]rowTable `json:"tables"`
	}
	if err := json.Unmarshal(data, &result); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	table, ok := result.Tables[name]
	if !ok {
		return "", fmt.Errorf("%s has no table %q", path, name)
	}
	var out strings.Builder
	write := func(cells []string) { fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | ")) }
	write(table.Columns)
	out.WriteString("|---" + strings.Repeat("|--:", len(table.Columns)-1) + "|\n")
	for i, row := range table.Rows {
		if len(row) != len(table.Columns) {
			return "", fmt.Errorf("%s: table %s: row %d has %d cells, want %d", path, name, i+1, len(row), len(table.Columns))
		}
		write(row)
	}
	return out.String(), nil
}
