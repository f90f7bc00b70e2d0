package watch

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests, or is one of the processes that they watch (process_child_test.go).
func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	goleak.VerifyTestMain(m)
}
