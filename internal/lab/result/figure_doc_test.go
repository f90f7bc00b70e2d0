package result

import (
	"cmp"
	"flag"
	"fmt"
	"strings"
	"testing"

	"spillway/internal/apptest"
)

var update = flag.Bool("update", false, "write the table of figures into the document")

// hows says how a figure is made from the samples, by the method of interval.
var hows = map[string]string{
	"": "computed", "growth": "growth of `%s`", "rate": "growth of `%s` per second", "perRequest": "growth of `%s` per good answer",
	"quotient": "`%s`, of their growth", "coarsest": "largest `%s`",
	"borderError": "how far `%s` was read from the borders of the step, at most",
	"max":         "largest `%s`", "min": "smallest `%s`", "mean": "mean `%s`", "last": "last `%s`", "throttled": "share of the time, from `%s`",
	"cpuShare": "share of `%s` in the time of all CPUs", "portsLeft": "range less `%s`, at the end",
	"portsGone": "until none is left, at the growth of `%s` in the second half; absent below 1 %% of the range",
	"taken":     "mean `%s`, and those idle in a transaction", "lockWait": "mean `%s`, or by the time that the server counted",
}

// The page of watched figures lists what Definitions has.
func TestFiguresAreDocumented(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	out.WriteString("| sampler | figure | unit | how | in words |\n|---|---|---|---|---|\n")
	for _, sampler := range []string{SamplerProcess, SamplerHost, SamplerTCP, SamplerListener, SamplerPostgres, SamplerWatch} {
		for _, d := range Definitions(sampler) {
			how, known := hows[d.how]
			if !known || d.how != "" && ways[d.how] == nil {
				t.Errorf("%s %s: say in hows and ways what %q does", sampler, d.Name, d.how)
			}
			if strings.Contains(how, "%") {
				how = fmt.Sprintf(how, d.source)
			}
			name := sampler
			if sampler == SamplerPostgres {
				name = "postgres, mysql, redis"
			}
			fmt.Fprintf(&out, "| %s | `%s` | %s | %s | %s |\n", name, d.Name, cmp.Or(string(d.Unit), "number"), how, d.Words)
		}
	}
	apptest.Generated(t, "../../../docs/reference/watched-figures.md", "figures", out.String(), *update)
}
