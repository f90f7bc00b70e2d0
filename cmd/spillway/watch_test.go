package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"spillway/internal/exit"
)

// TestWatchInterrupted cancels a watch before its first sample.
func TestWatchInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"watch"}, &out, &errs); code != exit.OK || !strings.Contains(out.String(), "\nWatched for ") {
		t.Errorf("exit %d, want %d and how long it watched\n%s%s", code, exit.OK, out.String(), errs.String())
	}
}
