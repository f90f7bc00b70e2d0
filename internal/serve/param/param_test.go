package param

import (
	"slices"
	"strings"
	"testing"

	"spillway/internal/plans"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ      Type
		in, want string
	}{
		{Text, "Köln", "Köln"},
		{Text, "'; DROP TABLE users --", "'; DROP TABLE users --"},
		{Text, "", ""},
		{Integer, "42", "42"},
		{Integer, "+042", "42"},
		{Integer, "-9223372036854775808", "-9223372036854775808"},
		{Real, "1.50", "1.5"},
		{Real, "1e3", "1000"},
		{Boolean, "1", "true"},
		{Boolean, "false", "false"},
		{Timestamp, "2016-12-01T23:59:57+01:00", "2016-12-01T22:59:57Z"},
		{Timestamp, "2016-12-01T23:59:57.250000Z", "2016-12-01T23:59:57.25Z"},
		{Timestamp, "2016-12-01 23:59:57", "2016-12-01T23:59:57Z"},
		{Timestamp, "2016-12-01 23:59:57.250", "2016-12-01T23:59:57.25Z"},
		{Timestamp, "9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"},
		{Timestamp, "0000-01-01T00:00:00Z", "0000-01-01T00:00:00Z"},
		{Decimal, "-12345678901234567890.10", "-12345678901234567890.10"},
		{Date, "2016-02-29", "2016-02-29"},
		{Time, "-838:59:59.500", "-838:59:59.5"},
		{Time, "23:59:57.000", "23:59:57"},
		{Bytes, "_-A=", "/+A="},
		{Bytes, "", ""},
		{UUID, "6BA7B810-9DAD-11D1-80B4-00C04FD430C8", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
	} {
		got, err := Parse(Param{Name: "p", Type: c.typ}, c.in)
		if err != nil || got != c.want {
			t.Errorf("Parse(%s, %q) = %q, %v; want %q", c.typ, c.in, got, err, c.want)
		}
		if again, err := Parse(Param{Name: "p", Type: c.typ}, got); err != nil || again != got {
			t.Errorf("%s: the canonical form %q is not: %q, %v", c.typ, got, again, err)
		}
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ Type
		in  string
	}{
		{Text, "a\x00b"},
		{Text, "\xff"},
		{Text, strings.Repeat("x", MaxBytes+1)},
		{Integer, "18446744073709551616"},
		{Integer, "0;drop"},
		{Integer, "1e9"},
		{Integer, ""},
		{Real, "NaN"},
		{Real, "inf"},
		{Boolean, "yes"},
		{Timestamp, "2016-12-01"},
		{Timestamp, "9999-12-31T23:59:59-00:01"},
		{Timestamp, "0000-01-01T00:00:00+00:01"},
		{Decimal, "1e3"},
		{Decimal, "01"},
		{Decimal, "NaN"},
		{Date, "2015-02-29"},
		{Date, "2016-12-01T00:00:00Z"},
		{Time, "24:60:00"},
		{Time, "1:00:00"},
		{Time, "00:00:00.0000001"},
		{Bytes, "AAB="},
		{Bytes, "AA"},
		{UUID, "6ba7b810-9dad-11d1-80b4-00c04fd430cg"},
		{UUID, "6ba7b8109dad11d180b400c04fd430c8"},
	} {
		if got, err := Parse(Param{Name: "p", Type: c.typ}, c.in); err == nil || !strings.Contains(err.Error(), "p ") {
			t.Errorf("Parse(%s, %q) = %q, %v; want an error that names p", c.typ, c.in, got, err)
		}
	}
}

func TestFiner(t *testing.T) {
	t.Parallel()
	p := Filter("at", Timestamp)
	for text, want := range map[string]bool{
		"2016-12-01T23:59:57Z": false, "2016-12-01T23:59:57.123456Z": false, "2016-12-01T23:59:57.123456000Z": false,
		"2016-12-01T23:59:57.1234561Z": true, "2016-12-01T23:59:57.123456001+01:00": true,
	} {
		arg, err := Argument(p, text)
		if got := Finer(p, arg); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if Finer(p, Absent) || Finer(Filter("name", Text), "1.12345678Z") {
		t.Error("what is no time has a fraction")
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	params := []Param{{Name: "a", Type: Text}, Filter("b", Text), Filter("c", Integer)}
	for _, test := range []struct {
		texts [][]string // of a, b and c
		given []int
	}{
		{[][]string{{""}, nil, nil}, nil},
		{[][]string{{"x"}, {""}, nil}, []int{1}},
		{[][]string{{"x"}, {"y"}, {"7"}}, []int{1, 2}},
	} {
		var args []string
		for i, p := range params {
			arg, err := Argument(p, test.texts[i]...)
			if err != nil {
				t.Fatal(err)
			}
			args = append(args, arg)
		}
		if got := Given(params, args); !slices.Equal(got, test.given) {
			t.Errorf("%q: filters %v, want %v", test.texts, got, test.given)
		}
	}
	if _, err := Argument(params[1], Absent); err == nil {
		t.Error("a request can give the argument of an absent filter")
	}
	if _, err := Argument(params[2], ""); err == nil {
		t.Error("an empty text is a number")
	}
	s, err := plans.ParseStatement("SELECT :a, :b", plans.SQLite)
	if err != nil {
		t.Fatal(err)
	}
	if err := Match(s, params); err == nil || !strings.Contains(err.Error(), ":b has no type") {
		t.Errorf("a parameter that is only a filter: %v", err)
	}
}
