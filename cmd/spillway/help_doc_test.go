package main

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"spillway/internal/apptest"
)

var update = flag.Bool("update", false, "write what is made from the command line")

// listed finds a command in the list of all commands.
var listed = regexp.MustCompile(`(?m)^  ([a-z]+(?: [a-z]+)?)  +[A-Z]`)

// The page of the command line is what each command prints with --help.
func TestHelpIsDocumented(t *testing.T) {
	t.Parallel()
	help := func(command string) string {
		stdout, stderr, code := binary.Run(t, append(strings.Fields(command), "--help")...)
		if code != 0 {
			t.Fatalf("spillway %s --help: exit %d\n%s", command, code, stderr)
		}
		return strings.TrimSpace(stdout)
	}
	var out strings.Builder
	all := help("")
	_, commands, _ := strings.Cut(all, "\nCommands:\n")
	out.WriteString("\n```\n" + all + "\n```\n")
	for _, found := range listed.FindAllStringSubmatch(commands, -1) {
		out.WriteString("\n## " + found[1] + "\n\n```\n" + help(found[1]) + "\n```\n")
	}
	apptest.Generated(t, "../../docs/reference/command-line.md", "help", out.String(), *update)
}
