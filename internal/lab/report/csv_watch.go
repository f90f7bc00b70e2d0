package report

import (
	"io"
	"reflect"
	"strconv"
	"strings"

	"spillway/internal/lab/result"
)

// A watchRow is one figure of one subject in one step.
type watchRow struct {
	step             string // "" for the whole time
	host, kind, name string
	figure, value    string // value is "" where it is not known
}

func writeCSVWatch(w io.Writer, runs []run) error {
	text := func(name string, value func(watchRow) string) field[watchRow] {
		return field[watchRow]{name, func(row watchRow) string { return inert(value(row)) }}
	}
	t := newCSVTable(w, []field[watchRow]{
		{"step", func(row watchRow) string { return row.step }},
		text("host", func(row watchRow) string { return row.host }),
		text("kind", func(row watchRow) string { return row.kind }),
		text("name", func(row watchRow) string { return row.name }),
		text("figure", func(row watchRow) string { return row.figure }),
		{"value", func(row watchRow) string { return row.value }},
	})
	for i := range runs {
		for _, row := range watchRows(runs[i].usage, "") {
			t.row(runs[i].label, row)
		}
		for k := range runs[i].steps {
			for _, row := range watchRows(runs[i].steps[k].usage, strconv.Itoa(k)) {
				t.row(runs[i].label, row)
			}
		}
	}
	return t.finish()
}

// watchRows lists every figure of a usage.
func watchRows(u *result.Usage, step string) []watchRow {
	if u == nil {
		return nil
	}
	var rows []watchRow
	for i := range u.Processes {
		p := &u.Processes[i]
		rows = append(rows, figureRows(watchRow{step: step, host: p.Host, kind: result.SamplerProcess, name: p.Name}, *p)...)
	}
	for i := range u.Hosts {
		rows = append(rows, figureRows(watchRow{step: step, host: u.Hosts[i].Host, kind: result.SamplerHost}, u.Hosts[i])...)
	}
	for i := range u.TCP {
		rows = append(rows, figureRows(watchRow{step: step, host: u.TCP[i].Host, kind: result.SamplerTCP}, u.TCP[i])...)
	}
	for i := range u.Listeners {
		l := &u.Listeners[i]
		rows = append(rows, figureRows(watchRow{step: step, host: l.Host, kind: result.SamplerListener, name: l.Address}, *l)...)
	}
	for i := range u.Databases {
		d := &u.Databases[i]
		rows = append(rows, figureRows(watchRow{step: step, host: d.Host, kind: d.Kind, name: d.Name}, *d)...)
		if d.BusiestWait != "" {
			rows = append(rows, watchRow{step: step, host: d.Host, kind: d.Kind, name: d.Name, figure: "busiest_wait", value: inert(d.BusiestWait)})
		}
	}
	for i := range u.Watch {
		rows = append(rows, figureRows(watchRow{step: step, host: u.Watch[i].Host, kind: result.SamplerWatch}, u.Watch[i])...)
	}
	return rows
}

// figureRows makes a row of each figure of a struct, in its order, named as in JSON.
func figureRows(like watchRow, figures any) []watchRow {
	var rows []watchRow
	v := reflect.ValueOf(figures)
	for i := range v.NumField() {
		figure, is := v.Field(i).Interface().(*float64)
		if !is {
			continue
		}
		row := like
		row.figure, _, _ = strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if figure != nil {
			row.value = decimal(*figure)
		}
		rows = append(rows, row)
	}
	return rows
}
