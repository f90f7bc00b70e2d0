package sheet

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSpelling(t *testing.T) {
	t.Parallel()
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(Duration(0), "0 s")
	f(Duration(0.4e-9), "0.4 ns")
	f(Duration(64e-9), "64 ns")
	f(Duration(812.4e-6), "812 µs")
	f(Duration(0.99996e-3), "1 ms")
	f(Duration(1.234e-3), "1.23 ms")
	f(Duration(31e-3), "31 ms")
	f(Duration(1.5), "1.5 s")
	f(Duration(1.03505), "1.04 s") // not by way of 1,035 ms
	f(Duration(105), "105 s")
	f(Duration(120), "120 s")
	f(Duration(179.6), "3 min")
	f(Duration(600), "10 min")
	f(Duration(7170), "2 h")
	f(Duration(-0.002), "-2 ms")
	f(AtLeast(2, UnitSeconds), ">= 2 s")
	f(AtLeast(1.9996, UnitSeconds), ">= 1.99 s")
	f(AtLeast(0.0703, UnitSeconds), ">= 70.3 ms")
	f(AtLeast(0.9999, UnitSeconds), ">= 999 ms")
	f(AtLeast(0, UnitSeconds), ">= 0 s")
	f(AtMost(243.2e-9, UnitSeconds), "< 244 ns")
	f(AtMost(0.9992, UnitSeconds), "< 1 s")
	f(Rate(2.5), "2.5/s")
	f(Rate(20000.4), "20,000/s")
	f(Rate(99.97), "100/s")
	f(Number(12), "12")
	f(Number(0.0012345), "0.00123")
	f(Number(1234.5), "1,235")
	f(Number(math.NaN()), "unknown")
	f(Text(math.Inf(1), UnitSeconds), "unknown")
	f(Integer(-1234567), "-1,234,567")
	f(Integer(-999), "-999")
	f(Share(0), "0 %")
	f(Share(0.00001), "0.001 %")
	f(Share(0.0000099), "< 0.001 %")
	f(Share(-0.002), "-0.2 %")
	f(Share(0.0005), "0.05 %")
	f(Share(0.12345), "12.3 %")
	f(Share(0.1), "10 %")
	f(Share(0.99999), "> 99.9 %")
	f(Share(1), "100 %")
	f(Share(2.19), "219 %")
	f(Size(0.0), "0 B")
	f(Size(1536.0), "1.5 KiB")
	f(Size(1023.9*1024), "1 MiB")
	f(Size(int64(24<<20)), "24 MiB")
	f(Plural(1, "step"), "1 step")
	f(Plural(2000, "step"), "2,000 steps")
	f(Plural(0.5, "core"), "0.5 cores")
	f(Plural(4, "source address"), "4 source addresses")
	f(Text(1, UnitCores), "1 core")
	f(Text(2048, UnitBytesRate), "2 KiB/s")
	f(Text(3, UnitCount), "3")
}

func TestTogether(t *testing.T) {
	t.Parallel()
	f := func(unit, want string, values ...float64) {
		t.Helper()
		numbers, suffix := Together(unit, values...)
		if got := strings.Join(numbers, " ") + suffix; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(UnitSeconds, "856 737 1,045 µs", 856e-6, 737e-6, 1045e-6)
	f(UnitSeconds, "0 12 ms", 0, 0.012)
	f(UnitSeconds, "0 0 s", 0, 0)
	f(UnitRate, "334 263 1,377/s", 334, 263, 1377)
	f(UnitShare, "12.5 7.5 %", 0.125, 0.075)
	f(UnitCount, "0.3 2", 0.3, 2)
}

// read is the value of a text that Text wrote in a unit.
func read(t *rapid.T, text, unit string) float64 {
	scales := map[string][]scale{
		UnitSeconds: timeScales(), UnitBytes: sizeScales(), UnitShare: {{"%", 100, 0}}, UnitCount: {{"", 1, 0}}, UnitRate: {{"/s", 1, 0}},
	}[unit]
	digits := strings.TrimRight(text, "/%abcdefghijklmnopqrstuvwxyzBKMGTPµ ")
	name := strings.TrimSpace(text[len(digits):])
	number, err := strconv.ParseFloat(strings.ReplaceAll(digits, ",", ""), 64)
	if err != nil {
		t.Fatalf("%q is no number: %v", text, err)
	}
	for _, s := range scales {
		if s.name == name {
			return number / s.per
		}
	}
	t.Fatalf("%q has no unit of %s", text, unit)
	return 0
}

// TestEveryNumberHasOneText draws values of all magnitudes: a text is read back within half of its third digit (0.5 %), what is read is
// written the same way again, bounds are on their side, and a larger value never reads as a smaller one.
func TestEveryNumberHasOneText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]string{UnitSeconds, UnitBytes, UnitShare, UnitCount, UnitRate}).Draw(t, "unit")
		draw := func(name string) float64 {
			mantissa := rapid.Float64Range(1, 10).Draw(t, name)
			digits := rapid.IntRange(1, 17).Draw(t, name+" digits") // few: on the border of a unit or a digit
			mantissa, err := strconv.ParseFloat(strconv.FormatFloat(mantissa, 'g', digits, 64), 64)
			if err != nil {
				t.Fatal(err)
			}
			return mantissa * math.Pow(10, float64(rapid.IntRange(-11, 12).Draw(t, name+" exponent")))
		}
		v := draw("value")
		text := Text(v, unit)
		if nearly := text == "> 99.9 %" || text == "< 0.001 %"; nearly {
			if unit != UnitShare || v >= 1e-5 && v < 0.999 || v >= 1 {
				t.Fatalf("%g is %s", v, text)
			}
			return
		}
		back := read(t, text, unit)
		if math.Abs(back-v) > v*(0.005+1e-9) {
			t.Fatalf("%g is %q, which is %g away", v, text, math.Abs(back-v))
		}
		if again := Text(back, unit); again != text {
			t.Fatalf("%g is %q, and that is %q", v, text, again)
		}
		if low := read(t, strings.TrimPrefix(AtLeast(v, unit), ">= "), unit); low > v*(1+1e-9) {
			t.Fatalf("%g is %q", v, AtLeast(v, unit))
		}
		if high := read(t, strings.TrimPrefix(AtMost(v, unit), "< "), unit); high < v*(1-1e-9) {
			t.Fatalf("%g is %q", v, AtMost(v, unit))
		}
		other := v * (1 + rapid.Float64Range(0, 0.02).Draw(t, "more"))
		if text := Text(other, unit); text != "> 99.9 %" {
			if more := read(t, text, unit); more < back*(1-1e-12) {
				t.Fatalf("%g is %q and %g is %q", v, Text(v, unit), other, text)
			}
		}
	})
}
