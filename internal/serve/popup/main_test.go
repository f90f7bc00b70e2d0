package popup

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// long asks for millions of steps where some ten thousand do otherwise.
var long = flag.Bool("long", false, "run the model tests for millions of steps")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
