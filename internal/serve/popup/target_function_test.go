package popup

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/expr-lang/expr"
	"pgregory.net/rapid"
)

// machine is what the functions of expressions return by definition, for expr's machine.
type machine struct {
	now   time.Time // zero: not set
	user  string
	lists map[string][]string
	zone  string
	lost  bool // a calculation without a value since the last draw
}

// draw chooses a time and a user.
func (m *machine) draw(t *rapid.T) {
	m.lost = false
	m.now, m.user = time.Time{}, pick(t, "", "7", "9")
	if text := pick(t, "", "2026-03-29T00:59:59.9Z", "2026-03-29T01:00:00Z", "2020-05-04T05:05:05.4Z", "2026-01-01T23:30:00Z"); text != "" {
		m.now, _ = time.Parse(time.RFC3339Nano, text)
	}
}

func (m *machine) functions() []expr.Option {
	function := func(name string, call func(args []any) any) expr.Option {
		return expr.Function(name, func(args ...any) (any, error) { return call(args), nil })
	}
	return []expr.Option{
		function("calc", m.calculate),
		function("now", func([]any) any { return present(m.now) }),
		function("days_since", func(args []any) any {
			if then, ok := args[0].(time.Time); ok && !m.now.IsZero() {
				return int(math.Floor(m.now.Sub(then).Hours() / 24))
			}
			return nil
		}),
		function("hour", m.zoned(func(t time.Time) int { return t.Hour() })),
		function("weekday", m.zoned(func(t time.Time) int {
			return slices.Index([]string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}, t.Format("Mon")) + 1
		})),
		function("version", func(args []any) any {
			if text, ok := args[0].(string); ok && versionPattern.MatchString(text) {
				return text
			}
			return nil
		}),
		function("order", func(args []any) any {
			if args[0] == nil || args[1] == nil {
				return nil
			}
			return versionOrder(args[0].(string), args[1].(string))
		}),
		function("lower", func(args []any) any {
			if text, ok := args[0].(string); ok {
				return strings.ToLower(text)
			}
			return nil
		}),
		function("in_list", func(args []any) any { return slices.Contains(m.lists[args[0].(string)], m.user) }),
	}
}

// zoned calls f with the time in a zone.
func (m *machine) zoned(f func(time.Time) int) func(args []any) any {
	return func(args []any) any {
		name := m.zone
		if len(args) > 0 {
			name, _ = args[0].(string)
		}
		zone, err := time.LoadLocation(name)
		if err != nil || name == "" || m.now.IsZero() {
			return nil
		}
		return f(m.now.In(zone))
	}
}

// calculate calculates without overflow and drops results that do not fit.
func (m *machine) calculate(args []any) any {
	op := args[0].(string)
	if args[1] == nil || args[2] == nil {
		return nil
	}
	if to, ok := args[1].(time.Time); ok {
		return to.Sub(args[2].(time.Time))
	}
	x, isInt := args[1].(int)
	y, alsoInt := args[2].(int)
	var result any
	if isInt && alsoInt && op != "/" {
		a, b, n := big.NewInt(int64(x)), big.NewInt(int64(y)), new(big.Int)
		switch {
		case op == "+":
			n.Add(a, b)
		case op == "-":
			n.Sub(a, b)
		case op == "*":
			n.Mul(a, b)
		case y != 0:
			n.Rem(a, b)
		default:
			n = nil
		}
		if n != nil && n.IsInt64() {
			result = int(n.Int64())
		}
	} else if r := calculateFloats(op, toFloat(args[1]), toFloat(args[2])); !math.IsNaN(r) && !math.IsInf(r, 0) {
		result = r
	}
	m.lost = m.lost || result == nil
	return result
}

func toFloat(v any) float64 {
	if n, ok := v.(int); ok {
		return float64(n)
	}
	return v.(float64)
}

func calculateFloats(op string, x, y float64) float64 {
	return map[string]func() float64{
		"+":  func() float64 { return x + y },
		"-":  func() float64 { return x - y },
		"*":  func() float64 { return x * y },
		"/":  func() float64 { return x / y },
		"**": func() float64 { return math.Pow(x, y) },
	}[op]()
}

// evaluate returns the value of an expression, and fails the test if it is refused.
func evaluate(t *testing.T, a *Attributes, source, zone string) bool {
	t.Helper()
	target, err := compileTarget(a.schema, source, zone, nil)
	if err != nil {
		t.Errorf("%s: %v", source, err)
		return false
	}
	return target.matches(a)
}

// A calculation without a value is missing.
func TestTargetWithoutValue(t *testing.T) {
	t.Parallel()
	a := testSchema(t).New()
	for _, pair := range [][2]string{{"level", "9223372036854775807"}, {"age", "-9223372036854775808"}, {"score", "1e308"}, {"rate", "0"}} {
		if err := a.Add(pair[0], pair[1]); err != nil {
			t.Fatal(err)
		}
	}
	for _, calculation := range []string{
		"1 / 0", "0 / 0", "1 % 0", "level / 0", "level % (age - age)", "score / rate", "rate / rate",
		"9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2", "-(-9223372036854775807 - 1)", "1e308 * 10", "2 ** 1024", "(-8) ** 0.5",
		"level + 1", "age - 1", "level - age", "level * 2", "age * (-1)", "-1 * age", "-age", "score + score", "score * 10", "score ** 2", "(-score) ** 0.5", "10 ** 309",
		"1 / 0 + 1", "level + 1 - 1",
	} {
		for format, want := range map[string]bool{
			"%s > 3": false, "%s < 3": false, "%s >= 0": false, "%s <= 0": false, "%s == 3": false, "%s == 0": false, "%s != 3": true,
			"%s == nil": true, "(%s) in [1, 2]": false, "not (%s > 3)": true, "3 > (%s)": false,
		} {
			source := fmt.Sprintf(format, calculation)
			if got := evaluate(t, a, source, ""); got != want {
				t.Errorf("%s: %v", source, got)
			}
		}
	}
	for _, source := range []string{
		"level - 1 + 1 == level", "-level - 1 == age", "age * 1 == age", "age + level == -1", "age / (-1) > 1.0", "age % (-1) == 0", "((level + 1) ?? 5) == 5", "-(age + 1) == level",
		`date("2150-01-01") - date("1900-01-01") > duration("2000000h")`,
	} {
		if !evaluate(t, a, source, "") {
			t.Errorf("%s: false", source)
		}
	}
}

// The functions of the clock across days, DST and the date line.
func TestTargetClock(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	a := schema.New()
	for _, test := range []struct{ now, zone, source string }{
		{"2026-01-05T00:00:00Z", "", "hour() == 0 and weekday() == 1 and now() == date('2026-01-05')"},
		{"2026-01-04T23:59:59.999Z", "", "hour() == 23 and weekday() == 7 and now() < date('2026-01-05')"},
		{"2026-01-04T23:59:59.999Z", "Asia/Tokyo", "hour() == 8 and weekday() == 1 and hour('UTC') == 23"},
		{"2026-01-04T18:29:59Z", "Asia/Kolkata", "hour() == 23 and weekday() == 7"},
		{"2026-01-04T18:30:00Z", "Asia/Kolkata", "hour() == 0 and weekday() == 1"},
		{"2026-03-08T06:59:59Z", "America/New_York", "hour() == 1 and weekday() == 7"},
		{"2026-03-08T07:00:00Z", "America/New_York", "hour() == 3"},
		{"2026-11-01T05:59:59Z", "America/New_York", "hour() == 1"},
		{"2026-11-01T06:00:00Z", "America/New_York", "hour() == 1"},
		{"2026-11-01T07:00:00Z", "America/New_York", "hour() == 2"},
		{"2011-12-30T09:59:59Z", "Pacific/Apia", "hour() == 23 and weekday() == 4"},
		{"2011-12-30T10:00:00Z", "Pacific/Apia", "hour() == 0 and weekday() == 6"},
		{"2026-01-05T12:00:00Z", "Etc/GMT+5", "hour() == 7"},
		{"2026-01-05T12:00:00Z", "", "hour(city) == 13 and weekday(city) == 1 and hour(city ?? 'UTC') == 13"},
		{"2026-01-05T12:00:00Z", "", "hour(country) == nil and not (weekday(country) > 0) and hour(country ?? 'Asia/Tokyo') == 21"},
		{"2026-01-05T12:00:00Z", "", "hour('UTC') in 9..17 and weekday() in [1, 3]"},
		{"2026-01-02T15:04:04.5Z", "", "days_since(joined) == -1"},
		{"2026-01-02T15:04:05.5Z", "", "days_since(joined) == 0"},
		{"2026-01-03T15:04:05.499Z", "", "days_since(joined) == 0"},
		{"2026-01-03T15:04:05.5Z", "", "days_since(joined) == 1"},
		{"2026-01-01T15:04:05.5Z", "", "days_since(joined) == -1"},
		{"2026-01-01T15:04:05.499Z", "", "days_since(joined) == -2"},
		{"2027-01-02T15:04:05.5Z", "", "days_since(joined) == 365 and now() - joined == duration('8760h')"},
		{"2026-01-05T12:00:00Z", "", "days_since(seen) == nil and not (days_since(seen) >= 0)"},
		{"", "", "now() == nil and hour() == nil and weekday('UTC') == nil and days_since(joined) == nil and not (now() > joined)"},
	} {
		a.Reset()
		for _, pair := range [][2]string{{"city", "Europe/Paris"}, {"joined", "2026-01-02T15:04:05.5Z"}} {
			if err := a.Add(pair[0], pair[1]); err != nil {
				t.Fatal(err)
			}
		}
		if now, err := time.Parse(time.RFC3339Nano, test.now); err == nil {
			a.At(now)
		}
		if !evaluate(t, a, test.source, test.zone) {
			t.Errorf("%+v: false", test)
		}
	}
	for _, name := range []string{"", "Local", "local", "Europe", "Europe/Paris ", "../Paris", "/etc/localtime", "right/UTC", "Europe//Paris", "Europe/Paris/", "utc", "Zone.tab", strings.Repeat("A", 65)} {
		a.Reset()
		a.At(time.Now())
		if err := a.Add("city", name); err != nil {
			t.Fatal(err)
		}
		if !evaluate(t, a, "hour(city) == nil", "") || IsZone(name) {
			t.Errorf("%q is a time zone", name)
		}
	}
}

// Hours and weekdays are those of the offset at that time, and days_since counts days of 24 hours.
func TestTargetClockAgainstOffsets(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	a := schema.New()
	names := []string{"America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca", "America/Santiago", "UTC"}
	targets := map[string]target{}
	compiled := func(t *rapid.T, source string) *target {
		c, ok := targets[source]
		if !ok {
			var err error
			if c, err = compileTarget(schema, source, "", nil); err != nil {
				t.Fatal(err)
			}
			targets[source] = c
		}
		return &c
	}
	rapid.Check(t, func(t *rapid.T) {
		a.Reset()
		name := rapid.SampledFrom(names).Draw(t, "zone")
		now := time.Unix(rapid.Int64Range(0, 2_500_000_000).Draw(t, "now"), rapid.Int64Range(0, 999_999_999).Draw(t, "fraction"))
		then := now.Add(time.Duration(rapid.Int64Range(-400, 400).Draw(t, "days"))*24*time.Hour + time.Duration(rapid.Int64Range(-2, 2).Draw(t, "nanoseconds")))
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		_, offset := now.In(zone).Zone()
		local := now.Unix() + int64(offset)
		days, seconds := local/86400, local%86400
		if seconds < 0 {
			days, seconds = days-1, seconds+86400
		}
		a.At(now)
		for name, text := range map[string]string{
			"city": name, "level": strconv.FormatInt(seconds/3600, 10), "age": strconv.FormatInt((days+3+7)%7+1, 10), "joined": then.UTC().Format(time.RFC3339Nano),
		} {
			if err := a.Add(name, text); err != nil {
				t.Fatal(err)
			}
		}
		if failing := compiled(t, "hour(city) == level and weekday(city) == age").failing(a); failing != "" {
			t.Fatalf("%s in %s: not %s", now.UTC(), name, failing)
		}
		if failing := compiled(t, fmt.Sprintf("hour(%q) == level and weekday(%[1]q) == age", name)).failing(a); failing != "" {
			t.Fatalf("%s: not %s", now.UTC(), failing)
		}
		whole := new(big.Int).Div(new(big.Int).Sub(big.NewInt(now.UnixNano()), big.NewInt(then.UnixNano())), big.NewInt(int64(24*time.Hour))) // rounded down
		if err := a.Replace("level", whole.String()); err != nil {
			t.Fatal(err)
		}
		if !compiled(t, "days_since(joined) == level").matches(a) {
			t.Fatalf("from %s to %s there are %s days", then.UTC(), now.UTC(), whole)
		}
	})
}

// Many requests load zones at once. A name may point into a request's memory.
func TestZones(t *testing.T) {
	t.Parallel()
	schema := testSchema(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for _, name := range []string{"Europe/Paris", "Asia/Tokyo", "Nowhere/City", "America/Lima"} {
				if zone := schema.zones.find(name); (zone == nil) != (name == "Nowhere/City") || zone != nil && zone.String() != name {
					t.Errorf("%s: %v", name, zone)
				}
			}
		})
	}
	group.Wait()
	if n := len(schema.zones.loaded); n != 3 {
		t.Errorf("%d zones are kept", n)
	}
	first := schema.zones.find("Europe/Paris")
	if schema.zones.find("Europe/Paris") != first {
		t.Error("a zone is loaded again")
	}
	for i := range zonesMax - len(schema.zones.loaded) {
		schema.zones.loaded[fmt.Sprint(i)] = first
	}
	if schema.zones.find("Africa/Cairo") == nil {
		t.Error("a zone that is not kept is not found")
	}
	if n := len(schema.zones.loaded); n != zonesMax {
		t.Errorf("%d zones are kept, want %d", n, zonesMax)
	}
}

func TestTargetLowerAndLists(t *testing.T) {
	t.Parallel()
	a := testSchema(t).New()
	lists := (*Lists)(nil).with("vips", hashesOf("7", "8"))
	for user, source := range map[string]string{
		"":  `not in_list("vips")`,
		"7": `in_list("vips") and not in_list("gone") and (in_list("gone") ? false : true)`,
		"9": `not in_list("vips") and lower(country) == "ça va" and lower("CN") == lower("cN") and lower(city) == nil and lower(country) in ["ça va"] and lower(country) contains lower("VA")`,
	} {
		a.Reset()
		if err := a.Add("country", "ÇA VA"); err != nil {
			t.Fatal(err)
		}
		a.For(user)
		a.Lists(lists)
		if !evaluate(t, a, source, "") {
			t.Errorf("%s of %q is false", source, user)
		}
	}
	a.For("7")
	a.Reset()
	if evaluate(t, a, `in_list("vips")`, "") {
		t.Error("Reset keeps the user")
	}
}

// A target knows what it depends on. Attributes may have the names of functions.
func TestTargetUses(t *testing.T) {
	t.Parallel()
	schema, err := NewSchema([]Attribute{{"version", Text}, {"hour", Integer}, {"days_since", Timestamp}, {"tags", TextList}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		source string
		uses   []string
		clock  bool
	}{
		{"", nil, false},
		{"true", nil, false},
		{`version(version) >= version("2.3.1")`, []string{"version"}, false},
		{`hour() < hour and hour(version) > 3`, []string{"version", "hour"}, true},
		{`days_since(days_since) > 3`, []string{"days_since"}, true},
		{`"a" in tags or len(tags) > 3 or lower(version) matches "x"`, []string{"tags", "version"}, false},
		{`(hour ?? 3) in 1..2 and not in_list("x")`, []string{"hour"}, false},
		{`weekday("UTC") == 3`, nil, true},
		{`now() > days_since`, []string{"days_since", "unknown"}, true},
		{`-hour + 1 > 3 ? version in ["a"] : false`, []string{"hour", "version"}, false},
	} {
		got, err := compileTarget(schema, test.source, "", nil)
		if err != nil || got.uses != schema.set(test.uses) || got.clock != test.clock {
			t.Errorf("%s: uses %b, clock %v, %v", test.source, got.uses, got.clock, err)
		}
		text := []string{}
		for _, c := range got.conditions {
			text = append(text, c.source)
		}
		if got := strings.Join(text, " and "); strings.ReplaceAll(got, `'`, `"`) != test.source && !strings.Contains(test.source, " or ") {
			t.Errorf("%s is shown as %s", test.source, got)
		}
	}
	if _, err := compileTarget(schema, "true", "Europe/Atlantis", nil); err == nil {
		t.Error("the zone Europe/Atlantis is taken")
	}
}

func BenchmarkTargetFunctions(b *testing.B) {
	a := testSchema(b).New()
	for _, pair := range [][2]string{{"city", "2.3.1"}, {"country", "Asia/Tokyo"}, {"joined", "2026-01-02T15:04:05Z"}, {"level", "7"}} {
		if err := a.Add(pair[0], pair[1]); err != nil {
			b.Fatal(err)
		}
	}
	a.At(day0)
	a.For("7")
	for _, source := range []string{`version(city) >= version("2.3.1")`, "hour(country) >= 0", "weekday() > 0", "days_since(joined) != 999", "now() != joined", `lower(city) == "2.3.1"`, "level + 1 == 8", "level >= 7"} {
		b.Run(source, func(b *testing.B) {
			target, err := compileTarget(a.schema, source, "", nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if !target.matches(a) {
					b.Fatal("false")
				}
			}
		})
	}
}
