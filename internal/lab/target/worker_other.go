//go:build !linux

package target

import "context"

// hasWorkers reports whether this system has Worker. Outside Linux a Session
// drives every target.
const hasWorkers = false

// checkPostgresWire reports that no event loop can drive the connection.
func (t *Target) checkPostgresWire(context.Context) error { return errNotPlain }
