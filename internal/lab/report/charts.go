package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// A panel is a framed part of a page with one or more charts that share an x axis and a cursor. page.js draws the panels
// from the JSON data of the page.
type panel struct {
	Title   string  `json:"title"`
	Caption string  `json:"caption,omitempty"`
	Half    bool    `json:"-"` // takes half of the page width
	Index   int     `json:"-"` // within the page's data
	Charts  []chart `json:"charts"`
}

// A chart has either lines over an x axis, in tables, or rows with one value per name.
type chart struct {
	Title  string   `json:"title"`
	Height int      `json:"height,omitempty"` // pixels on a wide screen; page.js chooses for rows
	X      axis     `json:"x"`
	Y      axis     `json:"y"` // the values of rows
	Tables []table  `json:"tables,omitempty"`
	Limits []mark   `json:"limits,omitempty"` // horizontal lines: an SLO, a limit of the system
	Starts []mark   `json:"starts,omitempty"` // vertical lines: the start of each step
	Spans  []span   `json:"spans,omitempty"`  // shaded ranges of x
	Rows   []barRow `json:"rows,omitempty"`
}

// Units of an axis.
const (
	unitNumber     = "number"
	unitCount      = "count"      // 1, 2, 3, …
	unitTime       = "time"       // seconds since the start of the run
	unitSeconds    = "seconds"    // a latency
	unitShare      = "share"      // 0 to 1
	unitPercent    = "percent"    // 0 to 100 per core
	unitRate       = "rate"       // per second
	unitRatio      = "ratio"      // a multiple of the baseline
	unitPercentile = "percentile" // -log10(1-quantile): 1 is p90, 2 is p99
)

// An axis defines how values are written and scaled.
type axis struct {
	Title string  `json:"title,omitempty"`
	Unit  string  `json:"unit"`
	Log   bool    `json:"log,omitempty"`
	Min   float64 `json:"min,omitempty"` // with Max; 0: as Unit needs
	Max   float64 `json:"max,omitempty"` // 0: the highest value
}

// A table is lines over the same ascending x values.
type table struct {
	X      numbers `json:"x"`
	Series []line  `json:"series"`
}

// Styles of a line.
const (
	styleThin   = "thin"
	styleDashed = "dashed"
	styleStack  = "stack" // an area on top of the ones before it
	stylePale   = "pale"  // the same in a lighter shade
	styleBars   = "bars"
	styleDots   = "dots"  // no line between the dots
	styleSteps  = "steps" // a value lasts until the next one
)

// shapeDiamond is the Shape of dots that are no circles.
const shapeDiamond = "diamond"

// A line is one value per x value of its table. NaN is a gap.
type line struct {
	Name   string  `json:"name"`
	Color  string  `json:"color"` // name of a custom property of page.css
	Style  string  `json:"style,omitempty"`
	Y      numbers `json:"y"`
	Dots   bool    `json:"dots,omitempty"`
	Hollow []bool  `json:"hollow,omitempty"` // dots that are not valid measurements
	Shape  string  `json:"shape,omitempty"`  // of the dots; "": circles
	Band   bool    `json:"band,omitempty"`   // the area down to the previous line is shaded
	// AtLeast are the x values at which Y is a lower bound.
	AtLeast numbers `json:"at_least,omitempty"`
}

func (l *line) add(x float64, p point) {
	l.Y = append(l.Y, p.value)
	if p.atLeast {
		l.AtLeast = append(l.AtLeast, x)
	}
}

// A mark is a labeled line across a chart.
type mark struct {
	At    float64 `json:"at"`
	Label string  `json:"label,omitempty"`
}

// A span is a shaded range of x.
type span struct {
	From  float64 `json:"from"`
	To    float64 `json:"to"`
	Label string  `json:"label,omitempty"`
	Color string  `json:"color"`
}

// A barRow is a named value with its range or interval.
type barRow struct {
	Name     string   `json:"name"`
	Color    string   `json:"color"`
	Value    float64  `json:"value"`
	Low      *float64 `json:"low,omitempty"`
	High     *float64 `json:"high,omitempty"`
	Interval bool     `json:"interval,omitempty"` // Low and High are a confidence interval, not a range
	Pale     bool     `json:"pale,omitempty"`     // an A/A control
	Hollow   bool     `json:"hollow,omitempty"`   // not a valid measurement
	Text     string   `json:"text"`               // beside the row
	Note     string   `json:"note"`               // shown for the row under the pointer
}

// numbers are float64 values in JSON with seven significant digits; NaN and infinities are null.
type numbers []float64

// MarshalJSON implements json.Marshaler.
func (n numbers) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, v := range n {
		if i > 0 {
			out = append(out, ',')
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			out = append(out, "null"...)
			continue
		}
		out = strconv.AppendFloat(out, v, 'g', 7, 64)
	}
	return append(out, ']'), nil
}

// highest is the highest value, NaN if there is none.
func (n numbers) highest() float64 {
	highest := math.NaN()
	for _, v := range n {
		if v > highest || math.IsNaN(highest) {
			highest = v
		}
	}
	return highest
}

// highest is the highest value of all lines, stacked ones added up; NaN if there is none.
func (t *table) highest() float64 {
	highest, stacked := math.NaN(), make(numbers, len(t.X))
	for i := range stacked {
		stacked[i] = math.NaN()
	}
	for _, l := range t.Series {
		if l.Style != styleStack && l.Style != stylePale {
			highest = numbers{highest, l.Y.highest()}.highest()
			continue
		}
		for i, v := range l.Y {
			if math.IsNaN(stacked[i]) {
				stacked[i] = v
			} else if v > 0 {
				stacked[i] += v
			}
		}
	}
	return numbers{highest, stacked.highest()}.highest()
}

// hue returns the color of run or variant i.
func hue(i int) string { return fmt.Sprintf("h%d", i%6) }

// shade returns the color of curve i of n.
func shade(i, n int) string { return fmt.Sprintf("r%d", i*7/max(1, n-1)) }

// pageData adds panels to a JSON document. The result is safe inside a script element.
func pageData(document []byte, panels []panel) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(document, &fields); err != nil {
		return nil, fmt.Errorf("write page data: %w", err)
	}
	encoded, err := json.Marshal(panels)
	if err != nil {
		return nil, fmt.Errorf("write page data: %w", err)
	}
	fields["panels"] = encoded
	return json.Marshal(fields)
}
