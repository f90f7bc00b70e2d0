// Package streamtables has the statements of the tables in which streams keep batch ids,
// idempotency keys and the marks of spools, for every database.
package streamtables

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// Own returns the tables that a stream needs, with a spool or without one.
func Own(d tables.Dialect, spooled bool) []tables.Table {
	if !spooled {
		return batchTables
	}
	own := slices.Concat(batchTables, drainTables)
	if d.SQL == plans.Postgres {
		own[len(own)-1].Privileges = allRights // a DELETE that skips locked rows needs UPDATE
	}
	return own
}

// batchTables are the tables that every stream needs. request_key has bytes, so that no encoding of the database limits it.
var batchTables = []tables.Table{
	{
		Name:    "spillway_batches",
		Columns: "id uuid, created_at time, results bytes null",
		Key:     []string{"id"}, Index: "created_at", Small: true, Privileges: allRights,
	},
	{
		Name: "spillway_requests",
		Columns: "stream name, request_key shortbytes, fingerprint shortbytes, outcome bytes, expires_at time, accepted_at time, " +
			"earlier bytes null",
		Key: []string{"stream", "request_key"}, Index: "expires_at", Privileges: allRights,
	},
}

// drainTables are the tables that streams with a spool need in addition.
var drainTables = []tables.Table{
	{
		Name:    "spillway_epochs",
		Columns: "spool uuid, epoch uuid, stream name, last integer, updated_at time",
		Key:     []string{"spool", "epoch"}, Index: "updated_at", Small: true, Privileges: allRights,
	},
	{
		Name:    "spillway_drained",
		Columns: "spool uuid, epoch uuid, last integer, first integer, sums bytes, results bytes null, created_at time",
		Key:     []string{"spool", "epoch", "last"}, Index: "created_at", Privileges: []string{"SELECT", "INSERT", "DELETE"},
	},
}

// allRights are the privileges on a table whose rows change.
var allRights = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}

// Sweep deletes up to limit rows of each table that are older than keep says. The columns with an index tell the age.
func Sweep(ctx context.Context, s tables.Session, d tables.Dialect, spooled bool, keep stream.Keep, limit int) (int, error) {
	ages := map[string]time.Duration{
		"spillway_batches": keep.Batches, "spillway_requests": keep.Keys, "spillway_epochs": keep.Marks, "spillway_drained": keep.Marks,
	}
	total := 0
	for _, t := range Own(d, spooled) {
		n, err := s.Exec(ctx, DeleteOld(d, &t), -ages[t.Name].Microseconds(), int64(limit))
		if err != nil {
			return total, fmt.Errorf("sweep %s: %w", t.Name, err)
		}
		total += int(n)
	}
	return total, nil
}

// DeleteOld writes the statement that deletes the oldest rows of a table. Its parameters are their age, and how many. In PostgreSQL the
// order makes the server use the index, whatever it knows about the values.
func DeleteOld(d tables.Dialect, t *tables.Table) string {
	old := t.Index + " < " + d.Later
	switch d.SQL {
	case plans.Postgres:
		return fmt.Sprintf("DELETE FROM %[1]s WHERE ctid = ANY(ARRAY("+
			"SELECT ctid FROM %[1]s WHERE %[2]s ORDER BY %[3]s LIMIT ? FOR UPDATE SKIP LOCKED))", t.Name, old, t.Index)
	case plans.MySQL:
		return fmt.Sprintf("DELETE FROM %s WHERE %s LIMIT ?", t.Name, old)
	}
	key := strings.Join(t.Key, ", ")
	return fmt.Sprintf("DELETE FROM %[1]s WHERE (%[2]s) IN (SELECT %[2]s FROM %[1]s WHERE %[3]s LIMIT ?)", t.Name, key, old)
}
