package popup

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// long runs millions of steps.
var long = flag.Bool("long", false, "run the model tests for millions of steps")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
