package spillway_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/serve/config"
)

// docs/reference/dependencies.md lists exactly the direct dependencies: in its first table those that the
// program imports, also indirectly, in its last those of the experiments.
func TestDependenciesAreExplained(t *testing.T) {
	want, err := directModules(".")
	if err != nil {
		t.Fatal(err)
	}
	studies, err := directModules("experiments")
	if err != nil {
		t.Fatal(err)
	}
	studies = slices.DeleteFunc(studies, func(m string) bool { return m == module })
	linked, err := programModules()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("docs/reference/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	product, experiments, found := strings.Cut(string(text), "\n## In the experiments\n")
	if !found {
		t.Fatal("docs/reference/dependencies.md has no section In the experiments")
	}
	_, program, found := strings.Cut(product, "\n## In the program\n")
	if !found {
		t.Fatal("docs/reference/dependencies.md has no section In the program")
	}
	program, _, _ = strings.Cut(program, "\n## ")
	for _, check := range []struct {
		name      string
		want, got []string
	}{
		{"tables of the product", want, explained(product)},
		{"In the program", slices.DeleteFunc(slices.Clone(want), func(m string) bool { return !slices.Contains(linked, m) }), explained(program)},
		{"In the experiments", studies, explained(experiments)},
	} {
		slices.Sort(check.want)
		slices.Sort(check.got)
		if diff := cmp.Diff(check.want, check.got); diff != "" {
			t.Errorf("docs/reference/dependencies.md, %s (-go.mod +document):\n%s", check.name, diff)
		}
	}
}

// programModules returns the modules of all packages that the program imports.
func programModules() ([]string, error) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./cmd/spillway")
	cmd.Env = append(os.Environ(), "GOOS=linux") // the lab requires it
	out, err := cmd.Output()
	return strings.Fields(string(out)), err
}

// directModules returns the modules that the module in dir imports or runs as tools.
func directModules(dir string) ([]string, error) {
	out, err := exec.Command("go", "-C", dir, "mod", "edit", "-json").Output()
	if err != nil {
		return nil, err
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool []struct{ Path string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, err
	}
	var modules []string
	for _, r := range mod.Require {
		tool := slices.ContainsFunc(mod.Tool, func(t struct{ Path string }) bool {
			return t.Path == r.Path || strings.HasPrefix(t.Path, r.Path+"/")
		})
		if !r.Indirect || tool {
			modules = append(modules, r.Path)
		}
	}
	return modules, nil
}

// explained returns the modules that open a table row: | `module` | ...
func explained(document string) []string {
	var modules []string
	for line := range strings.Lines(document) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		if name := strings.TrimSpace(cells[1]); strings.HasPrefix(name, "`") {
			modules = append(modules, strings.Trim(name, "`"))
		}
	}
	return modules
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile("(?m)^#+ +(.*)$")
	fenced  = regexp.MustCompile("(?s)```.*?```")
)

// Links between the documents lead to existing files and headings.
func TestLinksLeadSomewhere(t *testing.T) {
	root := os.DirFS(".")
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		for _, broken := range brokenLinks(root, name, string(text)) {
			t.Errorf("%s links to %s, which does not exist", name, broken)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// brokenLinks returns the relative links of a document whose targets do not exist.
func brokenLinks(root fs.FS, name, text string) []string {
	var broken []string
	for _, match := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		target, err := url.Parse(match[1])
		if err != nil || target.IsAbs() {
			continue
		}
		file := name
		if target.Path != "" {
			file = path.Join(path.Dir(name), target.Path)
		}
		if _, err := fs.Stat(root, file); err != nil {
			broken = append(broken, match[1])
			continue
		}
		if target.Fragment == "" {
			continue
		}
		if content, err := fs.ReadFile(root, file); err != nil || !slices.Contains(anchors(string(content)), target.Fragment) {
			broken = append(broken, match[1])
		}
	}
	return broken
}

// anchors returns the link fragments of a document's headings.
func anchors(text string) []string {
	var names []string
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(match[1]))
		names = append(names, name)
	}
	return names
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// The configurations in the documents are valid.
func TestConfigurationExamples(t *testing.T) {
	env := func(string) (string, bool) { return "as-long-as-a-token-has-to-be", true }
	secret := func(string) ([]byte, error) { return []byte("as-long-as-a-token-has-to-be"), nil }
	names, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	for _, name := range append(names, "README.md", "README.zh-CN.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllSubmatch(text, -1) {
			examples++
			if _, err := config.Read(name, block[1], env, secret); err != nil {
				t.Errorf("%v in\n%s", err, block[1])
			}
		}
	}
	if examples < 2 {
		t.Errorf("found %d examples, want at least those of the two READMEs", examples)
	}
}

// Limits of what is written by hand in docs.
const (
	documentBytesMax = 150_000
	columnsMax       = 120 // of a line that is not of a table or a comment
	wordsMax         = 34  // of a sentence in a paragraph or a list
)

var (
	generated = regexp.MustCompile(`(?s)<!-- (?:table:configuration|[^>]*generated by go test[^>]*) -->\n.*?<!-- (?:/table|end of [^>]*) -->`)
	codeSpan  = regexp.MustCompile("`[^`]*`")
	target    = regexp.MustCompile(`\]\([^)]*\)`)
	item      = regexp.MustCompile(`^ *(- |[0-9]+\. )`)
	sentence  = regexp.MustCompile(`[.!?]["”)*]* +`)
)

// The documents that people write are short, in all and line by line.
func TestDocumentsAreShort(t *testing.T) {
	names, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	for _, name := range append(names, "docs/README.md", "README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "<!-- made by ") {
			continue
		}
		byHand := generated.ReplaceAllString(string(text), "")
		if name != "README.md" {
			written += len(byHand)
		}
		for _, complaint := range complaints(byHand) {
			t.Errorf("%s: %s", name, complaint)
		}
	}
	if written > documentBytesMax {
		t.Errorf("docs has %d bytes that are written by hand, at most %d are allowed", written, documentBytesMax)
	}
}

// complaints returns the long lines and sentences of a document.
func complaints(document string) (found []string) {
	for line := range strings.Lines(document) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > columnsMax && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "<!--") {
			found = append(found, fmt.Sprintf("%d columns: %s", n, line))
		}
	}
	for _, paragraph := range paragraphs(fenced.ReplaceAllString(document, "\n")) {
		paragraph = target.ReplaceAllString(codeSpan.ReplaceAllString(paragraph, "X"), "]")
		for _, s := range sentence.Split(paragraph, -1) {
			if n := len(strings.Fields(s)); n > wordsMax {
				found = append(found, fmt.Sprintf("a sentence of %d words: %s", n, s))
			}
		}
	}
	return found
}

// paragraphs returns the paragraphs and the items of lists of a document, each in one line.
func paragraphs(document string) (all []string) {
	var lines []string
	end := func() {
		all = append(all, strings.Join(lines, " "))
		lines = nil
	}
	for line := range strings.Lines(document) {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || strings.HasPrefix(line, "    ") && lines == nil || strings.ContainsRune("#|<", rune(text[0])):
			end()
		case item.MatchString(line):
			end()
			lines = []string{item.ReplaceAllString(text, "")}
		default:
			lines = append(lines, text)
		}
	}
	end()
	return all
}

func TestExplained(t *testing.T) {
	document := "| Module | Why |\n|---|---|\n| `a.example/b` | b |\n| plain | no |\ntext `a.example/c`\n"
	if diff := cmp.Diff([]string{"a.example/b"}, explained(document)); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
}

func TestBrokenLinks(t *testing.T) {
	text := "# One thing, two: `x`\n[a](b.md) [b](none.md) [c](#one-thing-two-x) [d](#three) [e](https://example.com)" +
		" [f](b.md#four)\n```\n[g](none)\n```\n"
	root := fstest.MapFS{
		"docs/a.md": {Data: []byte(text)},
		"docs/b.md": {Data: []byte("# B\n")},
	}
	if diff := cmp.Diff([]string{"none.md", "#three", "b.md#four"}, brokenLinks(root, "docs/a.md", text)); diff != "" {
		t.Errorf("broken links (-want +got):\n%s", diff)
	}
}

// The paths in docs/explanation/architecture.md name files that exist, and none is longer than 8 files.
func TestPathsInArchitectureExist(t *testing.T) {
	text, err := os.ReadFile("docs/explanation/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Paths\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("docs/explanation/architecture.md has no section Paths")
	}
	files := regexp.MustCompile(`\b([a-z]+/[a-z_0-9]+)\b`)
	checked := 0
	for line := range strings.Lines(section) {
		if !strings.Contains(line, "->") {
			continue
		}
		names := files.FindAllString(line, -1)
		if len(names) > 8 {
			t.Errorf("a path has %d files: %s", len(names), line)
		}
		for _, name := range names {
			checked++
			_, serve := os.Stat("internal/serve/" + name + ".go")
			_, lab := os.Stat("internal/lab/" + name + ".go")
			if serve != nil && lab != nil {
				t.Errorf("%s is neither in internal/serve nor in internal/lab: %s", name, line)
			}
		}
	}
	if checked < 30 {
		t.Errorf("found only %d file names", checked)
	}
}
