package spillway_test

import (
	"flag"
	"fmt"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"spillway/internal/apptest"
)

var update = flag.Bool("update", false, "write what is generated into the documents")

// The architecture page lists every package with the first sentence of its comment, and the layers with what they may import.
func TestPackagesAreListed(t *testing.T) {
	const page = "docs/explanation/architecture.md"
	var packages, rule strings.Builder
	packages.WriteString("| package | layer | what it is for |\n|---|---|---|\n")
	for _, dir := range slices.Sorted(maps.Keys(layers)) {
		fmt.Fprintf(&packages, "| `%s` | %s | %s |\n", strings.TrimPrefix(dir, "internal/"), layers[dir], purpose(t, dir))
	}
	apptest.Generated(t, page, "packages", packages.String(), *update)
	rule.WriteString("| layer | may import |\n|---|---|\n")
	for _, l := range []layer{shared, part, engine, table, adapter, edge, pages, demo, app, lab, command, suite, experiment} {
		names := make([]string, len(mayImport[l]))
		for i, other := range mayImport[l] {
			names[i] = string(other)
		}
		fmt.Fprintf(&rule, "| %s | %s |\n", l, strings.Join(names, ", "))
	}
	apptest.Generated(t, page, "import rule", rule.String(), *update)
}

// purpose returns the first sentence of a package's comment without its first words, "Package x".
func purpose(t *testing.T, dir string) string {
	t.Helper()
	files, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path.Join(dir, name), nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if file.Doc == nil || !strings.HasPrefix(file.Doc.Text(), "Package ") && !strings.HasPrefix(file.Doc.Text(), "Command ") {
			continue
		}
		sentence := new(doc.Package).Synopsis(file.Doc.Text())
		_, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(sentence, "Package "), "Command "), " ")
		rest = strings.TrimRight(strings.TrimPrefix(rest, "is "), ":.")
		return strings.ToUpper(rest[:1]) + rest[1:]
	}
	t.Fatalf("%s has no comment of the package", dir)
	return ""
}
