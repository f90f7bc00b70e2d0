package main

import "spillway/internal/lab/report"

// reportCmd turns result files into tables, text formats or a page. It has the
// fields of report.FilesOptions.
type reportCmd struct {
	Files  []string `arg:"" name:"file" help:"Result files of load or watch, compressed or not, or the directory of an experiment. LABEL=FILE names a run. The formats text, markdown and html show one run, or the plan of several."`
	Format string   `short:"f" enum:",text,markdown,json,csv,csv-seconds,csv-watch,bench,html,junit,summary" default:"" placeholder:"FORMAT" help:"text, markdown, json, csv (a row per step), csv-seconds (a row per second), csv-watch (a row per watched figure), bench (Go benchmark text, for benchstat), html (one page with charts that works offline), junit (JUnit XML, a case per step and criterion) or summary (short Markdown for CI). Default: by the name of --out, otherwise text."`
	Out    string   `short:"o" placeholder:"FILE" help:"Write to FILE instead of standard output."`
	Merge  bool     `help:"Put the parts of a load together, and exit with 1 if the whole misses its SLO. With -o FILE.ndjson, FILE is a result file, for plan and diagnose."`
	Plan   string   `filled:"" placeholder:"WORDS" help:"Add a plan from the files, as by 'spillway plan': 'rate=50000 headroom=30% connections=short' or 'hosts=2'. In text, markdown and html."`

	Against string `filled:"" placeholder:"FILE" help:"Compare with this result file, step by step, matched by name."`
	FailIf  string `filled:"" placeholder:"LIMITS" help:"Exit with 1 if a change exceeds its limit and the 95 % intervals do not overlap: 'p99>+10%,rate<-5%,errors>+1%pt'. Exit with 4 if a step is not VALID."`
}

// Run reads the files and writes the report.
func (c *reportCmd) Run(env *environment) error {
	return report.WriteFiles(report.FilesOptions(*c), env.stdout, env.log)
}
