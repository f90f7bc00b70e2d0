package spillway_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// checkVariables rejects mutable package-level variables in non-test code. Such a variable
// must be a table, an error value or a compiled pattern, and its package must not write to it.
func checkVariables(files []sourceFile) []string {
	var problems []string
	for _, dir := range packageDirs(files) {
		var shipped []sourceFile
		for _, f := range files {
			if f.dir() == dir && !f.test() {
				shipped = append(shipped, f)
			}
		}
		if len(shipped) > 0 {
			problems = append(problems, checkPackageVariables(shipped)...)
		}
	}
	return problems
}

// checkPackageVariables is checkVariables for the files of one package.
func checkPackageVariables(files []sourceFile) []string {
	var problems []string
	info, scope := resolve(files)
	for _, f := range files {
		for _, decl := range f.syntax.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.VAR {
				continue
			}
			for _, spec := range group.Specs {
				problems = append(problems, checkSpec(f, group, spec.(*ast.ValueSpec))...)
			}
		}
	}
	for _, f := range files {
		ast.Inspect(f.syntax, func(node ast.Node) bool {
			for _, target := range written(node, info) {
				if name := root(target); name != nil && isPackageVariable(info.Uses[name], scope) {
					problems = append(problems, fmt.Sprintf("%s: package variable %s is written to", f.at(node), name.Name))
				}
			}
			return true
		})
	}
	return problems
}

// resolve finds the object of each name in the package. It does not resolve imports, which
// are not needed to distinguish package variables from local ones.
func resolve(files []sourceFile) (*types.Info, *types.Scope) {
	info := &types.Info{
		Uses:       map[*ast.Ident]types.Object{},
		Defs:       map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	checker := types.Config{
		Importer: noImports{},
		Error:    func(error) {}, // unknown imports; the compiler reports the rest
	}
	syntax := make([]*ast.File, len(files))
	for i, f := range files {
		syntax[i] = f.syntax
	}
	pkg, _ := checker.Check(files[0].dir(), files[0].fset, syntax, info)
	return info, pkg.Scope()
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

func isPackageVariable(object types.Object, scope *types.Scope) bool {
	variable, ok := object.(*types.Var)
	return ok && variable.Parent() == scope
}

// checkSpec rejects variables with mutable values.
func checkSpec(f sourceFile, group *ast.GenDecl, spec *ast.ValueSpec) []string {
	var problems []string
	for i, name := range spec.Names {
		fixed := name.Name == "_" || embedded(group, spec)
		switch {
		case fixed:
		case len(spec.Values) == 0: // never written, or only by the linker
			fixed = isPlain(spec.Type)
		case len(spec.Values) == len(spec.Names):
			fixed = isFixed(spec.Values[i])
		}
		if !fixed {
			problems = append(problems, fmt.Sprintf("%s: package variable %s can change: pass it as an argument or put it in a struct", f.at(name), name.Name))
		}
	}
	return problems
}

// isPlain reports whether a type is an array, a slice or a basic type.
func isPlain(expr ast.Expr) bool {
	switch expr := expr.(type) {
	case *ast.ArrayType:
		return true
	case *ast.Ident:
		_, basic := types.Universe.Lookup(expr.Name).(*types.TypeName)
		return basic
	}
	return false
}

// embedded reports whether the variable has a go:embed directive.
func embedded(group *ast.GenDecl, spec *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{group.Doc, spec.Doc} {
		if doc == nil {
			continue
		}
		for _, line := range doc.List {
			if strings.HasPrefix(line.Text, "//go:embed ") {
				return true
			}
		}
	}
	return false
}

// fixedCalls are calls that return immutable values.
var fixedCalls = []string{
	"errors.New", "fmt.Errorf", "regexp.MustCompile", "strings.NewReplacer", "template.Must",
	"time.Date", "netip.MustParsePrefix", "crc32.MakeTable", "reflect.TypeFor", "rueidis.NewLuaScript",
}

// isFixed reports whether an initial value is immutable, such as a table or a constant.
func isFixed(value ast.Expr) bool {
	switch value := value.(type) {
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr, *ast.FuncLit, *ast.BinaryExpr:
		return true
	case *ast.UnaryExpr:
		return value.Op != token.AND
	case *ast.CompositeLit:
		name := callName(value.Type)
		return !strings.HasPrefix(name, "sync.") && !strings.HasPrefix(name, "atomic.")
	case *ast.CallExpr:
		if _, conversion := value.Fun.(*ast.ArrayType); conversion {
			return true
		}
		if method, ok := value.Fun.(*ast.SelectorExpr); ok {
			if made, ok := method.X.(*ast.CallExpr); ok {
				return isFixed(made) // time.Date(...).Unix()
			}
		}
		return slices.Contains(fixedCalls, callName(value.Fun))
	}
	return false
}

// callName returns "package.Name" for a qualified name, without type arguments; otherwise "".
func callName(expr ast.Expr) string {
	if index, ok := expr.(*ast.IndexExpr); ok {
		expr = index.X
	}
	selector, ok := expr.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if pkg, ok := selector.X.(*ast.Ident); ok {
		return pkg.Name + "." + selector.Sel.Name
	}
	return ""
}

// written returns the expressions that a node assigns to, or whose address it takes.
func written(node ast.Node, info *types.Info) []ast.Expr {
	switch node := node.(type) {
	case *ast.AssignStmt:
		if node.Tok != token.DEFINE {
			return node.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{node.X}
	case *ast.RangeStmt:
		if node.Tok == token.ASSIGN {
			return []ast.Expr{node.Key, node.Value}
		}
	case *ast.UnaryExpr:
		if node.Op == token.AND {
			return []ast.Expr{node.X}
		}
	case *ast.CallExpr:
		name, ok := node.Fun.(*ast.Ident)
		if ok && len(node.Args) > 0 && slices.Contains([]string{"delete", "clear", "copy"}, name.Name) {
			return node.Args[:1]
		}
	case *ast.SelectorExpr:
		if takesAddress(info.Selections[node]) {
			return []ast.Expr{node.X}
		}
	}
	return nil
}

// takesAddress reports whether a selection calls a method with a pointer receiver on a value.
func takesAddress(selection *types.Selection) bool {
	if selection == nil || selection.Kind() != types.MethodVal {
		return false
	}
	if _, pointer := selection.Recv().Underlying().(*types.Pointer); pointer {
		return false
	}
	method, ok := selection.Obj().(*types.Func)
	if !ok {
		return false
	}
	_, pointer := method.Signature().Recv().Type().(*types.Pointer)
	return pointer
}

// root returns the variable at the root of an expression: x for x.f[i].
func root(expr ast.Expr) *ast.Ident {
	for {
		switch e := expr.(type) {
		case *ast.Ident:
			return e
		case *ast.SelectorExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.SliceExpr:
			expr = e.X
		case *ast.StarExpr:
			expr = e.X
		case *ast.ParenExpr:
			expr = e.X
		default:
			return nil
		}
	}
}

// variables is a package with allowed and rejected variables.
func variables() fstest.MapFS {
	return fstest.MapFS{
		"a/good.go": code(`import "sync"
			var ErrGone = errors.New("gone")
			var _ fmt.Stringer = thing{}
			//go:embed schema.json
			var schema []byte
			var pattern = regexp.MustCompile("x")
			var names = map[string]int{"a": 1}
			var version = "dev"
			var kind = reflect.TypeFor[thing]()
			var commit string
			var comma = []byte(",")
			var zeros [64]byte
			var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
			type thing struct{ n int }
			func (t thing) String() string { return "" }
			func (t *thing) grow() { t.n++ }
			func local() {
				names := map[string]int{}
				names["b"] = 2
				version := "x"
				version += "y"
				var mu sync.Mutex
				mu.Lock()
			}`),
		"a/shared.go": code(`
			var pool = sync.Pool{}
			var mu sync.Mutex
			var client = http.NewClient()
			var one = &thing{}
			var a, b = pair()`),
		"a/writes.go": code(`
			func change() {
				names["b"] = 2
				version = "x"
				delete(names, "b")
				count(&zeros)
				copy(zeros[:], comma)
				whole.grow()
				whole.n++
				counter++
			}
			var whole = thing{}
			var counter int`),
	}
}

func TestCheckVariables(t *testing.T) {
	files, err := readTree(variables())
	if err != nil {
		t.Fatal(err)
	}
	got := checkVariables(files)
	for i := range got {
		got[i], _, _ = strings.Cut(got[i], ": pass")
	}
	want := []string{
		"a/shared.go:3: package variable pool can change",
		"a/shared.go:4: package variable mu can change",
		"a/shared.go:5: package variable client can change",
		"a/shared.go:6: package variable one can change",
		"a/shared.go:7: package variable a can change",
		"a/shared.go:7: package variable b can change",
		"a/writes.go:4: package variable names is written to",
		"a/writes.go:5: package variable version is written to",
		"a/writes.go:6: package variable names is written to",
		"a/writes.go:7: package variable zeros is written to",
		"a/writes.go:8: package variable zeros is written to",
		"a/writes.go:9: package variable whole is written to",
		"a/writes.go:10: package variable whole is written to",
		"a/writes.go:11: package variable counter is written to",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("breaches found (-want +got):\n%s", diff)
	}
}
