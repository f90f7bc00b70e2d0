//go:build !linux || portable

package server

import "time"

// expectAcks does nothing: only Linux has the option.
func (c *conn) expectAcks(time.Duration) {}

// refuseNew does nothing: only Linux can keep new connections out.
func refuseNew(int) {}
