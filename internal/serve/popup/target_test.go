package popup

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/expr-lang/expr"
	"pgregory.net/rapid"
)

// testAttributes are declared in all tests of this package.
func testAttributes() []Attribute {
	return []Attribute{
		{"country", Text},
		{"city", Text},
		{"level", Integer},
		{"age", Integer},
		{"score", Real},
		{"rate", Real},
		{"vip", Boolean},
		{"beta", Boolean},
		{"joined", Timestamp},
		{"seen", Timestamp},
		{"tags", TextList},
	}
}

func testSchema(tb testing.TB) *Schema {
	tb.Helper()
	s, err := NewSchema(testAttributes())
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// phrase is an expression twice: as an author writes it, and guarded, so that expr's machine
// accepts missing values.
type phrase struct{ plain, guarded string }

// apply builds an operation; its result is otherwise if an operand is missing.
func apply(format, otherwise string, l, r phrase) phrase {
	return phrase{
		plain: fmt.Sprintf("("+format+")", l.plain, r.plain),
		guarded: fmt.Sprintf("(((%s) == nil or (%s) == nil) ? %s : (%s))",
			l.guarded, r.guarded, otherwise, fmt.Sprintf(format, l.guarded, r.guarded)),
	}
}

// calculation builds an operation; expr's machine calculates it as machine does.
func calculation(op string, l, r phrase) phrase {
	return phrase{"(" + l.plain + " " + op + " " + r.plain + ")", fmt.Sprintf("calc(%q, %s, %s)", op, l.guarded, r.guarded)}
}

func same(s string) phrase { return phrase{s, s} }

func pick(t *rapid.T, from ...string) string { return rapid.SampledFrom(from).Draw(t, "pick") }

// value draws an expression of a kind.
func value(t *rapid.T, k kind, depth int) phrase {
	n := 0
	if depth > 0 {
		n = rapid.IntRange(0, 5).Draw(t, "shape")
	}
	switch {
	case n == 4 && k != kindList:
		x, y := value(t, k, depth-1), value(t, k, depth-1)
		return phrase{"(" + x.plain + " ?? " + y.plain + ")", "((" + x.guarded + ") ?? (" + y.guarded + "))"}
	case n == 5 && k != kindList:
		c, x, y := truth(t, depth-1), value(t, k, depth-1), value(t, k, depth-1)
		return phrase{"(" + c.plain + " ? " + x.plain + " : " + y.plain + ")", "((" + c.guarded + ") ? (" + x.guarded + ") : (" + y.guarded + "))"}
	}
	switch k {
	case kindInt:
		switch n {
		case 2:
			return calculation(pick(t, "+", "-", "*", "%"), value(t, k, depth-1), value(t, k, depth-1))
		case 3:
			p := value(t, k, depth-1)
			return phrase{"(-" + p.plain + ")", "calc(\"-\", 0, " + p.guarded + ")"}
		}
		return same(pick(t, "level", "age", "0", "1", "7", "(-3)", "100", "9223372036854775807", "len(\"naïve\")",
			"hour()", `hour("Asia/Kolkata")`, "hour(city)", "weekday()", `weekday("America/St_Johns")`, "weekday(country)", "days_since(joined)", "days_since(now())"))
	case kindReal:
		if n == 2 {
			return calculation(pick(t, "+", "-", "*", "/", "**"), value(t, k, depth-1), value(t, k, depth-1))
		}
		if n == 3 {
			return calculation("/", value(t, kindInt, depth-1), value(t, k, depth-1))
		}
		return same(pick(t, "score", "rate", "0.5", "2.0", "(-1.5)", "100.0"))
	case kindText:
		return same(pick(t, "country", "city", `"CN"`, `"US"`, `"Beijing"`, `"ing"`, `""`, "lower(city)", "lower(country)", `lower("CN")`))
	case kindVersion:
		return same(pick(t, "version(city)", "version(country)", `version("1.2.3")`, `version("V1.2-rc.1")`, `version("1.10")`))
	case kindTime:
		return same(pick(t, "joined", "seen", "now()", `date("2026-01-02")`, `date("2026-03-04T05:06:07Z")`))
	}
	return calculation("-", value(t, kindTime, 0), value(t, kindTime, 0))
}

// truth draws a condition. It is never missing.
func truth(t *rapid.T, depth int) phrase {
	n := rapid.IntRange(0, 11).Draw(t, "condition")
	if depth > 0 && n < 3 {
		l := truth(t, depth-1)
		if n == 2 {
			return phrase{"(not (" + l.plain + "))", "(not (" + l.guarded + "))"}
		}
		r := truth(t, depth-1)
		op := pick(t, "and", "or", "&&", "||")
		return phrase{"(" + l.plain + " " + op + " " + r.plain + ")", "(" + l.guarded + " " + op + " " + r.guarded + ")"}
	}
	switch n {
	case 3:
		name := pick(t, "vip", "beta")
		return phrase{name, "(" + name + " ?? false)"}
	case 4:
		return same(pick(t, "vip", "country", "level", "score", "joined", "tags") + pick(t, " == nil", " != nil"))
	case 5:
		return same(pick(t, `country in ["CN", "US"]`, `country not in ["CN"]`, `level in [1, 7, -3]`, `level in 0..7`, `score in [1, 0.5]`,
			`city in ["a","b","c","d","e","f","g","h","Beijing"]`, `level in [1.0, 7.0]`, `"new" in tags`, `country in tags`, `(vip ?? true)`, `vip == true`, `vip != beta`, `beta == false`, `not ("old" in tags)`,
			`in_list("vips")`, `not in_list("none")`))
	case 6:
		op := pick(t, "contains", "startsWith", "endsWith")
		l, r := value(t, kindText, 1), value(t, kindText, 1)
		return phrase{"(" + l.plain + " " + op + " " + r.plain + ")", "((" + l.guarded + ") " + op + " (" + r.guarded + "))"}
	case 7:
		return same(pick(t, `city matches "^B.*g$"`, `country matches "[A-Z]{2}"`, `country not matches "^C"`))
	case 8:
		if rapid.Bool().Draw(t, "version") {
			return phrase{`version(city) in [version("1.2.3"), version("2")]`, `(order(version(city), "1.2.3") == 0 or order(version(city), "2") == 0)`}
		}
		return phrase{"len(tags) > 1", "(tags == nil ? false : len(tags) > 1)"}
	case 9:
		k := rapid.SampledFrom([]kind{kindInt, kindReal, kindText, kindTime, kindDuration, kindVersion}).Draw(t, "kind")
		l, r := value(t, k, depth), value(t, k, depth)
		equal := "(%[1]s) == (%[2]s)"
		if k == kindVersion {
			equal = "order(%[1]s, %[2]s) == 0"
		}
		same := fmt.Sprintf("((%[1]s) == nil ? (%[2]s) == nil : (%[2]s) == nil ? false : "+equal+")", l.guarded, r.guarded)
		if rapid.Bool().Draw(t, "unequal") {
			return phrase{"(" + l.plain + " != " + r.plain + ")", "(not " + same + ")"}
		}
		return phrase{"(" + l.plain + " == " + r.plain + ")", same}
	}
	l, r := kindInt, kindReal
	if rapid.Bool().Draw(t, "alike") {
		l = rapid.SampledFrom([]kind{kindInt, kindReal, kindText, kindTime, kindDuration, kindVersion}).Draw(t, "kind")
		r = l
	}
	op, x, y := pick(t, "<", "<=", ">", ">="), value(t, l, depth), value(t, r, depth)
	p := apply("%s "+op+" %s", "false", x, y)
	if l == kindVersion {
		p.guarded = fmt.Sprintf("(order(%[1]s, %[2]s) == nil ? false : order(%[1]s, %[2]s) %[3]s 0)", x.guarded, y.guarded, op)
	}
	return p
}

// drawAttributes draws values for Attributes and for expr's machine.
func drawAttributes(t *rapid.T, a *Attributes) map[string]any {
	env := map[string]any{}
	a.Reset()
	for _, attribute := range testAttributes() {
		if rapid.IntRange(0, 3).Draw(t, "missing") == 0 {
			continue
		}
		texts := []string{}
		switch attribute.Type {
		case Text:
			texts = append(texts, pick(t, "CN", "US", "Beijing", "", "B\ng", "1.2.3", "v1.2-rc.1+5", "Asia/Kolkata", "Nowhere/City"))
			env[attribute.Name] = texts[0]
		case Integer:
			n := rapid.SampledFrom([]int{0, 1, 7, -3, 100, 1 << 53, -1 << 63}).Draw(t, "n")
			texts = append(texts, strconv.Itoa(n))
			env[attribute.Name] = n
		case Real:
			r := rapid.SampledFrom([]float64{0, 0.5, 1, -1.5, 2, 1e300}).Draw(t, "r")
			texts = append(texts, strconv.FormatFloat(r, 'g', -1, 64))
			env[attribute.Name] = r
		case Boolean:
			texts = append(texts, pick(t, "true", "false"))
			env[attribute.Name] = texts[0] == "true"
		case Timestamp:
			texts = append(texts, pick(t, "2026-01-02T00:00:00Z", "2026-03-04T13:06:07+08:00", "2020-05-05T05:05:05.5Z"))
			env[attribute.Name], _ = time.Parse(time.RFC3339Nano, texts[0])
		case TextList:
			texts = rapid.SliceOfN(rapid.SampledFrom([]string{"new", "old", "CN"}), 1, 3).Draw(t, "list")
			env[attribute.Name] = texts
		}
		for _, text := range texts {
			if err := a.Add(attribute.Name, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	return env
}

// A target has the value of the guarded expression, and that of the plain one unless it is an
// error.
func TestTargetAgainstMachine(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	compared := 0
	rapid.Check(t, func(t *rapid.T) {
		for range 10 {
			compared += compareTarget(t, schema)
		}
	})
	t.Logf("%d results compared", compared)
}

// compareTarget compares one expression with many attributes and returns how many.
func compareTarget(t *rapid.T, schema *Schema) int {
	const assignments = 20
	p := truth(t, 3)
	target, err := compileTarget(schema, p.plain, "Europe/Berlin", nil)
	if err != nil {
		if strings.Contains(err.Error(), "more than") || strings.Contains(err.Error(), "exceeds") {
			return 0
		}
		t.Fatalf("%s: %v", p.plain, err)
	}
	m := &machine{lists: map[string][]string{"vips": {"7", "8"}}, zone: "Europe/Berlin"}
	lists := (*Lists)(nil).with("vips", hashesOf(m.lists["vips"]...))
	options := append(m.functions(), expr.MaxNodes(0), expr.Optimize(false))
	plain, err := expr.Compile(p.plain, append(options, expr.Env(schema.environment()))...)
	if err != nil {
		t.Fatalf("expr refuses %s: %v", p.plain, err)
	}
	guarded, err := expr.Compile(p.guarded, append(options, expr.Env(map[string]any{}), expr.AllowUndefinedVariables())...)
	if err != nil {
		t.Fatalf("expr refuses %s: %v", p.guarded, err)
	}
	a := schema.New()
	for range assignments {
		env := drawAttributes(t, a)
		m.draw(t)
		a.At(m.now)
		a.For(m.user)
		a.Lists(lists)
		got, again := target.matches(a), target.matches(a)
		want, err := expr.Run(guarded, env)
		if err != nil || want != got || again != got || (target.failing(a) == "") != got {
			t.Fatalf("%s with %v: %v, the machine says %v, %v", p.plain, env, got, want, err)
		}
		if m.lost || strings.Contains(p.plain, "version(") {
			continue // the bare machine calculates on with Inf, and has no versions
		}
		if bare, err := expr.Run(plain, env); err == nil && bare != nil && bare != got {
			t.Fatalf("%s with %v: %v, the bare machine says %v", p.plain, env, got, bare)
		}
	}
	return assignments
}

// Values of one user: city, vip and seen are missing.
func TestTargetValues(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	a := schema.New()
	for _, pair := range [][2]string{
		{"country", "CN"}, {"level", "7"}, {"age", "0"}, {"score", "0.5"}, {"joined", "2026-01-02T00:00:00Z"}, {"tags", "new"}, {"tags", "new"},
	} {
		if err := a.Add(pair[0], pair[1]); err != nil {
			t.Fatal(err)
		}
	}
	for source, want := range map[string]bool{
		`date("2026-01-05") - joined > duration("48h")`:          true,
		`joined - seen > duration("1h") or joined - seen == nil`: true,
		`level % age == nil`:                        true,
		`-(level % age) < 1 or (level + 1) in 1..9`: true,
		`len(city) == nil and not (len(city) > 0)`:  true,
		`len(tags) == 2`:                            true,
		`city matches "."`:                          false,
		`not (city contains "")`:                    true,
		`(city ?? country) in ["CN", "a", "b", "c", "d", "e", "f", "g"]`: true,
		`city in ["", "a", "b", "c", "d", "e", "f", "g"]`:                false,
		`city not in [""]`:                                                  true,
		`60 * 24 - 1439 + age in [1, 2 - 4]`:                                true,
		`vip ? false : (vip ?? true)`:                                       true,
		`city < "a" or city >= "a" or seen <= joined`:                       false,
		`(level > 9 ? level : nil) == nil`:                                  true,
		`((level + age) * (level + age) + (city == nil ? 1 : 2)) / 2 == 25`: true,
	} {
		target, err := compileTarget(schema, source, "", nil)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := target.matches(a); got != want {
			t.Errorf("%s: %v", source, got)
		}
	}
}

func TestTargetRefused(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	for source, want := range map[string]string{
		`level >`:                               "1:7: unexpected token EOF",
		"level > 3 and\n  size == 2":            "2:3: unknown name size",
		`level == "x"`:                          "1:7: invalid operation: == (mismatched types int and string)",
		`any(tags, # == "x")`:                   "1:1: any() is not supported here",
		`filter(tags, true) == nil`:             "1:1: filter() is not supported here",
		`len(map(1..1000000, #)) > 3`:           "1:5: map() is not supported here",
		`let x = 1; x == 1`:                     "1:5: let is not supported here",
		`level > 3; true`:                       "a sequence is not supported here",
		`tags[0] == "x"`:                        "1:5: access to an element",
		`country[0:1] == "x"`:                   "1:8: a slice is not supported",
		`$env.level == 3`:                       "access to an element",
		`type(level) == "int"`:                  "1:1: type() is not supported here: the functions are date, duration, now, days_since",
		`calculate("+", 1, 2) == 3`:             "1:1: calculate() is not supported here",
		`joined.Year() == 2026`:                 "a call of a method is not supported here",
		`size(country) == 2`:                    "1:1: unknown name size",
		`now() > 3`:                             "1:7: invalid operation: > (mismatched types time.Time and int)",
		`days_since(level) > 3`:                 "1:12: cannot use int as argument (type time.Time) to call days_since()",
		`days_since(nil) > 3`:                   "1:12: ",
		`hour(level) > 3`:                       "1:6: cannot use int",
		`hour("Europe/Atlantis") > 3`:           `1:6: unknown time zone "Europe/Atlantis"`,
		`weekday("Local") > 3`:                  `1:9: unknown time zone "Local"`,
		`hour("UTC", "UTC") > 3`:                "1:1: too many arguments",
		`version(country) == "1"`:               "",
		`version(country) > version("one")`:     `1:28: "one" is not a version such as 2.3.1`,
		`version(country) + 1 > 3`:              "",
		`version(country) in ["1"]`:             "1:18: cannot use popup.version as type string in array",
		`lower(level) == "x"`:                   "1:7: cannot use int",
		`in_list("vip")`:                        `1:9: there is no list "vip"`,
		`in_list(country)`:                      "1:1: in_list takes the literal name of a list only",
		`level in [1 / 0]`:                      "1:13: the list must hold literals of type integer",
		`country + "x" == "y"`:                  "1:9: + is not supported between text and text",
		`country matches city`:                  "matches takes a literal pattern only",
		`country matches "("`:                   "1:9: error parsing regexp",
		`country matches "(a{1000}){9}"`:        "1:9: error parsing regexp: invalid repeat count",
		`level`:                                 "1:1: a condition is needed, this is of type integer",
		`tags == ["a"]`:                         "a list is",
		`(score ?? 1) > 2.0`:                    "1:8: one side is of type real, the other of type integer",
		`date("soon") < joined`:                 "invalid date soon",
		`date("1800-01-01") < joined`:           "dates are from 1900 to 2150",
		`date(country) < joined`:                "1:6: date() takes literal texts only",
		`level in 1..age`:                       "a range of literal integers",
		`1..3 == nil`:                           "a range stands only behind",
		`{"a": 1} == nil`:                       "a map is not supported",
		`upper(country) == "X"`:                 "1:1: upper() is not supported here",
		strings.Repeat(" ", 4097) + "1":         "1:1: the expression has 4098 bytes, more than 4096",
		strings.Repeat("vip and ", 400) + "vip": "exceeds maximum allowed nodes",
		"vip and \xff":                          "1:1: the expression is not UTF-8",
		`vip and 中文 == 1`:                       "1:9: ",
		"vip and\n city matches `a{600}b{600}`": "2:15: the pattern has 1202 steps, more than 1000",
	} {
		err := schema.CheckTarget(source, "", []string{"vips"})
		var at *TargetError
		switch {
		case err == nil, !errors.As(err, &at), !strings.Contains(err.Error(), want):
			t.Errorf("%.60q: %v, want %q", source, err, want)
		}
	}
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	a := testSchema(t).New()
	for _, test := range []struct{ name, text, want string }{
		{"unknown", "\xff", ""},
		{"level", "12", ""},
		{"level", "13", "bad request: attribute level is given twice"},
		{"age", "1.5", "bad request: attribute age must be a whole number of at most 64 bits"},
		{"score", "NaN", "bad request: attribute score must be a number"},
		{"vip", "yes", "bad request: attribute vip must be true or false"},
		{"joined", "2026-13-01T00:00:00Z", "bad request: attribute joined must be a time like 2016-12-01T23:59:57Z, from 1900 to 2150"},
		{"seen", "1666-01-01T00:00:00Z", "bad request: attribute seen must be a time like 2016-12-01T23:59:57Z, from 1900 to 2150"},
		{"country", "\xff", "bad request: attribute country must be UTF-8 text of at most 1024 bytes without NUL"},
		{"tags", "a", ""},
		{"tags", "b", ""},
	} {
		got := ""
		if err := a.Add(test.name, test.text); err != nil {
			got = err.Error()
			if !errors.Is(err, ErrRequest) {
				t.Errorf("%s is no ErrRequest", got)
			}
		}
		if got != test.want {
			t.Errorf("%s=%q: %q, want %q", test.name, test.text, got, test.want)
		}
	}
	if err := a.Replace("level", "13"); err != nil || a.slots[2].n != 13 {
		t.Errorf("Replace: %v", err)
	}
	for _, bad := range []Attribute{{"", Text}, {"len", Text}, {"in", Text}, {"9a", Text}, {"Level", Text}, {"x", "uuid"}} {
		if _, err := NewSchema([]Attribute{bad}); err == nil {
			t.Errorf("NewSchema takes %v", bad)
		}
	}
}

func FuzzTarget(f *testing.F) {
	schema := testSchema(f)
	a := schema.New()
	f.Add(`level > 3 and country in ["CN"] and (score ?? 0.0) / 2 < 1`)
	f.Add(`city matches "^B" ? vip : not beta`)
	f.Add(`days_since(joined) > 3 and hour(city) in 9..17 and weekday() < 6 and now() > seen`)
	f.Add(`version(city) in [version("1.2"), version("v2-rc.1")] and lower(country) != "cn" and not in_list("vips")`)
	a.At(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	a.For("7")
	for _, name := range []string{"city", "country"} {
		if err := a.Add(name, "1.2"); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, source string) {
		target, err := compileTarget(schema, source, "", nil)
		var at *TargetError
		if err != nil && !errors.As(err, &at) {
			t.Fatalf("%q: %v has no place", source, err)
		}
		target.matches(a)
	})
}
