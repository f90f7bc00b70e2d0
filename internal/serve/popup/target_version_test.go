package popup

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var versionPattern = regexp.MustCompile(`^[vV]?(\d+(?:\.\d+)*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?$`)

// versionOrder compares two versions field by field.
func versionOrder(x, y string) int {
	a, b := versionPattern.FindStringSubmatch(x), versionPattern.FindStringSubmatch(y)
	numbers := func(s string) (out []*big.Int) {
		for part := range strings.SplitSeq(s, ".") {
			n, _ := new(big.Int).SetString(part, 10)
			out = append(out, n)
		}
		return out
	}
	left, right := numbers(a[1]), numbers(b[1])
	for i := range max(len(left), len(right)) {
		l, r := new(big.Int), new(big.Int)
		if i < len(left) {
			l = left[i]
		}
		if i < len(right) {
			r = right[i]
		}
		if c := l.Cmp(r); c != 0 {
			return c
		}
	}
	if a[2] == "" || b[2] == "" {
		return cmp.Compare(b[2], a[2]) // a release is after what leads to it
	}
	return slices.CompareFunc(strings.Split(a[2], "."), strings.Split(b[2], "."), func(l, r string) int {
		m, isNumber := new(big.Int).SetString(l, 10)
		n, alsoNumber := new(big.Int).SetString(r, 10)
		isNumber, alsoNumber = isNumber && l[0] != '-', alsoNumber && r[0] != '-'
		switch {
		case isNumber && alsoNumber:
			return m.Cmp(n)
		case isNumber:
			return -1
		case alsoNumber:
			return 1
		}
		return cmp.Compare(l, r)
	})
}

func TestTargetVersions(t *testing.T) {
	t.Parallel()
	a := testSchema(t).New()
	ascending := []string{
		"0", "0.0.1", "0.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0",
		"1.0.0.0.1-x", "1.0.1", "1.2", "1.9.9", "1.10-2", "1.10-10", "1.10--", "1.10-a", "1.10", "2.0", "10", "2024.1.15", "2024.02.03", "18446744073709551616.1",
	}
	for i, x := range ascending {
		for j, y := range ascending {
			if err := a.Replace("city", x); err != nil {
				t.Fatal(err)
			}
			var relations []string
			for op, want := range map[string]bool{"<": i < j, "<=": i <= j, ">": i > j, ">=": i >= j, "==": i == j, "!=": i != j} {
				relation := fmt.Sprintf("(version(city) %s version(%q))", op, y)
				if !want {
					relation = "not " + relation
				}
				relations = append(relations, relation)
			}
			if all := strings.Join(relations, " and "); !evaluate(t, a, all, "") {
				t.Errorf("with the city %s this does not hold: %s", x, all)
			}
		}
	}
	for _, alike := range [][2]string{{"1", "1.0.0"}, {"v1.2.3", "1.2.3"}, {"V1.2.3+build.7", "1.2.3+other"}, {"01.002", "1.2.0.0"}, {"1-rc.1", "1.0-rc.01"}} {
		x, valid := versionKey(alike[0])
		if y, alsoValid := versionKey(alike[1]); !valid || !alsoValid || x != y {
			t.Errorf("%s is not %s", alike[0], alike[1])
		}
	}
	for _, bad := range []string{"", "v", "1.", ".1", "1..2", "1.x", "1.2beta", " 1.2", "1.2 ", "1.2-", "1.2-a..b", "1.2+", "1.2-ä", "vv1", "1,2", "-1", strings.Repeat("9", 256)} {
		if err := a.Replace("city", bad); err != nil {
			t.Fatal(err)
		}
		if !evaluate(t, a, `version(city) == nil and not (version(city) < version("1")) and version(city) != version("1")`, "") {
			t.Errorf("%q is a version", bad)
		}
	}
	if err := a.Replace("city", "2.3"); err != nil {
		t.Fatal(err)
	}
	if !evaluate(t, a, `version(city) in [version("1"), version("2.3.0")] and version(city) not in [version("2")] and (version(country) ?? version("9")) > version(city)`, "") {
		t.Error("2.3 is not in the list")
	}
}

// Keys compare like versions, and exist for versions only.
func TestVersionOrder(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{"0", "00", "1", "2", "10", "010", "9", "99999999999999999999", "a", "A", "-", "-1", "1a", "rc", "rc1", "", "é"})
	number := rapid.SampledFrom([]string{"0", "1", "2", "10", "00", "02", "99999999999999999999"})
	join := func(from *rapid.Generator[string], name string) func(t *rapid.T) string {
		return func(t *rapid.T) string { return strings.Join(rapid.SliceOfN(from, 1, 4).Draw(t, name), ".") }
	}
	text := rapid.Custom(func(t *rapid.T) string {
		s := pick(t, "", "", "v", "x") + join(number, "numbers")(t)
		if rapid.Bool().Draw(t, "suffixed") {
			s += "-" + join(part, "suffix")(t)
		}
		if rapid.IntRange(0, 4).Draw(t, "built") == 0 {
			s += "+" + join(part, "build")(t)
		}
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		x, y := text.Draw(t, "x"), text.Draw(t, "y")
		k, valid := versionKey(x)
		l, alsoValid := versionKey(y)
		if valid != versionPattern.MatchString(x) {
			t.Fatalf("%q is a version: %v", x, valid)
		}
		if valid && alsoValid && cmp.Compare(k, l) != versionOrder(x, y) {
			t.Fatalf("%q and %q compare as %d, want %d", x, y, cmp.Compare(k, l), versionOrder(x, y))
		}
	})
}
