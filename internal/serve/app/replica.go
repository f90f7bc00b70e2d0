package app

import (
	"context"

	"spillway/internal/serve/standby"
)

// replica is the read replica of the default database.
type replica struct {
	store *store
	reads *standby.Switch
}

// watch reads how far the replica is behind until ctx ends, where its database
// can tell.
func (r *replica) watch(ctx context.Context) error {
	if r.store.lag != nil {
		r.reads.Watch(ctx, r.store.lag)
	}
	return nil
}
