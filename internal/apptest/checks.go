package apptest

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var rootMount = regexp.MustCompile(`(?m)^\d+ \d+ \S+ \S+ / `)

// NeedRoot skips the test unless it runs as root and may mount and change the network, which root
// of a container usually may not. It also needs a root directory that is a mount and control
// groups, which a chroot lacks. scripts/testrun prints at its end what was skipped and the command that
// runs it.
func NeedRoot(t testing.TB) {
	t.Helper()
	const netAdmin, sysAdmin = 1 << 12, 1 << 21 // linux/capability.h
	// Of this thread: "self" is the first one, which a test may have taken for itself.
	status, _ := os.ReadFile("/proc/thread-self/status")
	_, after, _ := strings.Cut(string(status), "\nCapEff:\t")
	text, _, _ := strings.Cut(after, "\n")
	capabilities, _ := strconv.ParseUint(text, 16, 64)
	mounts, _ := os.ReadFile("/proc/thread-self/mountinfo") // number, parent, device, root, where, options, "-", type
	whole := rootMount.Match(mounts) && strings.Contains(string(mounts), " - cgroup")
	if os.Geteuid() != 0 || capabilities&(netAdmin|sysAdmin) != netAdmin|sysAdmin || !whole {
		t.Skip("needs root")
	}
}

// Long skips the test with go test -short, which make test uses. make race runs it.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long")
	}
}
