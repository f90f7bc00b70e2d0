package experiment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A secret is written as a reference, so that its value is in no file of a run: ${NAME} is an environment variable, and file:PATH
// as the whole value is the content of a file. References count in settings, in env, and in URLs; $${ stands for ${.
//
// Filled-in text holds a reference between two marks, until a process starts or a file of a service is written. What the run
// records is the text with the marks removed.

const referenceMark = "\x00"

var (
	variableUse = regexp.MustCompile(`\$?\$\{([^}]*)\}`)
	markedUse   = regexp.MustCompile(referenceMark + `([^` + referenceMark + `]*)` + referenceMark)
)

// Beginnings of references.
const (
	fileReference = "file:" // to a file
	literal       = "="     // to a secret that is written in the experiment's file itself
)

// mark marks the references in a value of the file. whole is true if the value may also be file:PATH.
func (s *templateData) mark(path, text string, whole bool) (string, error) {
	if name, ok := strings.CutPrefix(text, fileReference); ok && whole {
		if !filepath.IsAbs(name) {
			name = filepath.Join(s.layout.source, name)
		}
		text = fileReference + name
		if _, err := referred(text); err != nil {
			return "", s.file.mistake(path, "%v", err)
		}
		return referenceMark + text + referenceMark, nil
	}
	if whole && strongName.MatchString(path[strings.LastIndex(path, ".")+1:]) {
		text = markLiteral(text)
	}
	var failed error
	marked := variableUse.ReplaceAllStringFunc(text, func(use string) string {
		if strings.HasPrefix(use, "$$") {
			return use[1:]
		}
		if _, err := referred(use); err != nil && failed == nil {
			failed = s.file.mistake(path, "%v", err)
		}
		return referenceMark + use + referenceMark
	})
	return marked, failed
}

// markLiteral marks what a secret has besides references and templates.
func markLiteral(text string) string {
	var b strings.Builder
	from := 0
	for _, use := range append(plainUse.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		if use[0] > from {
			b.WriteString(referenceMark + literal + text[from:use[0]] + referenceMark)
		}
		b.WriteString(text[use[0]:use[1]])
		from = use[1]
	}
	return b.String()
}

// secretMax limits the size of a secret's file, in bytes.
const secretMax = 64 << 10

// referred returns the value of a reference. The error names the reference only.
func referred(reference string) (string, error) {
	if value, ok := strings.CutPrefix(reference, literal); ok {
		return value, nil
	}
	path, isFile := strings.CutPrefix(reference, fileReference)
	if !isFile {
		name := strings.TrimSuffix(strings.TrimPrefix(reference, "${"), "}")
		value, set := os.LookupEnv(name)
		if !set {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, nil
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, secretMax))
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// expand replaces the marked references by their values.
func expand(text string) (string, error) {
	var failed error
	expanded := markedUse.ReplaceAllStringFunc(text, func(use string) string {
		value, err := referred(strings.Trim(use, referenceMark))
		if err != nil && failed == nil {
			failed = err
		}
		return value
	})
	return expanded, failed
}

func expandAll(texts []string) ([]string, error) {
	expanded := make([]string, len(texts))
	for i, text := range texts {
		var err error
		if expanded[i], err = expand(text); err != nil {
			return nil, err
		}
	}
	return expanded, nil
}

// unmark returns filled-in text with its references as they are written.
func unmark(text string) string {
	return markedUse.ReplaceAllStringFunc(text, func(use string) string {
		if strings.HasPrefix(use, referenceMark+literal) {
			return redacted
		}
		return strings.Trim(use, referenceMark)
	})
}
