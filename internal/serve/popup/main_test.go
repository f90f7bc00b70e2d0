package popup

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// long runs millions of steps instead of ten thousand.
var long = flag.Bool("long", false, "run the model tests for millions of steps")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
