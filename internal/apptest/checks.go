package apptest

import (
	"os"
	"testing"
)

// NeedRoot skips the test unless it runs as root. scripts/testrun prints at its end what was
// skipped and the command that runs it.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
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
