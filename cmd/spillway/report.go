package main

import "spillway/internal/lab/report"

// reportCmd turns result files into tables, text formats or a page. It has the
// fields of report.FilesOptions.
type reportCmd struct {
	Files  []string `arg:"" name:"file" help:"Result files of load or watch, compressed or not, or the directory of an experiment. LABEL=FILE names a run in a comparison."`
	Format string   `short:"f" enum:",text,markdown,json,csv,csv-seconds,csv-watch,bench,hdr,html" default:"" placeholder:"FORMAT" help:"text, markdown, json, csv (a row per step), csv-seconds (a row per second), csv-watch (a row per watched figure), bench (Go benchmark text, for benchstat), hdr (HdrHistogram log) or html (one page with charts that works offline). Default: by the name of --out, otherwise text."`
	Out    string   `short:"o" placeholder:"FILE" help:"Write to FILE instead of standard output."`
	Merge  bool     `help:"Add the files up: they are the shares of several hosts in one run. Without it they are shown side by side."`
}

// Run reads the files and writes the report.
func (c *reportCmd) Run(env *environment) error {
	return report.WriteFiles(report.FilesOptions(*c), env.stdout, env.log)
}
