package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"spillway/internal/exit"
	"spillway/internal/serve/app"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Exit codes, the same for every verb.
const (
	exitOK     = 0
	exitFailed = 1 // the SLO or a check failed
	exitUsage  = 2 // wrong use: arguments or configuration
	exitError  = 3 // could not run
)

// environment is what a verb gets from the process.
type environment struct {
	ctx            context.Context // the process's lifetime: ends with SIGINT or SIGTERM
	stdin          io.Reader
	stdout, stderr io.Writer
	args           []string
	log            *slog.Logger
}

// usageError is the user's mistake: exit 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// failedError is a check that did not hold: exit 1.
type failedError struct{ error }

func (e failedError) Unwrap() error { return e.error }

// cli lists the verbs.
type cli struct {
	Serve      serveCmd      `cmd:"" help:"Serve the feeds of a configuration, or the built-in freight app."`
	Seed       seedCmd       `cmd:"" help:"Create a data set to try and to measure with."`
	Spool      spoolCmd      `cmd:"" help:"Look into the local queue of streams with ack: spool, and mend it."`
	Config     configCmd     `cmd:"" help:"Check, print or describe a configuration."`
	Load       loadCmd       `cmd:"" help:"Load a service and report what it answered."`
	Experiment experimentCmd `cmd:"" help:"Compare variants of a system, one change at a time."`
	Watch      watchCmd      `cmd:"" help:"Record what processes, sockets and databases of a host do."`
	Report     reportCmd     `cmd:"" help:"Turn result files into tables, text formats or one HTML page."`
	Doctor     doctorCmd     `cmd:"" help:"Look at a host, a database and a query before a load does."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

// run is the program: it returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)

	env := &environment{
		ctx: ctx, stdin: stdin, stdout: stdout, stderr: stderr, args: args,
		log: slog.New(slog.NewTextHandler(stderr, nil)),
	}
	defer func() {
		if r := recover(); r != nil {
			exit, ok := r.(exitPanic)
			if !ok {
				panic(r)
			}
			code = int(exit)
		}
	}()
	parser, err := kong.New(&cli{},
		kong.Name("spillway"),
		kong.Description("Spillway makes an app's hot endpoints hold a flood of requests in front of its own database, and proves what they hold."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exitPanic(code)) }), // --help: kong goes no further
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.UsageOnError(),
	)
	if err != nil {
		panic("bug: " + err.Error())
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if err != nil {
		return fail(stderr, usageError{err})
	}
	if err := command.Run(env); err != nil {
		return fail(stderr, err)
	}
	return exitOK
}

// exitPanic carries kong's exit code out of its parser.
type exitPanic int

// fail prints err in one line where it is one, and returns its exit code.
func fail(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "spillway: %s\n", strings.TrimSpace(err.Error()))
	var usage usageError
	var configuration app.UsageError
	var failed failedError
	switch {
	case errors.As(err, &usage), errors.As(err, &configuration):
		return exitUsage
	case errors.As(err, &failed):
		return exitFailed
	}
	return exit.Code(err)
}
