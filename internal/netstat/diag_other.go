//go:build !linux

package netstat

import "errors"

// Client is not available on this system.
type Client struct{}

// Open returns an error: sock_diag belongs to Linux.
func Open() (*Client, error) { return nil, errors.New("list TCP sockets: this needs Linux") }

// Close does nothing.
func (*Client) Close() {}

// Sockets lists nothing.
func (*Client) Sockets(Query, func(*Socket)) error { return nil }
