package report

import (
	"html/template"

	"spillway/internal/lab/result"
)

// pageCharts draws every chart that the runs have something to show in.
func pageCharts(runs []run) ([]figure, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	var figures []figure
	for _, loop := range []string{result.LoopOpen, result.LoopClosed} {
		if _, _, n := levels(runs, loop); n > 1 {
			figures = append(figures, loadFigures(runs, loop)...)
		}
	}
	slo := sloLevels(runs)
	if all, caption := curves(runs); len(all) > 0 {
		names := runLegend(runs)
		if names == nil {
			names = curveLegend(all)
		}
		figures = append(figures, figure{
			Title: "Latency by percentile", Caption: caption, Legend: names,
			Wide: []template.HTML{percentileChart(all, slo, wide)}, Narrow: []template.HTML{percentileChart(all, slo, narrow)},
		})
	}
	wideLines, err := timelineCharts(runs, slo, wide)
	if err != nil {
		return nil, err
	}
	narrowLines, err := timelineCharts(runs, slo, narrow)
	if err != nil {
		return nil, err
	}
	if len(wideLines) > 0 {
		caption := "a point per second, or per several in a long run; p99 where a point has 1,000 answers"
		if len(runs) == 1 && runs[0].usage != nil {
			caption = "a point per second, or per several in a long run"
		}
		figures = append(figures, figure{Title: "Timeline", Caption: caption, Legend: runLegend(runs), Wide: wideLines, Narrow: narrowLines})
	}
	return figures, nil
}

func loadFigures(runs []run, loop string) []figure {
	over := "offered rate"
	if loop == result.LoopClosed {
		over = "connections"
	}
	return []figure{
		{
			Title: "Latency against " + over, Caption: "hollow: not a valid measurement", Half: true, Legend: runLegend(runs),
			Wide:   []template.HTML{latencyOverLoad(runs, loop, half)},
			Narrow: []template.HTML{latencyOverLoad(runs, loop, narrow)},
		},
		{
			Title: "Good answers against " + over, Caption: "no bad status, no failed check", Half: true, Legend: runLegend(runs),
			Wide:   []template.HTML{goodOverLoad(runs, loop, half)},
			Narrow: []template.HTML{goodOverLoad(runs, loop, narrow)},
		},
	}
}

// runLegend names the colours of several runs.
func runLegend(runs []run) []legend {
	if len(runs) < 2 {
		return nil
	}
	var all []legend
	for i := range runs {
		all = append(all, legend{runs[i].label, hue(i)})
	}
	return all
}

func curveLegend(all []curve) []legend {
	var names []legend
	for _, c := range all {
		names = append(names, legend{c.name, c.class})
	}
	return names
}
