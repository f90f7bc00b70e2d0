package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// TestEveryNumberIsInTheJSON: every number on a page, in Markdown and in text is one of the JSON document of the same run, in the spelling
// of package sheet, and the three have the same spelling of it. What is counted or computed for a sentence alone is in derived.
func TestEveryNumberIsInTheJSON(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]*result.Run{
		"staged": stagedRun(t), "sweep": sweepRun(t), "single": singleRun(t), "hanging": hangingRun(t), "mixed": mixedRun(t),
		"watched": watchedRun(t), "watched pair": watchedPair(t), "watched alone": watchedAlone(t), "search": searchRun(t),
		"short search": shortSearchRun(t),
	} {
		forms := map[string]string{}
		for _, format := range OneRunFormats() {
			forms[string(format)] = written(t, format, run)
		}
		compareNumbers(t, name, written(t, JSON, run), forms)
	}
	for name, study := range map[string]*experiment.Study{"study": studyOf(t), "quick study": quickStudyOf(t)} {
		forms := map[string]string{}
		for _, format := range []Format{Text, Markdown, HTML} {
			forms[string(format)] = writtenStudy(t, format, study)
		}
		compareNumbers(t, name, writtenStudy(t, JSON, study), forms)
	}
	for _, path := range []string{"../plan/testdata/plan", "../doctor/testdata/report"} {
		text, err := os.ReadFile(path + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		document, err := os.ReadFile(path + ".json")
		if err != nil {
			t.Fatal(err)
		}
		compareNumbers(t, path, string(document), map[string]string{string(Text): string(text)})
	}
}

// TestMutationsAreFound: the comparison is not empty, and a number of another spelling or another value is reported.
func TestMutationsAreFound(t *testing.T) {
	t.Parallel()
	run := stagedRun(t)
	document, text := written(t, JSON, run), written(t, Text, run)
	for from, to := range map[string]string{
		"9.74 ms": "9.91 ms", "12,000": "12000", "2.5 %": "2.50 %", "975/s": "975.0/s", "1.03 s": "1030 ms", "180 µs": "180µs",
		"5.3 ms": "0m0.0053s",
	} {
		known, words := readNumbers(t, document)
		mutated := strings.Replace(text, from, to, 1)
		if mutated == text || len(unknownNumbers(mutated, known, words)) == 0 {
			t.Errorf("%q in place of %q is not found", to, from)
		}
	}
}

func compareNumbers(t *testing.T, name, document string, forms map[string]string) {
	t.Helper()
	known, words := readNumbers(t, document)
	all := map[string]map[string]bool{}
	for form, text := range forms {
		text = visible(form, text)
		for _, number := range unknownNumbers(text, known, words) {
			t.Errorf("%s, %s: %s is not in the JSON", name, form, number)
		}
		all[form] = map[string]bool{}
		for _, number := range numbersIn(text, words) {
			all[form][number] = true
		}
		if len(all[form]) < 5 {
			t.Errorf("%s, %s: only the numbers %v", name, form, all[form])
		}
	}
	for form, numbers := range all {
		for number := range numbers {
			if page, ok := all[string(HTML)]; ok && !page[number] {
				t.Errorf("%s, %s: %s is not on the page", name, form, number)
			}
		}
	}
}

// visible is the text of a page or of Markdown as it is read, without charts.
func visible(form, text string) string {
	switch Format(form) {
	case HTML:
		_, text, _ = strings.Cut(text, "<main>")
		text, _, _ = strings.Cut(text, "</main>")
		text = regexp.MustCompile(`(?s)<figure.*?</figure>`).ReplaceAllString(text, " ")
		text = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(text, " \n ")
	case Markdown:
		text = regexp.MustCompile(`\\(.)`).ReplaceAllString(text, "$1")
	}
	return html.UnescapeString(text)
}

// numbersIn are the numbers in a text with their units, without those in the words of the document: names, commands and sentences.
func numbersIn(text string, words []string) []string {
	for _, word := range words {
		text = strings.ReplaceAll(text, word, " ; ")
	}
	text = strings.NewReplacer("–", " ; ", ")/s", ")", "(", " ; ", "[", " ; ", "|", " ; ").Replace(text)
	// "31ms" is one, of a wrong spelling.
	number := regexp.MustCompile(`^[+~-]?\d[\d,]*(\.\d+)?(/s|(ns|us|µs|ms|m|s|min|h|B|KiB|MiB|GiB|%)[\d.msµ]*)?$`)
	unit := regexp.MustCompile(`^(ns|µs|ms|s|min|h|B|KiB|MiB|GiB|%)(/s)?$`)
	var found []string
	fields := strings.Fields(text)
	for i, field := range fields {
		one := strings.TrimLeft(strings.TrimRight(field, ").,;:]*"), "+~")
		if !number.MatchString(one) {
			continue
		}
		if one == strings.TrimLeft(field, "+~") && i+1 < len(fields) {
			next, _, _ := strings.Cut(strings.TrimRight(fields[i+1], ").,;:]*"), "/request")
			if unit.MatchString(next) {
				one += " " + next
			}
		}
		found = append(found, one)
	}
	return found
}

func unknownNumbers(text string, known map[string]bool, words []string) []string {
	return slices.DeleteFunc(numbersIn(text, words), func(number string) bool { return known[number] })
}

// readNumbers reads the spellings of all numbers of a document, and its texts that have a digit, the longest first. Texts that the report
// itself wrote about numbers are not among them.
func readNumbers(t *testing.T, document string) (known map[string]bool, words []string) {
	t.Helper()
	var root any
	if err := json.NewDecoder(bytes.NewBufferString(document)).Decode(&root); err != nil {
		t.Fatal(err)
	}
	reader := numberReader{known: derived(), units: map[string]string{}}
	reader.metrics(root)
	reader.read("", "", root)
	words = slices.DeleteFunc(reader.words, func(word string) bool {
		return !strings.ContainsAny(word, "0123456789") || regexp.MustCompile(`^[\d.,]+(/s)?$`).MatchString(word)
	})
	slices.SortFunc(words, func(a, b string) int { return len(b) - len(a) })
	return reader.known, words
}

// derived are the numbers that are not in a document: how many entries its lists have, and what the notes of tables and the names of
// columns say.
func derived() map[string]bool {
	known := map[string]bool{}
	for n := range 30 {
		known[strconv.Itoa(n)] = true
	}
	for _, text := range []string{"95 %", "502", "80 %", "1 %", "0.05", "0.0001", "120,000/s"} {
		known[text] = true
	}
	return known
}

type numberReader struct {
	known map[string]bool
	units map[string]string // of the metrics of a study
	words []string
}

// metrics reads the units of a study.
func (r *numberReader) metrics(root any) {
	metrics, _ := root.(map[string]any)["metrics"].([]any)
	for _, one := range metrics {
		metric := one.(map[string]any)
		r.units[metric["name"].(string)] = metric["unit"].(string)
	}
}

// read adds what a value of the document has. unit is that of the object around it.
func (r *numberReader) read(key, unit string, value any) {
	switch v := value.(type) {
	case string:
		if key != "headline" && key != "caveat" {
			r.words = append(r.words, v)
			r.known[v] = true // "1700/s" as the name of a step
		}
	case float64:
		if slices.Contains(settings(), key) {
			r.known[fmt.Sprint(v)] = true
		}
		if strings.HasSuffix(key, "_ratio") {
			unit = ""
		}
		r.add(v, cmp.Or(unitOfKey(key), unit))
	case []any:
		for _, one := range v {
			r.read(key, unit, one)
		}
	case map[string]any:
		if text, ok := v["unit"].(string); ok {
			unit = text
		}
		if metric, ok := v["metric"].(string); ok && v["ratio"] == nil {
			unit = cmp.Or(unitOfKey(metric), r.units[metric])
		}
		if of, ok := r.units[key]; ok {
			unit = of
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			r.known[name] = true // the HTTP status of a count
			r.read(name, unit, v[name])
		}
	}
}

// settings are the numbers of a machine, which are written as it has them.
func settings() []string {
	return []string{
		"nofile", "port_range_low", "port_range_high", "somaxconn", "tcp_tw_reuse", "tcp_max_tw_buckets", "gomaxprocs", "seed",
	}
}

// unitOfKey is the unit that a name tells.
func unitOfKey(key string) string {
	switch {
	case strings.Contains(key, "seconds"):
		return sheet.UnitSeconds
	case strings.HasSuffix(key, "_hz"):
		return sheet.UnitRate
	case strings.HasSuffix(key, "_share"), key == "thread_busy_max":
		return sheet.UnitShare
	case strings.Contains(key, "bytes"):
		return sheet.UnitBytes
	case strings.HasSuffix(key, "_cores"), key == "cores", key == "cpus":
		return sheet.UnitCores
	}
	return ""
}

// add adds the spellings of a number.
func (r *numberReader) add(v float64, unit string) {
	text := func(texts ...string) {
		for _, one := range texts {
			r.known[strings.TrimLeft(one, "<>= ")] = true
		}
	}
	text(sheet.Text(v, unit), sheet.Bare(v, unit), sheet.AtLeast(v, unit), sheet.AtMost(v, unit))
	if strings.HasSuffix(unit, "s") { // nobody runs half of a host
		text(sheet.Bare(math.Ceil(v), unit))
	}
	switch unit {
	case sheet.UnitSeconds:
		text(sheet.At(v), sheet.Duration(-v)) // ahead of a clock, or behind it
		for name, scale := range map[string]float64{"ns": 1e9, "µs": 1e6, "ms": 1e3, "s": 1} {
			if len(r.units) > 0 { // in the unit of the number before
				text(sheet.Number(v*scale), sheet.Number(v*scale)+" "+name)
			}
		}
	case sheet.UnitShare:
		text(sheet.Share(1-v), sheet.Number(100*v)) // idle and busy
	case sheet.UnitCores:
		text(sheet.Number(v), sheet.Number(100*v), sheet.Text(100*v, sheet.UnitPercent))
	case sheet.UnitPercent, sheet.UnitRate:
		text(sheet.Number(v))
	case "":
		for decimals := range 4 {
			if len(r.units) > 0 { // a ratio
				text(strconv.FormatFloat(v, 'f', decimals, 64), sheet.Share(v-1))
			}
		}
	}
}
