//go:build !linux || portable

package server

import (
	"errors"
	"time"
)

// expectAcks does nothing: only Linux has the option.
func (c *conn) expectAcks(time.Duration) {}

// refuseNew reports that only Linux can drain a listener's queue.
func refuseNew(int) error { return errors.New("draining the accept queue requires Linux") }
