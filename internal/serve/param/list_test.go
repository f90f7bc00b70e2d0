package param

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"spillway/internal/plans"
)

func TestArgument(t *testing.T) {
	t.Parallel()
	ids := Param{Name: "ids", Type: Integer, ListMax: 3}
	tests := []struct {
		p     Param
		texts []string
		want  string // an argument, or part of the error
		fails bool
	}{
		{Param{Name: "a", Type: Integer}, []string{"+7"}, "7", false},
		{Param{Name: "a", Type: Integer}, nil, "parameter a is missing", true},
		{Param{Name: "a", Type: Integer, Optional: true, Default: "5"}, nil, "5", false},
		{Param{Name: "a", Type: Integer, Optional: true, Default: "5"}, []string{""}, "a must be a whole number", true},
		{ids, []string{"10"}, "\x0210", false},
		{ids, []string{"9", "+10", "10"}, "\x0210\x019", false},
		{ids, []string{"10", "9"}, "\x0210\x019", false},
		{ids, []string{"1", "1", "1", "1"}, "ids has more than 3 values", true},
		{ids, []string{"1", "x"}, "ids must be a whole number", true},
		{ids, nil, "parameter ids is missing", true},
		{Param{Name: "s", Type: Text, ListMax: 1}, []string{""}, "\x00", false},
	}
	for _, test := range tests {
		got, err := Argument(test.p, test.texts...)
		if test.fails && (err == nil || !strings.Contains(err.Error(), test.want)) || !test.fails && (err != nil || got != test.want) {
			t.Errorf("%+v of %q: %q, %v, want %q", test.p, test.texts, got, err, test.want)
		}
	}
}

// TestListProperty: two lists have one argument if, and only if, they have the same values.
// The argument contains exactly these values.
func TestListProperty(t *testing.T) {
	t.Parallel()
	texts := rapid.SliceOfN(rapid.OneOf(
		rapid.StringN(0, 3, -1).Filter(func(s string) bool { return !strings.Contains(s, "\x00") }),
		rapid.SampledFrom([]string{"", "a", "b", "ab", "\x01a", "\x01", strings.Repeat("x", 127), strings.Repeat("x", 128), strings.Repeat("x", 500)}),
	), 1, 5)
	p := Param{Name: "p", Type: Text, ListMax: 5}
	rapid.Check(t, func(t *rapid.T) {
		a, b := texts.Draw(t, "a"), texts.Draw(t, "b")
		first, err := Argument(p, a...)
		if err != nil {
			t.Fatal(err)
		}
		second, err := Argument(p, b...)
		if err != nil {
			t.Fatal(err)
		}
		set := func(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }
		if (first == second) != slices.Equal(set(a), set(b)) {
			t.Fatalf("%q is %q, %q is %q", a, first, b, second)
		}
		if values, err := Values(first); err != nil || !slices.Equal(values, set(a)) {
			t.Fatalf("%q has the values %q, %v", a, values, err)
		}
	})
}

func FuzzValues(f *testing.F) {
	f.Add("\x01a\x00")
	f.Add("\x05a")
	f.Fuzz(func(t *testing.T, arg string) {
		if values, err := Values(arg); err == nil && (len(values) == 0 || len(strings.Join(values, "")) > len(arg)) {
			t.Errorf("%q has the values %q", arg, values)
		}
	})
}

func TestExpand(t *testing.T) {
	t.Parallel()
	id, ids := Param{Name: "id", Type: Integer}, Param{Name: "ids", Type: Text, ListMax: 3}
	taken := Param{Name: "ids_1", Type: Integer}
	tests := []struct {
		sql    string
		params []Param
		want   []string
	}{
		{"SELECT :id -- a", []Param{id}, []string{"SELECT :id -- a"}},
		{"SELECT :id, a IN (:ids), b NOT IN (:ids)", []Param{id, ids}, []string{
			"SELECT :id, a IN (:ids_1), b NOT IN (:ids_1)",
			"SELECT :id, a IN (:ids_1, :ids_2), b NOT IN (:ids_1, :ids_2)",
			"SELECT :id, a IN (:ids_1, :ids_2, :ids_3, :ids_4), b NOT IN (:ids_1, :ids_2, :ids_3, :ids_4)",
		}},
		{"SELECT ':ids', :ids_1 IN (:ids)", []Param{taken, ids}, []string{
			"SELECT ':ids', :ids_1 IN (:ids__1)",
			"SELECT ':ids', :ids_1 IN (:ids__1, :ids__2)",
			"SELECT ':ids', :ids_1 IN (:ids__1, :ids__2, :ids__3, :ids__4)",
		}},
	}
	for _, test := range tests {
		all, err := Expand(test.sql, plans.MySQL, test.params)
		var got []string
		for _, e := range all {
			got = append(got, e.SQL)
			if parsed, err := plans.ParseStatement(e.SQL, plans.MySQL); err != nil || Match(parsed, e.Params) != nil {
				t.Errorf("%s: %v, %v", e.SQL, err, Match(parsed, e.Params))
			}
		}
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, %v, want %q", test.sql, got, err, test.want)
		}
	}
	for sql, want := range map[string]string{"SELECT :other": "does not use the parameter :id", "DELETE": "SELECT", "SELECT :id, :x": "the parameter :x has no type"} {
		if _, err := Expand(sql, plans.MySQL, []Param{id}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
}

// TestExpandArgumentsProperty: the chosen expansion has a parameter for each argument. Those
// of a list have its values, and no others.
func TestExpandArgumentsProperty(t *testing.T) {
	t.Parallel()
	number := regexp.MustCompile(`_\d+$`)
	rapid.Check(t, func(t *rapid.T) {
		params := []Param{
			{Name: "a", Type: Text, ListMax: rapid.IntRange(0, 9).Draw(t, "a")},
			{Name: "b", Type: Text},
			{Name: "c", Type: Text, ListMax: rapid.IntRange(0, 9).Draw(t, "c")},
		}
		all, err := Expand("SELECT :a, :b, :c", plans.SQLite, params)
		if err != nil {
			t.Fatal(err)
		}
		var args []string
		given := make(map[string][]string) // by the parameter's name
		for _, p := range params {
			texts := rapid.SliceOfNDistinct(rapid.StringMatching("[a-z]{0,2}"), 1, max(p.ListMax, 1), rapid.ID[string]).Draw(t, "texts")
			arg, err := Argument(p, texts...)
			if err != nil {
				t.Fatal(err)
			}
			args, given[p.Name] = append(args, arg), slices.Sorted(slices.Values(texts))
		}
		n, expanded, err := ExpandArguments(params, args)
		if err != nil || n >= len(all) || len(expanded) != len(all[n].Params) {
			t.Fatalf("expansion %d of %d, arguments %q, %v", n, len(all), expanded, err)
		}
		bound := make(map[string][]string)
		for i, p := range all[n].Params {
			name := number.ReplaceAllString(p.Name, "")
			bound[name] = append(bound[name], expanded[i])
		}
		for name, texts := range given {
			if got := slices.Compact(slices.Sorted(slices.Values(bound[name]))); !slices.Equal(got, texts) {
				t.Fatalf("%s is bound to %q, given %q", name, bound[name], texts)
			}
		}
	})
}
