package compress

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestParseAccept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines string // separated by |
		want  Accept
	}{
		{"gzip, deflate, br, zstd", Accept{Zstd, Gzip}},
		{"gzip, deflate, br", Accept{Gzip}},
		{"gzip;q=1.0, deflate;q=0.6, identity;q=0.3", Accept{Gzip}},
		{"gzip, zstd;q=0.9", Accept{Gzip, Zstd}},
		{"zstd;q=0.5, gzip;q=0.501", Accept{Gzip, Zstd}},
		{"GZip;Q=0.5", Accept{Gzip}},
		{"x-gzip", Accept{Gzip}},
		{"*", Accept{Zstd, Gzip}},
		{"*;q=0", Accept{}},
		{"gzip, *;q=0", Accept{Gzip}},
		{"zstd;q=0, *", Accept{Gzip}},
		{"*;q=0.5, gzip;q=0.1", Accept{Zstd}},
		{"identity;q=0", Accept{}},
		{"identity;q=0, gzip;q=0.1", Accept{Gzip}},
		{"identity, gzip;q=0.9", Accept{}},
		{"identity, gzip", Accept{Gzip}},
		{"identity;q=0.5, gzip;q=0.5, zstd;q=0.4", Accept{Gzip}},
		{"gzip;q=0", Accept{}},
		{"gzip;q=0.000", Accept{}},
		{"gzip;q=0.001", Accept{Gzip}},
		{"gzip;q=1.001", Accept{}},
		{"gzip;q=0.0001", Accept{}},
		{"gzip;q=", Accept{}},
		{"gzip;q=-1", Accept{}},
		{"gzip;q=.5", Accept{}},
		{"gzip;level=9", Accept{}},
		{"gzip ;\tq=1.", Accept{Gzip}},
		{",, gzip ,", Accept{Gzip}},
		{"", Accept{}},
		{"br, deflate, gzipped, z\u017ftd", Accept{}},
		{"gzip|zstd;q=0.2", Accept{Gzip, Zstd}},
		{"gzip|gzip;q=0", Accept{}},
	} {
		if got := ParseAccept(lines(c.lines)); got != c.want {
			t.Errorf("%q: %v, want %v", c.lines, got, c.want)
		}
	}
	if got := ParseAccept(nil); got != (Accept{}) {
		t.Errorf("no line: %v", got)
	}
}

// lines returns the lines of a text, in which | separates them.
func lines(text string) [][]byte { return bytes.Split([]byte(text), []byte("|")) }

// FuzzParseAccept compares the parser with a slow one, which reads the grammar of RFC 9110 as
// it is written.
func FuzzParseAccept(f *testing.F) {
	for _, seed := range []string{
		"gzip, deflate, br, zstd", "gzip", "gzip, deflate", "gzip, deflate, br", "identity", "*;q=0.1|gzip;q=0", "zstd;q=0.5, identity;q=0.7", "x-gzip;q=1.000",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, want := ParseAccept(lines(text)), modelAccept(strings.ReplaceAll(text, "|", ",")); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	})
}

func modelAccept(list string) Accept {
	weights := map[string]float64{"identity": -1, "gzip": -1, "zstd": -1, "*": -1}
	grammar := regexp.MustCompile(`^[ \t]*[qQ]=(0(\.[0-9]{0,3})?|1(\.0{0,3})?)[ \t]*$`)
	for _, element := range strings.Split(list, ",") {
		name, rest, weighted := strings.Cut(element, ";")
		name = strings.Map(lowerASCII, strings.Trim(name, " \t"))
		weight := 1.0
		if weighted {
			weight = 0
			if m := grammar.FindStringSubmatch(rest); m != nil {
				weight, _ = strconv.ParseFloat(m[1], 64)
			}
		}
		if name == "x-gzip" {
			name = "gzip"
		}
		if _, known := weights[name]; known {
			weights[name] = weight
		}
	}
	for name, weight := range weights {
		if name != "*" && weight < 0 {
			weights[name] = max(weights["*"], 0)
		}
	}
	zstd, gzip, plain := weights["zstd"], weights["gzip"], weights["identity"]
	useZstd, useGzip := zstd > 0 && zstd >= plain, gzip > 0 && gzip >= plain
	switch {
	case useZstd && useGzip && gzip > zstd:
		return Accept{Gzip, Zstd}
	case useZstd && useGzip:
		return Accept{Zstd, Gzip}
	case useZstd:
		return Accept{Zstd}
	case useGzip:
		return Accept{Gzip}
	}
	return Accept{}
}

func lowerASCII(r rune) rune {
	if r >= 'A' && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}

func TestParseAcceptAllocatesNothing(t *testing.T) {
	for _, text := range []string{"gzip, deflate, br, zstd", "gzip;q=0.8, zstd;q=0.9, *;q=0"} {
		value := lines(text)
		if n := testing.AllocsPerRun(100, func() { ParseAccept(value) }); n != 0 {
			t.Errorf("%q: %v allocations", text, n)
		}
	}
}
