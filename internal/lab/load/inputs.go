package load

import (
	"os"

	"spillway/internal/lab/target"
)

// Inputs is what options refer to outside of themselves. On another host it holds
// what came with the options, and nothing of that host.
type Inputs struct {
	Files       target.Files
	Environment func(name string) (value string, set bool)
	Sent        bool // the options are those of a load that other hosts make
}

// LocalInputs are the files and the environment of this process.
func LocalInputs() Inputs { return Inputs{Files: target.LocalFiles, Environment: os.LookupEnv} }
