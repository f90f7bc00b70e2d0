package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// timeLayout names the zone.
const timeLayout = "2006-01-02 15:04:05 MST"

// Time returns a time in the viewer's zone.
func (v *view) Time(t time.Time) string { return t.In(v.zone).Format(timeLayout) }

// Zone names the viewer's zone.
func (v *view) Zone() string { return v.zone.String() }

// Now returns the time of the page in the viewer's zone.
func (v *view) Now() string { return v.Time(time.Now()) }

// Count returns a whole number with commas.
func (v *view) Count(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Number returns a number with three digits.
func (v *view) Number(x float64) string {
	if x >= 1000 || x == math.Trunc(x) {
		return v.Count(int64(math.Round(x)))
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

// Seconds returns a duration with three digits. It takes a float64 or a *float64.
func (v *view) Seconds(x any) string {
	var s float64
	switch x := x.(type) {
	case *float64:
		if x == nil {
			return "–"
		}
		s = *x
	case float64:
		s = x
	}
	units := []struct {
		name string
		size float64
	}{{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}, {"ms", 1e-3}, {"µs", 1e-6}}
	for _, u := range units {
		if s >= u.size {
			return strconv.FormatFloat(math.Round(s/u.size*100)/100, 'g', 3, 64) + " " + u.name
		}
	}
	return "0 s"
}

// Since returns how long ago a time was.
func (v *view) Since(t time.Time) string { return v.Seconds(time.Since(t).Seconds()) }

// Bytes returns a size.
func (v *view) Bytes(n any) string {
	x, _ := strconv.ParseFloat(fmt.Sprint(n), 64)
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if x < 1024 {
			return v.Number(math.Round(x*10)/10) + " " + unit
		}
		x /= 1024
	}
	return v.Number(math.Round(x*10)/10) + " TiB"
}

// Percent returns a share of 1 as a percentage.
func (v *view) Percent(x float64) string {
	digits := 1
	if math.Abs(x) < 0.01 {
		digits = 2
	}
	return strconv.FormatFloat(100*x, 'f', digits, 64) + " %"
}

// Short returns the first characters of a text.
func (v *view) Short(text string, most int) string { return short(text, most) }

func short(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// indexCommand returns the CREATE INDEX in the text of an error; "" if there is none.
func indexCommand(text string) string {
	begin := strings.Index(text, "CREATE INDEX ")
	if begin < 0 {
		return ""
	}
	depth := 0
	for i, c := range text[begin:] {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return text[begin:begin+i+1] + ";"
			}
		}
	}
	return ""
}

// Tab is a link of the navigation.
type Tab struct {
	Path, Name string
	Current    bool // the page is there, or below
}

// Tab returns the link to a page.
func (v *view) Tab(path, name string) Tab {
	at := v.Path == path || path != "/" && strings.HasPrefix(v.Path, path+"/")
	at = at || path == "/" && v.Path == "/console/" || path == "/console/streams" && strings.HasPrefix(v.Path, "/console/spools/")
	return Tab{path, name, at}
}

// With returns the view for a template that shows other data.
func (v *view) With(data any) *view {
	other := *v
	other.Data = data
	return &other
}

// Skew returns by how much a clock is ahead.
func (v *view) Skew(seconds float64) string {
	switch {
	case math.Abs(seconds) < 0.0005:
		return "in time"
	case seconds < 0:
		return v.Seconds(-seconds) + " behind"
	}
	return v.Seconds(seconds) + " ahead"
}

// Sub returns a difference.
func (v *view) Sub(a, b int64) int64 { return a - b }
