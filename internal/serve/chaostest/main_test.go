package chaostest

import (
	"testing"

	"go.uber.org/goleak"

	"spillway/internal/apptest"
)

// binary is the program that all runs share.
var binary apptest.Binary

func TestMain(m *testing.M) { goleak.VerifyTestMain(apptest.Closing(m, &binary)) }
