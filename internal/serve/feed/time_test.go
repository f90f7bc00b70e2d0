package feed

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestAppendTime(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text   string
		digits int
		want   string // "": no time
	}{
		{"2016-12-01 23:59:57", 0, "2016-12-01T23:59:57Z"},
		{"2016-12-01 23:59:57", 3, "2016-12-01T23:59:57.000Z"},
		{"2016-12-01 23:59:57.12", 3, "2016-12-01T23:59:57.120Z"},
		{"2016-12-01T23:59:57.139Z", 3, "2016-12-01T23:59:57.139Z"},
		{"2016-12-01 23:59:57.139000", 3, "2016-12-01T23:59:57.139Z"},
		{"2016-12-01 23:59:57.1391", 3, "2016-12-01T23:59:57.1391Z"},
		{"2016-12-01 23:59:57.000", 0, "2016-12-01T23:59:57Z"},
		{"2016-12-01 23:59:57.123456789", 6, "2016-12-01T23:59:57.123456789Z"},
		{"2016-12-31 23:59:57.5-01:30", 1, "2017-01-01T01:29:57.5Z"},
		{"2016-03-01 00:00:00+00:01", 0, "2016-02-29T23:59:00Z"},
		{"2016-12-31 23:59:57.5-01", 0, "2017-01-01T00:59:57.5Z"},
		{"2016-12-31 23:59:57+1", 0, ""},
		{"0000-01-01 00:00:00", 0, "0000-01-01T00:00:00Z"},
		{"9999-12-31 23:59:59.999999", 6, "9999-12-31T23:59:59.999999Z"},
		{"9999-12-31 23:59:59-00:01", 6, ""},
		{"10000-01-01 00:00:00", 6, ""},
		{"0044-03-15 00:00:00 BC", 6, ""},
		{"infinity", 6, ""},
		{"0000-00-00 00:00:00", 6, ""},
		{"2016-12-00 00:00:00", 6, ""},
		{"2016-02-30 00:00:00", 6, ""},
		{"2016-12-31 23:59:60", 6, ""},
		{"2016-12-31 24:00:00", 6, ""},
		{"2016-12-01", 6, ""},
		{"2016-12-01 23:59", 6, ""},
		{"2016-12-01 23:59:57.", 6, ""},
		{"2016-12-01 23:59:57.1234567890", 6, ""},
		{"2016-12-01 23:59:57+24:00", 6, ""},
		{"2016-12-01 23:59:57 Z", 6, ""},
		{"2016-12-01_23:59:57", 6, ""},
		{"2016-12-01 23:59:57Zulu", 6, ""},
		{"", 6, ""},
	}
	for _, test := range tests {
		want := "x"
		if test.want != "" {
			want += `"` + test.want + `"`
		}
		if got, ok := AppendTime([]byte("x"), []byte(test.text), test.digits); string(got) != want || ok != (test.want != "") {
			t.Errorf("%s with %d digits: %s, %t, want %s", test.text, test.digits, got, ok, want)
		}
	}
}

// FuzzAppendTime compares AppendTime with package time.
func FuzzAppendTime(f *testing.F) {
	f.Add("2016-12-01 23:59:57.25+01:30", 3)
	f.Fuzz(func(t *testing.T, text string, digits int) {
		if digits < 0 || digits > 9 {
			return
		}
		got, ok := AppendTime(nil, []byte(text), digits)
		if !ok {
			return
		}
		var quoted string
		if err := json.Unmarshal(got, &quoted); err != nil {
			t.Fatalf("%q: %s: %v", text, got, err)
		}
		if _, fraction, _ := strings.Cut(quoted, "."); len(strings.TrimSuffix(fraction, "Z")) < digits && digits > 0 {
			t.Errorf("%q: %s has fewer than %d digits", text, quoted, digits)
		}
		written, err := time.Parse(time.RFC3339Nano, quoted)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		zoned := strings.Replace(text, " ", "T", 1)
		if !strings.ContainsAny(zoned[19:], "Z+-") {
			zoned += "Z"
		} else if at := strings.LastIndexAny(zoned, "+-"); at >= 19 && len(zoned)-at == len("+01") {
			zoned += ":00"
		}
		if meant, err := time.Parse(time.RFC3339Nano, zoned); err != nil || !meant.Equal(written) {
			t.Errorf("%q is %v, %v, and written %s", text, meant, err, quoted)
		}
	})
}
