package experiment

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"spillway/internal/lab/result"
	"spillway/internal/yaml"
)

// redacted replaces a secret that is written in the file itself.
const redacted = "xxxxx"

// plainUse matches what is no secret although it stands in the place of one: a reference or a template.
var plainUse = regexp.MustCompile(referenceMark + `[^` + referenceMark + `]*` + referenceMark + `|\$\{[^}]*\}|\{\{.*?\}\}`)

// redactValue removes what looks like a secret from a value. It keeps references and templates.
func redactValue(name, value string) string {
	if strings.HasPrefix(value, fileReference) {
		return value
	}
	return redactArgs([]string{"--" + strings.ReplaceAll(name, "_", "-") + "=" + value})[0][len("--"+name+"="):]
}

// keptUse matches what stands for a reference or a template while a text is redacted.
var keptUse = regexp.MustCompile(`REF\d+REF`)

// redactValues does so for every value of a map.
func redactValues(values map[string]string) map[string]string {
	if values == nil {
		return nil
	}
	clean := make(map[string]string, len(values))
	for name, value := range values {
		clean[name] = redactValue(name, value)
	}
	return clean
}

// redactArgs does so for a command line.
func redactArgs(args []string) []string {
	without, kept := make([]string, len(args)), make([]string, len(args))
	var uses []string
	for i, arg := range args {
		without[i] = plainUse.ReplaceAllString(arg, redacted)
		kept[i] = plainUse.ReplaceAllStringFunc(arg, func(use string) string {
			uses = append(uses, use)
			return fmt.Sprintf("REF%dREF", len(uses)-1)
		})
	}
	clean, rest := result.RedactArgs(without), result.RedactArgs(kept)
	for i := range clean {
		if clean[i] == without[i] { // all secrets are references
			clean[i] = unmark(args[i])
			continue
		}
		clean[i] = keptUse.ReplaceAllStringFunc(rest[i], func(token string) string {
			n, err := strconv.Atoi(strings.Trim(token, "REF"))
			if err != nil || n >= len(uses) {
				return token
			}
			return unmark(uses[n])
		})
	}
	return clean
}

// strongName matches the names of settings and variables that are nothing but secrets.
var strongName = regexp.MustCompile(`(?i)pass(word|wd|phrase)$|^pwd$|secret$`)

// secrets are the values of secrets, the longest first, to be removed from texts that other programs wrote.
type secrets []string

// hiddenMin is the length of the shortest secret that is removed, in bytes: a shorter one would match by chance.
const hiddenMin = 6

func (s *secrets) add(value string) {
	if len(value) >= hiddenMin && value != redacted && !slices.Contains(*s, value) {
		*s = append(*s, value)
		slices.SortStableFunc(*s, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	}
}

func (s secrets) hide(text string) string {
	for _, value := range s {
		text = strings.ReplaceAll(text, value, redacted)
	}
	return text
}

func (s secrets) hideAll(texts []string) []string {
	clean := make([]string, len(texts))
	for i, text := range texts {
		clean[i] = s.hide(text)
	}
	return clean
}

// referencePlace matches the paths of values that may have references; those of headers are for `spillway load`.
var referencePlace = regexp.MustCompile(`(^|\.)(settings\.[^.]+|env\.[^.]+|url|header\[\d+\])$|^watch\.databases\.[^.]+$|\.ready\.http$`)

// variantValue matches the paths of values that are names.
var variantValue = regexp.MustCompile(`^variants\.[^.]+\.values\.`)

// redactions returns the values of the file that have a secret written in them, by path, as they may be recorded.
func (f *File) redactions() map[string]string {
	found := map[string]string{}
	for path, at := range f.places {
		if at.text == "" || variantValue.MatchString(path) {
			continue
		}
		name, _, _ := strings.Cut(path[strings.LastIndex(path, ".")+1:], "[")
		clean := redactValue(name, at.text)
		if before, ok := f.places[previous(path)]; ok && clean == at.text { // --password VALUE
			clean = redactArgs([]string{before.text, at.text})[1]
		}
		if clean != at.text {
			found[path] = clean
		}
	}
	return found
}

// previous is the path of the element before one of a list, "" if there is none.
func previous(path string) string {
	start := strings.LastIndex(path, "[")
	i, err := strconv.Atoi(strings.TrimSuffix(path[start+1:], "]"))
	if start < 0 || err != nil || i == 0 {
		return ""
	}
	return yaml.Index(path[:start], i-1)
}

// secrets returns the values of all secrets that the file names or contains.
func (f *File) secrets(source string) secrets {
	var all secrets
	for path, clean := range f.redactions() {
		text := f.places[path].text
		for _, value := range removed(text, clean) {
			all.add(value)
		}
		if u, err := url.Parse(text); err == nil && u.User != nil {
			password, _ := u.User.Password()
			all.add(password)
		}
	}
	data := templateData{file: f, layout: &layout{source: source}}
	for path, at := range f.places {
		if !referencePlace.MatchString(path) {
			continue
		}
		marked, err := data.mark(path, at.text, !strings.HasSuffix(path, "url"))
		if err != nil {
			continue // reported when the templates are filled in
		}
		for _, use := range markedUse.FindAllStringSubmatch(marked, -1) {
			if value, err := referred(use[1]); err == nil {
				all.add(value)
			}
		}
	}
	return all
}

// removed returns what stands in text where clean has redacted, without quotes and brackets around it.
func removed(text, clean string) []string {
	parts := strings.Split(clean, redacted)
	rest, ok := strings.CutPrefix(text, parts[0])
	var values []string
	for i, part := range parts[1:] {
		end := strings.Index(rest, part)
		if i == len(parts)-2 {
			end = len(rest) - len(part)
		}
		if !ok || end < 0 || !strings.HasPrefix(rest[end:], part) {
			break
		}
		if !plainUse.MatchString(rest[:end]) { // it is known when it is filled in
			values = append(values, strings.Trim(rest[:end], `"'{}[] `))
		}
		rest = rest[end+len(part):]
	}
	return values
}

// redactedSource returns the text of the file without the secrets that are written in it.
func (f *File) redactedSource() string {
	lines := strings.SplitAfter(string(f.source), "\n")
	changes := f.redactions()
	paths := make([]string, 0, len(changes))
	for path := range changes {
		paths = append(paths, path)
	}
	slices.SortFunc(paths, func(a, b string) int { // from the end, so that columns stay right
		x, y := f.places[a], f.places[b]
		return cmp.Or(cmp.Compare(y.line, x.line), cmp.Compare(y.column, x.column))
	})
	var inFile secrets
	for _, path := range paths {
		at := f.places[path]
		if at.line > len(lines) || !replaceAt(&lines[at.line-1], at.column, at.text, changes[path]) {
			return "# The file has a secret at " + path + " in a form that could not be removed. Write it as ${NAME} or file:PATH.\n"
		}
		if strongName.MatchString(path[strings.LastIndex(path, ".")+1:]) {
			inFile.add(at.text)
		}
	}
	for i, line := range lines {
		if start := strings.Index(line, "#"); start >= 0 {
			comment := strings.TrimRight(line[start:], "\n")
			lines[i] = line[:start] + redactValue("comment", comment) + line[start+len(comment):]
		}
	}
	return inFile.hide(strings.Join(lines, ""))
}

// replaceAt replaces a value of a line, with or without quotes. column counts runes from 1.
func replaceAt(line *string, column int, old, fresh string) bool {
	start := 0
	for range column - 1 {
		_, size := utf8.DecodeRuneInString((*line)[start:])
		start += size
	}
	rest := (*line)[start:]
	quote := ""
	if rest != "" && (rest[0] == '"' || rest[0] == '\'') {
		quote = rest[:1]
	}
	after, ok := strings.CutPrefix(rest, quote+old+quote)
	if ok {
		*line = (*line)[:start] + quote + fresh + quote + after
	}
	return ok
}
