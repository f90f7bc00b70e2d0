//go:build !linux

package target

import "context"

// hasWorkers reports whether this system has Worker. Outside Linux a Session
// drives every target.
const hasWorkers = false

func (*Target) checkWorker(context.Context) error { panic("bug: only Linux has workers") }
