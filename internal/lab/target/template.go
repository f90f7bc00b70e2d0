package target

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Template is text with values in braces, as in /goods?offset={random(0,1000)}.
// Value lists the forms. {{ is a literal brace. A brace that is not followed by a
// word, as in JSON, is literal too. {+file:…} is a part of a path or query that is
// already encoded.
type Template struct {
	text  string // as written
	parts []templatePart
}

// templatePart is text followed by an optional value.
type templatePart struct {
	text  string
	value *Value
}

// Scope is what the values of a template may refer to.
type Scope struct {
	Dir   string         // of relative paths of files; "": the working directory
	Names map[string]int // of variables, in addition to the forms of Value: index in Source.Variables; nil: none
}

// ParseTemplate compiles text and reads the files that it names.
func ParseTemplate(text string) (Template, error) {
	return Scope{}.Parse(text)
}

// Parse compiles text and reads the files that it names. If the scope has
// variables, every word in braces that can be the name of one must be one.
func (s Scope) Parse(text string) (Template, error) {
	t := Template{text: text}
	var literal strings.Builder
	for {
		open := strings.IndexByte(text, '{')
		if open < 0 {
			break
		}
		literal.WriteString(text[:open])
		text = text[open:]
		if strings.HasPrefix(text, "{{") {
			literal.WriteByte('{')
			text = text[2:]
			continue
		}
		word, ok := s.bracedWord(text)
		if !ok {
			if strings.HasPrefix(text, "{random(") || strings.HasPrefix(text, "{file:") || strings.HasPrefix(text, "{+file:") {
				return Template{}, fmt.Errorf("%q does not close its brace; write {{ for a brace that is not a value", text)
			}
			literal.WriteByte('{')
			text = text[1:]
			continue
		}
		name, reserved := strings.CutPrefix(word, "+")
		v, known, err := s.parseValue(name)
		v.reserved = reserved
		if err != nil {
			return Template{}, err
		}
		if !known {
			return Template{}, fmt.Errorf("unknown value {%s}; write %s{random(LOW,HIGH)}, {sequence} or {file:PATH:COLUMN}, and {{ for a brace",
				word, s.list())
		}
		t.parts = append(t.parts, templatePart{literal.String(), &v})
		literal.Reset()
		text = text[len(word)+2:]
	}
	literal.WriteString(text)
	t.parts = append(t.parts, templatePart{text: literal.String()})
	return t, nil
}

// list returns the names of the variables, for a message.
func (s Scope) list() string {
	list := ""
	for _, name := range slices.Sorted(maps.Keys(s.Names)) {
		list += "{" + name + "}, "
	}
	return list
}

// The characters of a value in braces, and of a variable.
const (
	lowerCase       = "abcdefghijklmnopqrstuvwxyz"
	alphanumeric    = lowerCase + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	variableLetters = alphanumeric + "_-. "
)

// IsVariable reports whether name can be the name of a variable in a Scope.
func IsVariable(name string) bool { return name != "" && strings.Trim(name, variableLetters) == "" }

// bracedWord returns the content of the braces at the start of text if it looks
// like a value: a lower-case word, optionally after + and followed by ( or :. With
// variables, it is any text of letters, digits, blanks and -_. as well.
func (s Scope) bracedWord(text string) (string, bool) {
	end := strings.IndexAny(text, "}\n")
	if end < 0 || text[end] != '}' {
		return "", false
	}
	word := text[1:end]
	name := strings.TrimPrefix(word, "+")
	letters := lowerCase
	if s.Names != nil {
		letters = variableLetters
	}
	rest := strings.TrimLeft(name, letters)
	if strings.Trim(name, " .-0123456789") == "" {
		return "", false
	}
	if len(rest) == len(name) || (rest != "" && rest[0] != '(' && rest[0] != ':') {
		return "", false
	}
	return word, true
}

// constant returns the text of a template and whether it has no values.
func (t *Template) constant() (string, bool) {
	if len(t.parts) == 1 && t.parts[0].value == nil {
		return t.parts[0].text, true
	}
	return "", len(t.parts) == 0
}

// Variables returns the indexes of the variables in the template.
func (t *Template) Variables() []int {
	var used []int
	for _, part := range t.parts {
		if part.value != nil && part.value.source == fromVariable {
			used = append(used, part.value.variable)
		}
	}
	return used
}

// Append appends the template to b with the values of the current request.
func (t *Template) Append(b []byte, s *Source) []byte {
	for i := range t.parts {
		b = append(b, t.parts[i].text...)
		if v := t.parts[i].value; v != nil {
			b = v.append(b, s)
		}
	}
	return b
}

// PlainTemplate returns a template of literal text.
func PlainTemplate(text string) Template {
	return Template{text: text, parts: []templatePart{{text: text}}}
}
