// Package spillway knows the version of the program.
package spillway

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var version string

// Version returns the version of the source, such as "0.1.0".
func Version() string { return strings.TrimSpace(version) }
