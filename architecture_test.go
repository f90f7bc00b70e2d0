// Package spillway_test tests the rules of the whole module: imports (architecture_test.go),
// code style (style_test.go, variables_test.go), and that the documents refer to existing
// modules, files and headings (docs_test.go).
package spillway_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const module = "spillway"

// layer is a group of packages with the same import rule.
type layer string

const (
	shared     layer = "shared"     // used by both halves; imports other shared packages only
	part       layer = "part"       // a small part of the server; imports shared packages and other parts
	engine     layer = "engine"     // the server's logic: no HTTP, no driver, no other engine but those in mayReach
	table      layer = "table"      // the statements of the server's own tables, for every database: no driver
	adapter    layer = "adapter"    // one database or store behind the engines' interfaces
	edge       layer = "edge"       // the listeners
	pages      layer = "pages"      // what a browser gets from a listener: calls its API
	demo       layer = "demo"       // the freight app
	app        layer = "app"        // builds and starts the server
	lab        layer = "lab"        // the measuring half
	suite      layer = "suite"      // imported by tests only
	command    layer = "command"    // the command line
	experiment layer = "experiment" // programs of the modules spillway/experiments and spillway/deploy, which are not shipped
)

// layers maps every package of the module to its layer, except those in experiments/ and deploy/.
var layers = map[string]layer{
	"cmd/spillway": command,

	"internal/controlgroup": shared,
	"internal/database":     shared,
	"internal/exit":         shared,
	"internal/histogram":    shared,
	"internal/netstat":      shared,
	"internal/plans":        shared,
	"internal/progress":     shared,
	"internal/stats":        shared,
	"internal/uplot":        shared,
	"internal/yaml":         shared,

	"internal/serve/audit":    part,
	"internal/serve/coalesce": part,
	"internal/serve/compress": part,
	"internal/serve/config":   part,
	"internal/serve/front":    part,
	"internal/serve/param":    part,
	"internal/serve/queue":    part,
	"internal/serve/standby":  part,
	"internal/serve/tables":   part,
	"internal/serve/token":    part,

	"internal/serve/feed":   engine,
	"internal/serve/popup":  engine,
	"internal/serve/query":  engine,
	"internal/serve/spool":  engine,
	"internal/serve/stream": engine,

	"internal/serve/popuptables":  table,
	"internal/serve/streamtables": table,

	"internal/serve/mysql":    adapter,
	"internal/serve/postgres": adapter,
	"internal/serve/redis":    adapter,
	"internal/serve/sqlite":   adapter,

	"internal/serve/admin":   edge,
	"internal/serve/openapi": edge,
	"internal/serve/server":  edge,

	"internal/serve/console": pages,

	"internal/serve/freight": demo,
	"internal/serve/app":     app,

	"internal/lab/cores":      lab,
	"internal/lab/diagnose":   lab,
	"internal/lab/doctor":     lab,
	"internal/lab/experiment": lab,
	"internal/lab/flow":       lab,
	"internal/lab/live":       lab,
	"internal/lab/load":       lab,
	"internal/lab/peak":       lab,
	"internal/lab/plan":       lab,
	"internal/lab/report":     lab,
	"internal/lab/result":     lab,
	"internal/lab/sheet":      lab,
	"internal/lab/target":     lab,
	"internal/lab/watch":      lab,

	"internal/apptest":          suite,
	"internal/lab/labtest":      suite,
	"internal/lab/searchtest":   suite,
	"internal/serve/chaostest":  suite,
	"internal/serve/crashtest":  suite,
	"internal/serve/popuptest":  suite,
	"internal/serve/servetest":  suite,
	"internal/serve/storetest":  suite,
	"internal/serve/streamtest": suite,

	"scripts/shake":   suite,
	"scripts/testrun": suite,
}

// mayImport lists the layers that non-test code of each layer may import. Tests may import
// anything.
var mayImport = map[layer][]layer{
	shared:     {shared},
	part:       {shared, part},
	engine:     {shared, part},
	table:      {shared, part, engine},
	adapter:    {shared, part, engine, table},
	edge:       {shared, part, engine},
	pages:      {shared, part, engine, edge},
	demo:       {shared},
	app:        {shared, part, engine, adapter, edge, pages, demo},
	lab:        {shared, lab},
	suite:      {shared, part, engine, adapter, edge, pages, demo, app, lab, suite},
	command:    {shared, part, engine, demo, app, lab},
	experiment: {shared, part, lab, experiment},
}

// drivers connect to a database or store.
var drivers = []string{
	"database/sql",
	"github.com/go-sql-driver/mysql",
	"github.com/jackc/pgx",
	"github.com/redis/rueidis",
	"modernc.org/sqlite",
	"zombiezen.com/go/sqlite",
}

// mayReach lists drivers and packages that a package may import although its layer may not.
var mayReach = map[string][]string{
	"internal/database":    drivers,                     // opens connections for both halves
	"internal/serve/spool": {"zombiezen.com/go/sqlite"}, // owns its file
	"internal/serve/query": {"internal/serve/feed"},     // a query is a feed without a key, read from the same source
}

const (
	fasthttp    = "github.com/valyala/fasthttp"
	commandLine = "github.com/alecthomas/kong"
)

// mustNotImport lists the packages from outside the module that non-test code of each layer
// must not import, including their sub-packages.
var mustNotImport = map[layer][]string{
	shared: append([]string{"net/http", fasthttp, commandLine}, drivers...),
	part:   append([]string{"net/http", fasthttp, commandLine}, drivers...),
	engine: append([]string{"net/http", fasthttp, commandLine}, drivers...),
	edge:   append([]string{commandLine}, drivers...),
	pages:  append([]string{commandLine}, drivers...),

	adapter: {fasthttp, commandLine},
	demo:    {fasthttp, commandLine},
	app:     {fasthttp, commandLine},
	lab:     {commandLine},
}

func TestImportRule(t *testing.T) {
	files := readModule(t)
	for _, problem := range checkImports(files) {
		t.Error(problem)
	}
	dirs := packageDirs(files)
	for _, dir := range slices.Sorted(maps.Keys(layers)) {
		if !slices.Contains(dirs, dir) {
			t.Errorf("%s is in layers but has no Go files: delete its entry", dir)
		}
	}
}

// checkImports returns all violations of the import rule.
func checkImports(files []sourceFile) []string {
	var problems []string
	for _, dir := range packageDirs(files) {
		if layerOf(dir) == "" {
			problems = append(problems, fmt.Sprintf("%s is in no layer: add it to layers in architecture_test.go", dir))
		}
	}
	for _, f := range files {
		from := layerOf(f.dir())
		if f.test() || from == "" {
			continue
		}
		for _, spec := range f.syntax.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			if reason := refuse(f.dir(), from, name); reason != "" {
				problems = append(problems, fmt.Sprintf("%s imports %s: %s", f.path, name, reason))
			}
		}
	}
	return problems
}

// refuse returns why a package in layer from must not import name; "" if it may.
func refuse(dir string, from layer, name string) string {
	sibling, ours := strings.CutPrefix(name, module+"/")
	if !ours {
		for _, prefix := range mustNotImport[from] {
			if slices.Contains(mayReach[dir], prefix) {
				continue
			}
			if name == prefix || strings.HasPrefix(name, prefix+"/") {
				return fmt.Sprintf("the %s layer must not import it", from)
			}
		}
		return ""
	}
	to := layerOf(sibling)
	switch {
	case to == "":
		return "it is in no layer"
	case slices.Contains(mayImport[from], to), slices.Contains(mayReach[dir], sibling):
		return ""
	}
	return fmt.Sprintf("%s is in the %s layer, which may import %v, not the %s layer", dir, from, mayImport[from], to)
}

// layerOf returns the layer of a package's directory; "" if it has none.
func layerOf(dir string) layer {
	if strings.HasPrefix(dir, "experiments/") || strings.HasPrefix(dir, "deploy/") {
		return experiment
	}
	return layers[dir]
}

func TestCheckImports(t *testing.T) {
	tree := fstest.MapFS{
		"internal/serve/config/a.go":        goFile("config", "os"),
		"internal/lab/live/a.go":            goFile("live", "spillway/internal/serve/config"),
		"internal/database/a.go":            goFile("database", "github.com/jackc/pgx/v5", "net/http"),
		"internal/progress/a.go":            goFile("progress", "spillway/internal/lab/live", "database/sql"),
		"internal/serve/feed/a.go":          goFile("feed", "spillway/internal/serve/config", "spillway/internal/serve/query", "net/http"),
		"internal/serve/query/a.go":         goFile("query", "github.com/jackc/pgx/v5/pgxpool", "net/httpish"),
		"internal/serve/query/a_test.go":    goFile("query", "spillway/internal/serve/postgres", "net/http"),
		"internal/serve/postgres/a.go":      goFile("postgres", "spillway/internal/serve/feed", "spillway/internal/serve/sqlite", "github.com/jackc/pgx/v5"),
		"internal/serve/server/a.go":        goFile("server", "spillway/internal/serve/feed", "spillway/internal/serve/postgres"),
		"internal/serve/freight/a.go":       goFile("freight", "spillway/internal/serve/feed"),
		"internal/serve/app/a.go":           goFile("app", "spillway/internal/serve/postgres", "spillway/internal/lab/load"),
		"internal/lab/load/a.go":            goFile("load", "spillway/internal/lab/target", "spillway/internal/serve/feed"),
		"internal/serve/storetest/a.go":     goFile("storetest", "spillway/internal/serve/postgres"),
		"internal/helper/a.go":              goFile("helper"),
		"cmd/spillway/main.go":              goFile("main", "spillway/internal/serve/app", "spillway/internal/serve/postgres", "spillway/internal/serve/storetest", "spillway/internal/helper"),
		"experiments/go.mod":                {Data: []byte("module spillway/experiments\n")},
		"experiments/seed/main.go":          goFile("main", "spillway/internal/histogram", "spillway/experiments/seed/rows", "spillway/internal/serve/feed"),
		"experiments/own/go.mod":            {Data: []byte("module own\n")},
		"experiments/own/main.go":           goFile("main", "spillway/internal/serve/feed"),
		"internal/serve/feed/testdata/x.go": goFile("x", "spillway/internal/serve/postgres"),
	}
	files, err := readTree(tree)
	if err != nil {
		t.Fatal(err)
	}
	got := checkImports(files)
	for i := range got {
		got[i], _, _ = strings.Cut(got[i], ":")
	}
	want := []string{
		"internal/helper is in no layer",
		"cmd/spillway/main.go imports spillway/internal/serve/postgres",
		"cmd/spillway/main.go imports spillway/internal/serve/storetest",
		"cmd/spillway/main.go imports spillway/internal/helper",
		"experiments/seed/main.go imports spillway/internal/serve/feed",
		"internal/database/a.go imports net/http",
		"internal/lab/live/a.go imports spillway/internal/serve/config",
		"internal/lab/load/a.go imports spillway/internal/serve/feed",
		"internal/progress/a.go imports spillway/internal/lab/live",
		"internal/progress/a.go imports database/sql",
		"internal/serve/app/a.go imports spillway/internal/lab/load",
		"internal/serve/feed/a.go imports spillway/internal/serve/query",
		"internal/serve/feed/a.go imports net/http",
		"internal/serve/freight/a.go imports spillway/internal/serve/feed",
		"internal/serve/postgres/a.go imports spillway/internal/serve/sqlite",
		"internal/serve/query/a.go imports github.com/jackc/pgx/v5/pgxpool",
		"internal/serve/server/a.go imports spillway/internal/serve/postgres",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("breaches found (-want +got):\n%s", diff)
	}
}

// goFile returns a Go file of a package with imports.
func goFile(name string, imports ...string) *fstest.MapFile {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n", name)
	for _, path := range imports {
		fmt.Fprintf(&b, "import _ %q\n", path)
	}
	return &fstest.MapFile{Data: []byte(b.String())}
}

// sourceFile is one parsed Go file.
type sourceFile struct {
	path   string // slash-separated, relative to the module's root
	text   []byte
	fset   *token.FileSet
	syntax *ast.File
}

func (f sourceFile) dir() string { return path.Dir(f.path) }

func (f sourceFile) test() bool { return strings.HasSuffix(f.path, "_test.go") }

// at returns a node's position as file:line.
func (f sourceFile) at(node ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(node.Pos()).Line)
}

// readModule parses all Go files of this module, of experiments and of deploy, regardless of build tags.
func readModule(t *testing.T) []sourceFile {
	t.Helper()
	files, err := readTree(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found %d Go files: this test must run in the module's root", len(files))
	}
	return files
}

// readTree parses the Go files in fsys in path order, except in testdata, hidden directories
// and nested modules other than experiments and deploy.
func readTree(fsys fs.FS) ([]sourceFile, error) {
	var files []sourceFile
	fset := token.NewFileSet()
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && foreign(fsys, name):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, sourceFile{path: name, text: text, fset: fset, syntax: syntax})
		return nil
	})
	return files, err
}

// foreign reports whether dir's files belong neither to this module nor to experiments and deploy, which
// have the same rules.
func foreign(fsys fs.FS, dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(dir, "go.mod"))
	return err == nil && dir != "experiments" && dir != "deploy"
}

// packageDirs returns the directories of files, except the root.
func packageDirs(files []sourceFile) []string {
	var dirs []string
	for _, f := range files {
		if dir := f.dir(); dir != "." && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
