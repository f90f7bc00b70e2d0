package spillway_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// jsonParts are the structs whose fields the page of JSON documents lists, by package of the lab.
var jsonParts = []struct{ title, dir, types string }{
	{
		"Result files", "result", "record Header Machine Part Clock HostShare Step Slice Counters Latency Total LabelTotal Iterations " +
			"ConnectionStats Little Cost Criterion Reason Watch Subject Sample Gap End Search",
	},
	{"report", "report", "Document DocumentStep DocumentAnswers DocumentLabel Figures Iterations WatchError"},
	{"What was used", "result", "Usage SubjectUsage"},
	{"diagnose", "diagnose", "Document Verdict Figure"},
	{"peak", "peak", "Document DocumentAnswer DocumentProbe DocumentKnob Ceiling"},
	{"Margins of peak", "result", "Margin"},
	{"plan", "plan", "Plan SourceUse Capacity Estimate Line Figure Break"},
	{
		"doctor", "doctor", "Report Finding Setting Facts Listener Server Prediction Closing CloseCount Query QueryParam Plan Candidate " +
			"Measurement",
	},
}

// The page of JSON documents lists the fields of the structs that the lab writes, with their comments.
func TestJSONIsDocumented(t *testing.T) {
	var out strings.Builder
	for _, p := range jsonParts {
		fmt.Fprintf(&out, "\n## %s\n", p.title)
		writeStructs(t, &out, p.dir, p.types)
	}
	apptest.Generated(t, "docs/reference/json.md", "fields", out.String(), *update)
	var keys strings.Builder
	writeStructs(t, &keys, "experiment",
		"File Need Host Service Ready Stop Factor FactorValue Variant Load Level Peak Watch Cooldown Quick Chart")
	apptest.Generated(t, "docs/reference/experiments.md", "keys", keys.String(), *update)
}

// The pages have examples that are files, which other tests use too.
func TestExamplesAreDocumented(t *testing.T) {
	const configurations = "internal/serve/config/testdata/examples/"
	for _, e := range []struct{ page, name, language, file string }{
		{"reference/experiments", "example", "yml", "internal/lab/experiment/testdata/hello-ladder.yaml"},
		{"reference/load", "example of a flow", "yml", "internal/lab/labtest/testdata/shop.yaml"},
		{"how-to/production", "example", "yaml", configurations + "production.yaml"},
		{"reference/popups", "example", "yaml", configurations + "popups.yaml"},
		{"reference/configuration", "example of authentication", "yaml", configurations + "authentication.yaml"},
	} {
		text, err := os.ReadFile(e.file)
		if err != nil {
			t.Fatal(err)
		}
		apptest.Generated(t, "docs/"+e.page+".md", e.name, "\n```"+e.language+"\n"+string(text)+"```\n\n", *update)
	}
}

// The pages list constants of the lab with their comments.
func TestConstantsAreDocumented(t *testing.T) {
	for _, c := range []struct{ page, name, dir, comment string }{
		{"diagnose", "verdicts", "diagnose", "Names of verdicts."},
		{"result-files", "formats", "report", "The formats."},
		{"experiments", "metrics", "experiment", "Names of a study's metrics."},
	} {
		var out strings.Builder
		out.WriteString("| name | meaning |\n|---|---|\n")
		for _, spec := range constantsOf(t, path.Join("internal/lab", c.dir), c.comment) {
			name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&out, "| `%s` | %s |\n", name, oneLine(spec.Comment.Text()))
		}
		apptest.Generated(t, "docs/reference/"+c.page+".md", c.name, out.String(), *update)
	}
	var classes strings.Builder
	classes.WriteString("| class | meaning |\n|---|---|\n")
	specs := constantsOf(t, "internal/lab/result", "The classes.")
	for i, class := range result.ErrorClasses() {
		fmt.Fprintf(&classes, "| `%s` | %s |\n", class, oneLine(specs[i].Comment.Text()))
	}
	apptest.Generated(t, "docs/reference/result-files.md", "classes", classes.String(), *update)
}

// constantsOf returns the constants of a package whose declaration has a comment that begins so.
func constantsOf(t *testing.T, dir, comment string) (specs []*ast.ValueSpec) {
	t.Helper()
	for _, decl := range declarationsOf(t, dir) {
		if gen, ok := decl.(*ast.GenDecl); ok && gen.Tok == token.CONST && strings.HasPrefix(gen.Doc.Text(), comment) {
			for _, spec := range gen.Specs {
				specs = append(specs, spec.(*ast.ValueSpec))
			}
		}
	}
	if len(specs) == 0 {
		t.Fatalf("%s has no constants with the comment %q", dir, comment)
	}
	return specs
}

// The page of the HTTP interface lists the problems.
func TestProblemsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("internal/serve/server/problems.json")
	var problems map[string]struct {
		Status       int
		Title, Cause string
	}
	if err := errors.Join(err, json.Unmarshal(text, &problems)); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for code, p := range problems {
		rows = append(rows, fmt.Sprintf("| %d | `%s` | %s | %s |\n", p.Status, code, p.Title, p.Cause))
	}
	slices.Sort(rows)
	head := "| status | type | title | cause |\n|---|---|---|---|\n"
	apptest.Generated(t, "docs/reference/http.md", "problems", head+strings.Join(rows, ""), *update)
}

// writeStructs writes structs of a package of the lab.
func writeStructs(t *testing.T, out *strings.Builder, dir, types string) {
	t.Helper()
	structs := structsOf(t, path.Join("internal/lab", dir))
	for name := range strings.FieldsSeq(types) {
		s, ok := structs[name]
		if !ok {
			t.Fatalf("package %s has no struct %s", dir, name)
		}
		s.write(out, name)
	}
}

// A jsonStruct is a struct with its comment.
type jsonStruct struct {
	doc    string
	fields *ast.FieldList
}

// structsOf returns the structs of a package by name.
func structsOf(t *testing.T, dir string) map[string]jsonStruct {
	t.Helper()
	all := map[string]jsonStruct{}
	for _, decl := range declarationsOf(t, dir) {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, spec := range gen.Specs {
			if s, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType); ok {
				all[spec.(*ast.TypeSpec).Name.Name] = jsonStruct{gen.Doc.Text(), s.Fields}
			}
		}
	}
	return all
}

// declarationsOf returns the declarations of a package.
func declarationsOf(t *testing.T, dir string) (all []ast.Decl) {
	t.Helper()
	files, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, file.Decls...)
	}
	return all
}

// write writes the fields of a struct that JSON or YAML has. Words of the comments that name a Go field name the JSON field instead.
func (s jsonStruct) write(out *strings.Builder, name string) {
	names := map[string]string{}
	var rows [][3]string
	for _, field := range s.fields.List {
		kind := strings.NewReplacer("*", "", "[]", "").Replace(typeText(field.Type))
		if strings.HasPrefix(typeText(field.Type), "[]") {
			kind = "list of " + kind
		}
		if len(field.Names) == 0 {
			rows = append(rows, [3]string{"", kind, "the fields of " + kind})
			continue
		}
		if field.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(field.Tag.Value)
		tags := reflect.StructTag(tag)
		json, _, _ := strings.Cut(cmp.Or(tags.Get("json"), tags.Get("yaml")), ",")
		if err != nil || json == "" || json == "-" {
			continue
		}
		names[field.Names[0].Name] = "`" + json + "`"
		rows = append(rows, [3]string{"`" + json + "`", kind, oneLine(field.Doc.Text() + field.Comment.Text())})
	}
	word := regexp.MustCompile(`\b[A-Z]\w*\b`)
	readable := func(text string) string {
		return word.ReplaceAllStringFunc(text, func(w string) string {
			if json, ok := names[w]; ok && w != strings.ToUpper(w) && w != "Go" {
				return json
			}
			return w
		})
	}
	fmt.Fprintf(out, "\n### %s\n\n%s\n\n| field | type | meaning |\n|---|---|---|\n", name, strings.TrimPrefix(readable(oneLine(s.doc)), "A "))
	for _, row := range rows {
		fmt.Fprintf(out, "| %s | %s | %s |\n", row[0], row[1], readable(row[2]))
	}
}

// typeText spells a type for people who do not know Go.
func typeText(expr ast.Expr) string {
	switch x := expr.(type) {
	case *ast.Ident:
		words := map[string]string{
			"float64": "number", "int": "integer", "int64": "integer", "uint64": "integer", "string": "text", "bool": "true or false",
		}
		return cmp.Or(words[x.Name], x.Name)
	case *ast.StarExpr:
		return typeText(x.X)
	case *ast.ArrayType:
		return "[]" + typeText(x.Elt)
	case *ast.MapType:
		return "object of " + typeText(x.Value)
	case *ast.SelectorExpr:
		if x.Sel.Name == "Time" {
			return "time"
		}
		return x.Sel.Name
	}
	return "any"
}

// oneLine joins the lines of a comment.
func oneLine(text string) string {
	return strings.ReplaceAll(strings.Join(slices.Collect(strings.FieldsSeq(text)), " "), "|", "\\|")
}
