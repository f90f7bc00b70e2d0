// Package streamtables has the statements of the tables in which streams keep batch ids,
// idempotency keys and the marks of spools, for every database.
package streamtables

import "spillway/internal/serve/tables"

// Batch are the tables that every stream needs.
var Batch = []tables.Table{
	{
		Name: "spillway_batches",
		Columns: []tables.Column{
			{Name: "id", Type: tables.UUID},
			{Name: "created_at", Type: tables.Time},
			{Name: "results", Type: tables.Bytes, Null: true},
		},
		Key: []string{"id"}, Index: "created_at", Small: true, Privileges: allRights,
	},
	{
		Name: "spillway_requests",
		Columns: []tables.Column{
			{Name: "stream", Type: tables.Name},
			{Name: "request_key", Type: tables.Name},
			{Name: "fingerprint", Type: tables.Bytes},
			{Name: "outcome", Type: tables.Bytes},
			{Name: "expires_at", Type: tables.Time},
			{Name: "accepted_at", Type: tables.Time},
			{Name: "earlier", Type: tables.Bytes, Null: true},
		},
		Key: []string{"stream", "request_key"}, Index: "expires_at", Privileges: allRights,
	},
}

// Drain are the tables that streams with a spool need in addition.
var Drain = []tables.Table{
	{
		Name: "spillway_epochs",
		Columns: []tables.Column{
			{Name: "spool", Type: tables.UUID},
			{Name: "epoch", Type: tables.UUID},
			{Name: "stream", Type: tables.Name},
			{Name: "last", Type: tables.Integer},
			{Name: "updated_at", Type: tables.Time},
		},
		Key: []string{"spool", "epoch"}, Index: "updated_at", Small: true, Privileges: allRights,
	},
	{
		Name: "spillway_drained",
		Columns: []tables.Column{
			{Name: "spool", Type: tables.UUID},
			{Name: "epoch", Type: tables.UUID},
			{Name: "last", Type: tables.Integer},
			{Name: "first", Type: tables.Integer},
			{Name: "sums", Type: tables.Bytes},
			{Name: "results", Type: tables.Bytes, Null: true},
			{Name: "created_at", Type: tables.Time},
		},
		Key: []string{"spool", "epoch", "last"}, Index: "created_at", Privileges: allRights,
	},
}

// allRights are the privileges on each of the tables. In PostgreSQL a DELETE that skips locked
// rows also needs UPDATE.
var allRights = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
