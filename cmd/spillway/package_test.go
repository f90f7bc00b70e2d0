package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"spillway"
)

//go:embed testdata/package/completions.tmpl
var packageTemplates string

// deploy/package has completions for three shells and a man page. They name every command and every flag.
func TestPackageFiles(t *testing.T) {
	templates := template.Must(template.New("").Funcs(template.FuncMap{
		"roff": roff, "one": func(s string) string { return strings.NewReplacer("'", "’", "\n", " ").Replace(s) },
		"zsh": strings.NewReplacer("'", "’", "[", `\[`, "]", `\]`, ":", `\:`, "\n", " ").Replace,
	}).Parse(packageTemplates))
	commands := commandTree(t)
	for _, name := range []string{"spillway.bash", "_spillway", "spillway.fish", "spillway.1"} {
		var got bytes.Buffer
		if err := templates.ExecuteTemplate(&got, name, commands); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("..", "..", "deploy", "package", name)
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s is not what the command line is; write it with go test ./cmd/spillway -run PackageFiles -update:\n%s", file, diff)
		}
	}
}

// commandPage is one command for the templates.
type commandPage struct {
	Name     string // "spool status"; "" is the program
	Slug     string // "spool_status"
	Help     string
	Detail   string
	Usage    string
	Children []*commandPage
	Flags    []flagLine
	Values   []*kong.Positional
	Version  string
}

// Word returns the last word of the command.
func (p *commandPage) Word() string { return p.Name[strings.LastIndexByte(p.Name, ' ')+1:] }

// All returns the command and all below it.
func (p *commandPage) All() []*commandPage {
	all := []*commandPage{p}
	for _, child := range p.Children {
		all = append(all, child.All()...)
	}
	return all
}

// flagLine is one flag for the templates.
type flagLine struct {
	Name, Help, Value string // Value: "" takes none
	Enum              []string
	Files             bool // its value may be a file
}

func commandTree(t *testing.T) *commandPage {
	t.Helper()
	parser, err := kong.New(&cli{}, kong.Name("spillway"), kong.Vars{"version": versionLine()})
	if err != nil {
		t.Fatal(err)
	}
	explain(parser.Model.Node)
	page := describeNode(parser.Model.Node)
	page.Version = spillway.Version()
	return page
}

func describeNode(node *kong.Node) *commandPage {
	name := strings.TrimSpace(strings.TrimPrefix(node.Path(), "spillway"))
	page := &commandPage{
		Name: name, Slug: strings.NewReplacer(" ", "_", "-", "_").Replace(name), Help: node.Help, Detail: node.Detail, Usage: node.Summary(),
		Values: node.Positional,
	}
	for _, f := range node.Flags {
		if f.Hidden || f.Name == "help" {
			continue
		}
		line := flagLine{Name: f.Name, Help: f.Help}
		if !f.IsBool() {
			line.Value = strings.Trim(f.FormatPlaceHolder(), `"`)
			line.Enum = strings.FieldsFunc(f.Enum, func(r rune) bool { return r == ',' })
			line.Files = len(line.Enum) == 0
		}
		page.Flags = append(page.Flags, line)
	}
	for _, child := range node.Children {
		if !child.Hidden {
			page.Children = append(page.Children, describeNode(child))
		}
	}
	return page
}

// roff escapes text for a man page. Indented lines stay as they are.
func roff(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(strings.TrimSuffix(line, "\n"))
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		if example, ok := strings.CutPrefix(line, "  "); ok {
			line = ".br\n\\ \\ " + example
		}
		if line == "" {
			line = ".PP"
		}
		fmt.Fprintln(&b, line)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
