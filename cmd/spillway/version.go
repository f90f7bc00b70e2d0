package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"spillway"
)

// revision is set by the linker (make build); otherwise the Go tool knows it.
var revision string

type versionCmd struct{}

func (versionCmd) Run(env *environment) error {
	_, err := fmt.Fprintln(env.stdout, versionLine())
	return err
}

// versionLine is what the command version and the flag --version print.
func versionLine() string {
	return fmt.Sprintf("spillway %s (revision %s) %s %s/%s", spillway.Version(), revisionText(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}

// revisionText returns the revision of the source, for metrics.
func revisionText() string {
	if revision != "" {
		return revision
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
