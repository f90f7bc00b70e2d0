package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/yaml"
)

// A secret is written as a reference, so that its value is in no file of a run: ${NAME} is an environment variable, and file:PATH
// as the whole value is the content of a file. References count in settings, in env, and in URLs; $${ stands for ${.
//
// Filled-in text holds a reference between two marks, until a process starts or a file of a service is written. What the run
// records is the text without the marks.

const referenceMark = "\x00"

var markedUse = regexp.MustCompile(referenceMark + `([^` + referenceMark + `]*)` + referenceMark)

// fileReference begins a reference to a file.
const fileReference = "file:"

// secrets are the values of the references that have been marked, by reference.
type secrets map[string]string

// mark marks the references in a value of the file. whole is true if the value may also be file:PATH.
func (s *templateData) mark(path, text string, whole bool) (string, error) {
	if name, ok := strings.CutPrefix(text, fileReference); ok && whole {
		if !filepath.IsAbs(name) {
			name = filepath.Join(s.layout.source, name)
		}
		value, err := readSecret(name)
		if err != nil {
			return "", s.file.mistake(path, "%v", err)
		}
		return s.layout.secrets.mark(fileReference+name, value), nil
	}
	marked, err := yaml.Expand(text, func(name string) (string, bool) {
		value, set := os.LookupEnv(name)
		return s.layout.secrets.mark("${"+name+"}", value), set
	})
	if err != nil {
		return "", s.file.mistake(path, "%v", err)
	}
	return marked, nil
}

// mark remembers the value of a reference, and returns the reference between marks.
func (s secrets) mark(reference, value string) string {
	s[reference] = value
	return referenceMark + reference + referenceMark
}

// secretMax limits the size of a secret's file, in bytes.
const secretMax = 64 << 10

func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is no regular file")
	case info.Size() > secretMax:
		err = fmt.Errorf("it has more than %d bytes", secretMax)
	}
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// expand replaces the marked references by their values.
func (s secrets) expand(text string) string {
	return markedUse.ReplaceAllStringFunc(text, func(use string) string { return s[unmark(use)] })
}

func (s secrets) expandAll(texts []string) []string {
	expanded := make([]string, len(texts))
	for i, text := range texts {
		expanded[i] = s.expand(text)
	}
	return expanded
}

// unmark returns filled-in text with its references as they are written.
func unmark(text string) string { return strings.ReplaceAll(text, referenceMark, "") }

func unmarkAll(texts []string) []string {
	unmarked := make([]string, len(texts))
	for i, text := range texts {
		unmarked[i] = unmark(text)
	}
	return unmarked
}

// hiddenMin is the length of the shortest secret that is removed from texts, in bytes: a shorter one would match by chance.
const hiddenMin = 6

// hidden are the values to remove from texts that other programs wrote, the longest first.
func (s secrets) hidden() []string {
	values := slices.DeleteFunc(slices.Collect(maps.Values(s)), func(value string) bool { return len(value) < hiddenMin })
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return values
}

// hide removes the values from a text.
func (s secrets) hide(text string) string {
	for _, value := range s.hidden() {
		text = strings.ReplaceAll(text, value, "xxxxx")
	}
	return text
}

const passwords = `(.*[-_])?(pass|pwd)|.*pass(word|wd|phrase)|.*secret|.*(api|access)[-_]?key`

// Places of secrets.
var (
	secretName  = regexp.MustCompile(`(?i)^-*(` + passwords + `|(.*[-_])?token|(proxy-)?authorization|.*credentials?)$`)
	memberName  = regexp.MustCompile(`(?i)^(` + passwords + `)$`) // no token: requests of a load have them as data
	namedPlace  = regexp.MustCompile(`(?:^|\.)(?:settings|env)\.([^.]+)$`)
	namedValue  = regexp.MustCompile(`^([A-Za-z0-9_-]+)(?:=|:\s+)(.+)$`)                           // --NAME=VALUE, NAME=VALUE or a header
	innerValue  = regexp.MustCompile(`([A-Za-z0-9_-]+)(?:=|"\s*:\s*)("[^"]*"|'[^']*'|[^\s&;,}]+)`) // in a URL, a connection string or JSON
	urlPassword = regexp.MustCompile(`//[^/@:\s]*:([^/@\s]+)@`)
	dsnPassword = regexp.MustCompile(`[^/@:=\s]*:([^@\s]+)@(?:tcp|unix|\()`) // of a MySQL driver
	notLiteral  = regexp.MustCompile(`^["']?(file:|\{)|\$\{[^}]*\}|\{\{.*?\}\}`)
)

// checkSecrets refuses secrets that are written in the file. It knows the password of a URL or a connection string, and what has the
// name of a secret: a setting, an environment variable, a header, an argument of a command, a parameter or a JSON member.
func (f *File) checkSecrets(wrong reporter) {
	for _, path := range slices.Sorted(maps.Keys(f.places)) {
		if slices.ContainsFunc(f.secretsAt(path), func(secret string) bool { return !notLiteral.MatchString(secret) }) {
			wrong(path, "has a secret; write ${NAME}, an environment variable, or file:PATH. In a command, use a setting with one of them")
		}
	}
}

// secretsAt returns the parts of a value that can only be secrets.
func (f *File) secretsAt(path string) (secrets []string) {
	text := f.places[path].Text
	for _, password := range []*regexp.Regexp{urlPassword, dsnPassword} {
		for _, m := range password.FindAllStringSubmatch(text, -1) {
			secrets = append(secrets, m[1])
		}
	}
	for _, m := range innerValue.FindAllStringSubmatch(text, -1) {
		if memberName.MatchString(m[1]) {
			secrets = append(secrets, m[2])
		}
	}
	var named [][]string
	if m := namedPlace.FindStringSubmatch(path); m != nil {
		named = append(named, []string{"", m[1], text})
	}
	if m := namedValue.FindStringSubmatch(text); m != nil {
		named = append(named, m)
	}
	if flag := f.before(path); strings.HasPrefix(flag, "-") { // --password VALUE
		named = append(named, []string{"", flag, text})
	}
	for _, m := range named {
		if secretName.MatchString(m[1]) {
			secrets = append(secrets, m[2])
		}
	}
	return secrets
}

// before is the element of a list before the one at path, "" if there is none.
func (f *File) before(path string) string {
	start := strings.LastIndex(path, "[")
	i, err := strconv.Atoi(strings.TrimSuffix(path[start+1:], "]"))
	if start < 0 || err != nil {
		return ""
	}
	return f.places[yaml.Index(path[:start], i-1)].Text
}
