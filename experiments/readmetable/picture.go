package main

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"spillway/internal/lab/experiment"
	"spillway/internal/lab/sheet"
)

// pictureBytesMax bounds a picture.
const pictureBytesMax = 150_000

var (
	pictureOpening = regexp.MustCompile(`^<!-- picture:(.*) -->$`)
	imageLink      = regexp.MustCompile(`^!\[(.+)\]\((.+\.png)\)$`)
)

// A picture is a bar chart that a document shows.
type picture struct {
	path     string // relative to the repository
	title    string
	study    string
	column   string // a metric and its level: rate_hz@c128
	variants []string
}

// findPictures returns the pictures that a document declares: a comment with the image on the next line.
func findPictures(root, document string) ([]picture, error) {
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	var pictures []picture
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		match := pictureOpening.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		var link []string
		if i+1 < len(lines) {
			link = imageLink.FindStringSubmatch(lines[i+1])
		}
		fields := strings.Fields(match[1])
		if link == nil || len(fields) == 0 {
			return nil, fmt.Errorf("%s: line %d: a picture needs a study, and ![title](path.png) on the next line", document, i+1)
		}
		p := picture{path: filepath.Join(filepath.Dir(document), link[2]), title: link[1], study: fields[0]}
		for _, option := range fields[1:] {
			switch name, value, _ := strings.Cut(option, "="); name {
			case "column":
				p.column = value
			case "variants":
				p.variants = strings.Split(value, ",")
			default:
				return nil, fmt.Errorf("%s: line %d: unknown option %q: column or variants", document, i+1, name)
			}
		}
		if !filepath.IsLocal(p.path) {
			return nil, fmt.Errorf("%s: line %d: %s is outside of the repository", document, i+1, link[2])
		}
		pictures = append(pictures, p)
	}
	return pictures, nil
}

// updatePicture draws a picture and reports whether the file differed. With check it leaves the file as it is.
func updatePicture(root string, p *picture, check bool) (changed bool, err error) {
	study, err := readSummary(root, p.study)
	if err != nil {
		return false, err
	}
	bars, err := p.bars(study)
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.path, err)
	}
	drawn, err := drawBars(p.title, bars)
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.path, err)
	}
	path := filepath.Join(root, p.path)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("read picture: %w", err)
	}
	if samePicture(before, drawn) || check {
		return !samePicture(before, drawn), nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("write picture: %w", err)
	}
	if err := os.WriteFile(path, drawn, 0o644); err != nil {
		return false, fmt.Errorf("write picture: %w", err)
	}
	return true, nil
}

// A bar is a variant's value with the range of its blocks.
type bar struct {
	name, text         string
	value, least, most float64
}

// bars reads the figures of the variants. A figure that no VALID run supports is an error: a picture has no room for the caveat.
func (p *picture) bars(study *experiment.Study) ([]bar, error) {
	name, level, _ := strings.Cut(p.column, "@")
	metric := study.Metric(name)
	if metric == nil {
		return nil, fmt.Errorf("the study has no metric %q", name)
	}
	for _, variant := range p.variants {
		if study.Variant(variant) == nil {
			return nil, fmt.Errorf("the study has no variant %q", variant)
		}
	}
	var bars []bar
	for _, v := range study.Manifest.Variants {
		figure := study.Figure(metric.Name, v.Name, level)
		if len(p.variants) == 0 && v.Again || len(p.variants) > 0 && !slices.Contains(p.variants, v.Name) || figure == nil {
			continue
		}
		if figure.Unproved {
			return nil, fmt.Errorf("%s at %q: no valid run supports it; leave it out of variants", v.Name, level)
		}
		if study.Cell(v.Name, level).Fails() {
			return nil, fmt.Errorf("%s at %q fails its requests; leave it out of variants", v.Name, level)
		}
		bars = append(bars, bar{
			name: v.Name, text: sheet.Text(figure.Median, metric.Unit), value: figure.Median, least: figure.Min,
			most: figure.Max,
		})
	}
	if len(bars) == 0 {
		return nil, fmt.Errorf("no variant has %s at level %q", metric.Name, level)
	}
	return bars, nil
}

// ranges are the bars as gonum/plot's error bars take them.
type ranges []bar

// Len implements plotter.XYer.
func (r ranges) Len() int { return len(r) }

// XY implements plotter.XYer.
func (r ranges) XY(i int) (x, y float64) { return r[i].value, float64(i) }

// XError implements plotter.XErrorer.
func (r ranges) XError(i int) (low, high float64) {
	return r[i].value - r[i].least, r[i].most - r[i].value
}

func sans(points float64) font.Font {
	return font.Font{Typeface: plot.DefaultFont.Typeface, Variant: "Sans", Size: vg.Points(points)}
}

// drawBars draws horizontal bars, the first at the top.
func drawBars(title string, bars []bar) ([]byte, error) {
	bars = slices.Clone(bars)
	slices.Reverse(bars)
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font, p.Y.Tick.Label.Font = sans(14), sans(11)
	p.Title.Padding = vg.Points(8)
	p.X.Min = 0
	p.X.Tick.Marker = plot.ConstantTicks(nil)
	p.X.LineStyle.Width, p.Y.LineStyle.Width, p.Y.Tick.LineStyle.Width = 0, 0, 0
	names, texts, values := make([]string, len(bars)), make([]string, len(bars)), make(plotter.Values, len(bars))
	ends := make(plotter.XYs, len(bars))
	most := 0.0
	for i, b := range bars {
		names[i], texts[i], values[i] = b.name, b.text, b.value
		ends[i] = plotter.XY{X: max(b.value, b.most), Y: float64(i)}
		most = max(most, b.value, b.most)
	}
	chart, err := plotter.NewBarChart(values, vg.Points(20))
	if err != nil {
		return nil, fmt.Errorf("draw bars: %w", err)
	}
	chart.Horizontal, chart.Color, chart.LineStyle.Width = true, color.RGBA{R: 0x1f, G: 0x6f, B: 0xeb, A: 0xff}, 0
	whiskers, err := plotter.NewXErrorBars(ranges(bars))
	if err != nil {
		return nil, fmt.Errorf("draw ranges: %w", err)
	}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: ends, Labels: texts})
	if err != nil {
		return nil, fmt.Errorf("draw labels: %w", err)
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font, labels.TextStyle[i].YAlign = sans(11), draw.YCenter
	}
	labels.Offset = vg.Point{X: vg.Points(8), Y: vg.Points(1.5)} // clear of the bar, and in its middle
	p.Add(chart, labels)
	if slices.ContainsFunc(bars, func(b bar) bool { return b.least < b.most }) {
		p.Add(whiskers)
	}
	p.NominalY(names...)
	p.X.Max, p.Y.Min, p.Y.Max = most*1.2, -0.6, float64(len(bars))-0.4
	canvas := vgimg.NewWith(vgimg.UseWH(vg.Points(560), vg.Points(float64(44+30*len(bars)))), vgimg.UseDPI(144))
	p.Draw(draw.Crop(draw.New(canvas), vg.Points(8), 0, vg.Points(8), vg.Points(-8)))
	var out bytes.Buffer
	if err := png.Encode(&out, canvas.Image()); err != nil {
		return nil, fmt.Errorf("write picture: %w", err)
	}
	if out.Len() > pictureBytesMax {
		return nil, fmt.Errorf("the picture has %d bytes, more than %d", out.Len(), pictureBytesMax)
	}
	return out.Bytes(), nil
}

// samePicture compares pixels and leaves room for the rounding of other processors.
func samePicture(a, b []byte) bool {
	before, errBefore := png.Decode(bytes.NewReader(a))
	after, errAfter := png.Decode(bytes.NewReader(b))
	if errBefore != nil || errAfter != nil || before.Bounds() != after.Bounds() {
		return false
	}
	bounds := before.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if differ(before, after, x, y) {
				return false
			}
		}
	}
	return true
}

func differ(a, b image.Image, x, y int) bool {
	const tolerance = 0x2000
	r0, g0, b0, _ := a.At(x, y).RGBA()
	r1, g1, b1, _ := b.At(x, y).RGBA()
	far := func(v, w uint32) bool { return max(v, w)-min(v, w) > tolerance }
	return far(r0, r1) || far(g0, g1) || far(b0, b1)
}
