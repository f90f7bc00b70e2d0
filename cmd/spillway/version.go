package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version and revision are set by the linker (make build); otherwise the module's own.
var version, revision string

type versionCmd struct{}

func (versionCmd) Help() string { return "Example:\n  spillway version" }

func (versionCmd) Run(env *environment) error {
	_, err := fmt.Fprintf(env.stdout, "spillway %s %s %s/%s\n", versionText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
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

// versionText returns the version for people and result files.
func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "dev"
}
