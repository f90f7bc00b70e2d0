package spillway_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// Limits of files and functions.
const (
	fileLinesMax     = 700
	functionLinesMax = 70
	lineMax          = 140 // characters of a line without a struct tag
	sentenceMax      = 35  // words of a sentence of a comment
)

// leastDeadline is the least time that a test may give an event to come.
const leastDeadline = 10 * time.Second

func TestStyle(t *testing.T) {
	files := readModule(t)
	for _, f := range files {
		for _, problem := range checkFile(f) {
			t.Error(problem)
		}
	}
	for _, problem := range checkPackageComments(files) {
		t.Error(problem)
	}
	for _, problem := range checkVariables(files) {
		t.Error(problem)
	}
}

// checkFile returns the violations within one file.
func checkFile(f sourceFile) []string {
	var problems []string
	if lines := bytes.Count(f.text, []byte("\n")); lines > fileLinesMax {
		problems = append(problems, fmt.Sprintf("%s has %d lines, more than %d", f.path, lines, fileLinesMax))
	}
	for _, decl := range f.syntax.Decls {
		if fn, ok := decl.(*ast.FuncDecl); ok {
			problems = append(problems, checkFunction(f, fn)...)
		}
		if !f.test() {
			problems = append(problems, checkDocumented(f, decl)...)
		}
	}
	if !f.test() {
		problems = append(problems, checkLines(f)...)
		problems = append(problems, checkSentences(f)...)
	}
	if f.test() {
		problems = append(problems, checkTestCalls(f)...)
		problems = append(problems, checkTestDeadlines(f)...)
	}
	return problems
}

// checkLines rejects long lines. A struct tag has to be one line, and the lines of a raw string are text.
func checkLines(f sourceFile) []string {
	raw := map[int]bool{}
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		if literal, ok := node.(*ast.BasicLit); ok && strings.HasPrefix(literal.Value, "`") {
			for line := f.fset.Position(literal.Pos()).Line; line <= f.fset.Position(literal.End()).Line; line++ {
				raw[line] = true
			}
		}
		return true
	})
	var problems []string
	for i, line := range strings.Split(string(f.text), "\n") {
		if n := utf8.RuneCountInString(line); n > lineMax && !raw[i+1] {
			problems = append(problems, fmt.Sprintf("%s:%d: %d characters, more than %d", f.path, i+1, n, lineMax))
		}
	}
	return problems
}

// checkSentences rejects long sentences in comments. A paragraph or a list item ends a sentence, too.
func checkSentences(f sourceFile) []string {
	var problems []string
	for _, comment := range f.syntax.Comments {
		for _, paragraph := range strings.Split(strings.ReplaceAll(comment.Text(), "\n  - ", "\n\n"), "\n\n") {
			for _, sentence := range sentenceEnd.Split(paragraph, -1) {
				if words := len(strings.Fields(sentence)); words > sentenceMax && !strings.HasPrefix(paragraph, "\t") {
					problems = append(problems, fmt.Sprintf("%s: a sentence of %d words, more than %d: %s ...", f.at(comment), words, sentenceMax, firstWords(sentence)))
				}
			}
		}
	}
	return problems
}

// sentenceEnd separates two sentences.
var sentenceEnd = regexp.MustCompile(`[.:;?!]\)?\s`)

// checkFunction rejects init functions and functions that are too long.
func checkFunction(f sourceFile, fn *ast.FuncDecl) []string {
	if fn.Name.Name == "init" && fn.Recv == nil {
		return []string{f.at(fn) + ": func init: wire it in main"}
	}
	lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
	if lines > functionLinesMax {
		return []string{fmt.Sprintf("%s: %s has %d lines, more than %d", f.at(fn), fn.Name.Name, lines, functionLinesMax)}
	}
	return nil
}

// checkDocumented requires a comment on every exported name, or on its group.
func checkDocumented(f sourceFile, decl ast.Decl) []string {
	undocumented := func(node ast.Node, name string) []string {
		return []string{fmt.Sprintf("%s: exported %s has no comment", f.at(node), name)}
	}
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Name.IsExported() && decl.Doc == nil && ast.IsExported(receiver(decl, decl.Name.Name)) {
			return undocumented(decl, decl.Name.Name)
		}
	case *ast.GenDecl:
		if decl.Doc != nil {
			return nil
		}
		var problems []string
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() && spec.Doc == nil && spec.Comment == nil {
					problems = append(problems, undocumented(spec, spec.Name.Name)...)
				}
			case *ast.ValueSpec:
				if spec.Names[0].IsExported() && spec.Doc == nil && spec.Comment == nil {
					problems = append(problems, undocumented(spec, spec.Names[0].Name)...)
				}
			}
		}
		return problems
	}
	return nil
}

// receiver returns the name of a method's receiver type; for a function, name.
func receiver(fn *ast.FuncDecl, name string) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return name
	}
	expr := fn.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return name
		}
	}
}

// checkTestCalls rejects sleeps and skips in tests. A test must wait for an event, or for a
// timer with the virtual time of testing/synctest. If a server is missing, it must fail with
// an error that says what to install.
func checkTestCalls(f sourceFile) []string {
	var problems []string
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch name := callName(call.Fun); name {
		case "time.Sleep":
			problems = append(problems, f.at(call)+": time.Sleep in a test: wait for the event itself")
		case "t.Skip", "t.Skipf", "t.SkipNow", "b.Skip", "b.Skipf", "b.SkipNow", "f.Skip", "f.Skipf", "f.SkipNow",
			"tb.Skip", "tb.Skipf", "tb.SkipNow":
			problems = append(problems, f.at(call)+": "+name+": a test that does not run proves nothing")
		}
		return true
	})
	return problems
}

// checkTestDeadlines rejects a select case that fails a test when an event has not come within
// less than leastDeadline, which a busy machine reaches. The virtual time of testing/synctest
// may be short.
func checkTestDeadlines(f sourceFile) []string {
	if slices.ContainsFunc(f.syntax.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` }) {
		return nil
	}
	var problems []string
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		clause, ok := node.(*ast.CommClause)
		if !ok || !fails(clause.Body) {
			return true
		}
		if event, ok := clause.Comm.(*ast.ExprStmt); ok {
			if receive, ok := event.X.(*ast.UnaryExpr); ok && waitsLess(receive.X, leastDeadline) {
				problems = append(problems, f.at(clause)+": a busy machine takes longer: wait with apptest.Await or apptest.Receive")
			}
		}
		return true
	})
	return problems
}

// fails reports whether the statements call t.Error, t.Fatal or the like.
func fails(body []ast.Stmt) bool {
	found := false
	for _, statement := range body {
		ast.Inspect(statement, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				_, method, _ := strings.Cut(callName(call.Fun), ".")
				found = found || slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf"}, method)
			}
			return true
		})
	}
	return found
}

// waitsLess reports whether the expression is time.After of a constant that is less than most.
func waitsLess(expr ast.Expr, most time.Duration) bool {
	call, ok := expr.(*ast.CallExpr)
	if !ok || callName(call.Fun) != "time.After" || len(call.Args) != 1 {
		return false
	}
	units := map[string]time.Duration{"time.Microsecond": time.Microsecond, "time.Millisecond": time.Millisecond, "time.Second": time.Second}
	count, unit := 1, call.Args[0]
	if product, ok := unit.(*ast.BinaryExpr); ok {
		factor, ok := product.X.(*ast.BasicLit)
		if !ok {
			return false
		}
		n, err := strconv.Atoi(factor.Value)
		if err != nil {
			return false
		}
		count, unit = n, product.Y
	}
	each, known := units[callName(unit)]
	return known && time.Duration(count)*each < most
}

// checkPackageComments requires one package comment per package, which starts with its name.
func checkPackageComments(files []sourceFile) []string {
	comments := map[string]string{}
	var problems []string
	for _, f := range files {
		if f.test() && f.dir() != "." {
			continue
		}
		if doc := f.syntax.Doc; doc != nil {
			comments[f.dir()] += doc.Text()
		}
	}
	for _, dir := range packageDirs(files) {
		comment := comments[dir]
		name := dir[strings.LastIndexByte(dir, '/')+1:]
		command := strings.HasPrefix(dir, "cmd/") || strings.HasPrefix(dir, "experiments/") || strings.HasPrefix(dir, "deploy/") || strings.HasPrefix(dir, "scripts/")
		switch {
		case comment == "":
			problems = append(problems, dir+": no package comment")
		case !command && !strings.HasPrefix(comment, "Package "+name+" "):
			problems = append(problems, fmt.Sprintf("%s: the package comment opens with %q, want \"Package %s ...\"",
				dir, firstWords(comment), name))
		}
	}
	return problems
}

// firstWords shortens a comment for a message.
func firstWords(s string) string {
	words := strings.Fields(s)
	return strings.Join(words[:min(len(words), 3)], " ")
}

func TestCheckFile(t *testing.T) {
	long := "// Long is long.\nfunc Long() {\n" + strings.Repeat("\tprintln()\n", functionLinesMax) + "}\n"
	tree := fstest.MapFS{
		"a/good.go": code(`// Fine is documented.
			type Fine struct{}
			// String is documented.
			func (Fine) String() string { return "" }
			type hidden struct{}
			func (hidden) Exported() {}
			// Group has one comment for all.
			const (
				One = 1
				Two = 2
			)
			const (
				Three = 3 // documented after the value
			)`),
		"a/bad.go": code(`func init() {}
			func Bare() {}
			type Naked struct{}
			func (n *Naked) Method() {}
			const (
				Four = 4
			)`),
		"a/long.go":   code(long),
		"a/huge.go":   code(strings.Repeat("//\n", fileLinesMax)),
		"a/a_test.go": code(sample(t, "sleep_and_skip")),
		"a/b_test.go": code(sample(t, "sleep_in_and_out_of_bubble")),
		"a/c_test.go": code(sample(t, "short_deadline")),
		"a/time.go":   code(sample(t, "sleep_in_product")),
	}
	files, err := readTree(tree)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, checkFile(f)...)
	}
	want := []string{
		"a/a_test.go:2: time.Sleep in a test: wait for the event itself",
		"a/a_test.go:2: t.Skip: a test that does not run proves nothing",
		"a/b_test.go:3: time.Sleep in a test: wait for the event itself",
		"a/b_test.go:4: time.Sleep in a test: wait for the event itself",
		"a/bad.go:2: func init: wire it in main",
		"a/bad.go:3: exported Bare has no comment",
		"a/bad.go:4: exported Naked has no comment",
		"a/bad.go:5: exported Method has no comment",
		"a/bad.go:7: exported Four has no comment",
		"a/c_test.go:3: a busy machine takes longer: wait with apptest.Await or apptest.Receive",
		"a/huge.go has 702 lines, more than 700",
		"a/long.go:3: Long has 72 lines, more than 70",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("breaches found (-want +got):\n%s", diff)
	}
}

func TestCheckPackageComments(t *testing.T) {
	tree := fstest.MapFS{
		"internal/good/a.go":      {Data: []byte("// Package good is.\npackage good\n")},
		"internal/good/b.go":      {Data: []byte("package good\n")},
		"internal/none/a.go":      {Data: []byte("package none\n")},
		"internal/none/a_test.go": {Data: []byte("// Package none is.\npackage none\n")},
		"internal/wrong/a.go":     {Data: []byte("// This package is.\npackage wrong\n")},
		"cmd/tool/main.go":        {Data: []byte("// Tool does it.\npackage main\n")},
	}
	files, err := readTree(tree)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"internal/none: no package comment",
		`internal/wrong: the package comment opens with "This package is.", want "Package wrong ..."`,
	}
	if diff := cmp.Diff(want, checkPackageComments(files)); diff != "" {
		t.Errorf("breaches found (-want +got):\n%s", diff)
	}
}

// code returns a Go file with text after its package clause.
func code(text string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("package a\n" + text + "\n")}
}

// sample returns code that violates a rule. It is kept outside this file, so that a search
// for such code finds only real code.
func sample(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "style", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
