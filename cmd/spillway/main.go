// Command spillway absorbs traffic spikes on lists, small writes and popups in front of your
// database, and includes a load-testing lab.
//
//	spillway serve                      the built-in freight app on embedded SQLite
//	spillway serve spillway.yaml        your feeds, streams, queries and popups on your tables
//	spillway seed freight --database postgres://…
//	spillway config check spillway.yaml
//	spillway grants spillway.yaml --role app   the GRANT statements for your database
//	spillway popups forget 7 --config spillway.yaml
//	spillway spool status               records that wait in the local queue of streams
//	spillway load http://127.0.0.1:8080/goodslist --rate 1000 --duration 30s
//	spillway watch --watch app=:8080 -o watch.ndjson
//	spillway peak http://127.0.0.1:8080/goodslist --slo 'p99<70ms errors<0.5%'
//	spillway diagnose run.ndjson        what stopped the service, with evidence
//	spillway doctor --for 'rate=5000 short-connections'
//	spillway experiment experiments/freight-stacks/experiment.yaml --quick
//	spillway plan --from run.ndjson --rate 50000 --slo 'p99<70ms'
//	spillway report result.ndjson --format html -o report.html
//
// Each command explains itself with --help. Exit codes: 0 success, 1 an SLO or a check
// failed, 2 wrong use, 3 could not run, 4 no measurement can be judged.
package main

import (
	"context"
	_ "embed" // help.txt
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"spillway/internal/exit"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// environment is what a command gets from the process.
type environment struct {
	ctx            context.Context // the process's lifetime: ends with SIGINT or SIGTERM
	stdout, stderr io.Writer
	args           []string
	log            *slog.Logger
}

// cli lists the commands.
type cli struct {
	Serve      serveCmd      `cmd:"" help:"Serve the feeds of a configuration, or the built-in freight app."`
	Ready      readyCmd      `cmd:"" help:"Check that a running server is ready."`
	Seed       seedCmd       `cmd:"" help:"Create a data set for trials and measurements."`
	Spool      spoolCmd      `cmd:"" help:"Inspect and repair the local queue of streams with ack: spool."`
	Popups     popupsCmd     `cmd:"" help:"Forget users of popups."`
	Config     configCmd     `cmd:"" help:"Check, print or describe a configuration."`
	Grants     grantsCmd     `cmd:"" help:"Print the SQL that gives a role what a configuration needs."`
	Load       loadCmd       `cmd:"" help:"Put load on a service and report its responses."`
	Peak       peakCmd       `cmd:"" help:"Find the highest rate at which a service meets an SLO."`
	Experiment experimentCmd `cmd:"" help:"Compare variants of a system, one change at a time."`
	Watch      watchCmd      `cmd:"" help:"Record processes, sockets and databases of a host."`
	Plan       planCmd       `cmd:"" help:"Turn result files into the machines that a rate needs."`
	Report     reportCmd     `cmd:"" help:"Turn result files into tables, text formats or one HTML page."`
	Diagnose   diagnoseCmd   `cmd:"" help:"Name what stops a service, from a result file."`
	Doctor     doctorCmd     `cmd:"" help:"Check a host, a database and a query before a load test."`
	Version    versionCmd    `cmd:"" help:"Print the version."`

	PrintVersion kong.VersionFlag `name:"version" help:"Print the version."`

	RestoreCores restoreCoresCmd `cmd:"" hidden:""`
}

// run runs the command and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)

	env := &environment{
		ctx: ctx, stdout: stdout, stderr: stderr, args: args,
		log: slog.New(slog.NewTextHandler(stderr, nil)),
	}
	defer func() {
		if r := recover(); r != nil {
			exited, ok := r.(exitPanic)
			if !ok {
				panic(r)
			}
			code = int(exited)
		}
	}()
	parser, err := kong.New(&cli{},
		kong.Name("spillway"),
		kong.Description("Spillway absorbs traffic spikes on lists, small writes and popups in front of your database, and includes a "+
			"load-testing lab."),
		kong.Writers(stdout, stderr),
		kong.Vars{"version": versionLine()},
		kong.Exit(func(code int) { panic(exitPanic(code)) }), // --help ends here
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.UsageOnError(),
	)
	if err != nil {
		panic("bug: " + err.Error())
	}
	explain(parser.Model.Node)
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if err != nil {
		return fail(stderr, exit.UsageError(err))
	}
	if err := checkFilled(command); err != nil {
		return fail(stderr, exit.UsageError(err))
	}
	if err := command.Run(env); err != nil {
		return fail(stderr, err)
	}
	return exit.OK
}

// helpTexts are what --help shows below the flags: each follows a line with # and its command.
//
//go:embed help.txt
var helpTexts string

// explain sets the texts of the commands.
func explain(root *kong.Node) {
	for part := range strings.SplitSeq(strings.TrimPrefix(helpTexts, "# "), "\n# ") {
		path, text, _ := strings.Cut(part, "\n")
		node := root
		for name := range strings.FieldsSeq(path) {
			node = node.Children[slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name })]
		}
		node.Detail = strings.TrimSpace(text)
	}
}

// checkFilled returns an error if a flag with the tag "filled" is given as "" or 0, as by a script whose variable is not
// set. It would count as left out, and an SLO or a limit would be met by everything.
func checkFilled(command *kong.Context) error {
	for _, part := range command.Path {
		if part.Flag != nil && part.Flag.Tag.Has("filled") && part.Flag.Target.IsZero() {
			return fmt.Errorf("--%s: the value is empty or 0; write one, or leave the flag out", part.Flag.Name)
		}
	}
	return nil
}

// exitPanic carries an exit code out of kong's parser.
type exitPanic int

// fail prints err and returns its exit code.
func fail(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "spillway: %s\n", strings.TrimSpace(err.Error()))
	return exit.Code(err)
}
