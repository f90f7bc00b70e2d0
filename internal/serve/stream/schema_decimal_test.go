package stream

import (
	"encoding/json"
	"math/big"
	"strings"
	"testing"
)

func TestDecimal(t *testing.T) {
	tests := []struct{ text, want string }{
		{"0", "0"},
		{"-0", "0"},
		{"-0.00", "0.00"},
		{"12345678901234.56", "12345678901234.56"},
		{"1.50", "1.50"},
		{"1e3", "1000"},
		{"1.5E+3", "1500"},
		{"1.5e0", "1.5"},
		{"15e-1", "1.5"},
		{"-1500e-2", "-15.00"},
		{"1e-3", "0.001"},
		{"0.05e1", "0.5"},
		{"0.05e2", "5"},
		{"0.005e4", "50"},
		{"0e999999999999999999999", "0"},
		{"1e999", "1" + strings.Repeat("0", 999)},
		{"1e1000", ""},
		{"1e-999", "0." + strings.Repeat("0", 998) + "1"},
		{"1e-1000", ""},
		{"1e999999999999999999999", ""},
		{"1e-999999999999999999999", ""},
		{strings.Repeat("9", 1000), strings.Repeat("9", 1000)},
		{strings.Repeat("9", 1001), ""},
		{"", ""},
		{"-", ""},
		{"+1", ""},
		{"01", ""},
		{".5", ""},
		{"5.", ""},
		{"1e", ""},
		{"1e+", ""},
		{"1e+-1", ""},
		{"1.2.3", ""},
		{" 1", ""},
		{"1 ", ""},
		{"0x10", ""},
		{"1_0", ""},
		{"NaN", "NaN"},
		{"Infinity", "Infinity"},
		{"infinity", ""},
		{"１", ""},
	}
	for _, test := range tests {
		got, ok := appendDecimal([]byte("x"), []byte(test.text))
		if ok != (test.want != "") || ok && string(got) != "x"+test.want {
			t.Errorf("%.50s: %.50q, %v, want %.50s", test.text, got, ok, test.want)
		}
		if ok && !isDecimal(got[1:]) {
			t.Errorf("%.50s: %.50s is not a decimal", test.text, got)
		}
	}
}

func TestCompareDecimals(t *testing.T) {
	ordered := []string{"-100", "-99.5", "-99.49", "-1", "-0.01", "-0.001", "0", "0.001", "0.01", "0.1", "1", "1.05", "1.5", "9", "10", "12345678901234.56", "12345678901234.57"}
	for i, a := range ordered {
		for j, b := range ordered {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := compareDecimals([]byte(a), []byte(b)); got != want {
				t.Errorf("%s and %s: %d, want %d", a, b, got, want)
			}
		}
	}
	if compareDecimals([]byte("1.50"), []byte("1.5")) != 0 || compareDecimals([]byte("0.00"), []byte("0")) != 0 {
		t.Error("zeros at the end count")
	}
}

func TestDecimalFits(t *testing.T) {
	for _, test := range []struct {
		text             string
		precision, scale int
		want             bool
	}{
		{"12345678901234.56", 20, 2, true},
		{"1.005", 20, 2, false},
		{"1.500000", 20, 2, true},
		{"999999999999999999.99", 20, 2, true},
		{"1000000000000000000", 20, 2, false},
		{"-999999999999999999.99", 20, 2, true},
		{"0.5", 2, 2, true},
		{"1", 2, 2, false},
		{"100", 3, 0, true},
		{"0.1", 3, 0, false},
		{"0", 1, 1, true},
	} {
		if got := DecimalFits([]byte(test.text), test.precision, test.scale); got != test.want {
			t.Errorf("%s into (%d,%d): %v", test.text, test.precision, test.scale, got)
		}
	}
}

// FuzzDecimal compares decimals with package big.
func FuzzDecimal(f *testing.F) {
	for _, seed := range []string{"1.5e3", "-0.00", "12345678901234.56", "1e-7", "0.05e2", "1e999"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, ok := appendDecimal(nil, text)
		isNumber := json.Valid(text) && len(text) > 0 && (text[0] == '-' || text[0] >= '0' && text[0] <= '9') && text[len(text)-1] >= '0'
		if ok && !isNumber {
			t.Fatalf("%q is not a number, and is accepted", text)
		}
		if !ok || len(text) > 100 {
			return
		}
		want, wantOK := new(big.Rat).SetString(string(text))
		parsed, parsedOK := new(big.Rat).SetString(string(got))
		if !isDecimal(got) || wantOK && (!parsedOK || want.Cmp(parsed) != 0) {
			t.Errorf("%q became %q", text, got)
		}
	})
}
