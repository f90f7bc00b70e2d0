package popuptables

import "spillway/internal/serve/tables"

// What the server does with the rows of a table.
var (
	adds    = []string{"SELECT", "INSERT"}
	changes = []string{"SELECT", "INSERT", "UPDATE"}
	deletes = []string{"SELECT", "INSERT", "DELETE"}
	all     = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
)

// All are the tables that popups need. A NULL time of a state or an event means never.
var All = []tables.Table{
	{
		Name: "popup_campaigns",
		Columns: []tables.Column{
			{Name: "id", Type: tables.Number},
			{Name: "name", Type: tables.Text},
			{Name: "placement", Type: tables.Word},
			{Name: "status", Type: tables.Word},
			{Name: "version", Type: tables.Integer},
			{Name: "campaign", Type: tables.Text},
		},
		Key: []string{"id"}, Large: true, Privileges: changes,
	},
	{
		Name: "popup_version",
		Columns: []tables.Column{
			{Name: "id", Type: tables.Small},
			{Name: "version", Type: tables.Integer},
			{Name: "identity", Type: tables.Word},
		},
		Key: []string{"id"}, Privileges: changes,
	},
	{
		Name: "popup_events",
		Columns: []tables.Column{
			{Name: "id", Type: tables.UUID},
			{Name: "user_id", Type: tables.Name},
			{Name: "placement", Type: tables.Word},
			{Name: "sequence", Type: tables.Integer},
			{Name: "kind", Type: tables.Small},
			{Name: "campaign_id", Type: tables.Number},
			{Name: "shown_at", Type: tables.Time},
			{Name: "at", Type: tables.Time},
			{Name: "next_at", Type: tables.Time, Null: true},
			{Name: "variant", Type: tables.Small},
			{Name: "first", Type: tables.Boolean},
		},
		Key: []string{"id"}, Privileges: deletes,
	},
	{
		Name: "popup_state",
		Columns: []tables.Column{
			{Name: "user_id", Type: tables.Name},
			{Name: "placement", Type: tables.Word},
			{Name: "sequence", Type: tables.Integer},
			{Name: "kind", Type: tables.Small},
			{Name: "campaign_id", Type: tables.Number},
			{Name: "at", Type: tables.Time},
			{Name: "next_at", Type: tables.Time, Null: true},
			{Name: "event_id", Type: tables.UUID},
			{Name: "state", Type: tables.Bytes},
		},
		Key: []string{"user_id", "placement"}, FillFactor: 80, Privileges: all,
	},
	{
		Name: "popup_counts",
		Columns: []tables.Column{
			{Name: "campaign_id", Type: tables.Number},
			{Name: "kind", Type: tables.Small},
			{Name: "slot", Type: tables.Small},
			{Name: "events", Type: tables.Integer},
		},
		Key: []string{"campaign_id", "kind", "slot"}, FillFactor: 50, Privileges: changes,
	},
	{
		Name: "popup_hours",
		Columns: []tables.Column{
			{Name: "campaign_id", Type: tables.Number},
			{Name: "hour", Type: tables.Time},
			{Name: "variant", Type: tables.Small},
			{Name: "kind", Type: tables.Small},
			{Name: "slot", Type: tables.Small},
			{Name: "events", Type: tables.Integer},
			{Name: "users", Type: tables.Integer},
		},
		Key: []string{"campaign_id", "hour", "variant", "kind", "slot"}, FillFactor: 80, Privileges: changes,
	},
	{
		Name: "popup_history",
		Columns: []tables.Column{
			{Name: "campaign_id", Type: tables.Number},
			{Name: "version", Type: tables.Integer},
			{Name: "at", Type: tables.Time},
			{Name: "who", Type: tables.Text},
			{Name: "campaign", Type: tables.Text},
		},
		Key: []string{"campaign_id", "version"}, Large: true, Privileges: adds,
	},
	{
		Name: "popup_lists",
		Columns: []tables.Column{
			{Name: "name", Type: tables.Word},
			{Name: "version", Type: tables.Integer},
			{Name: "size", Type: tables.Integer},
		},
		Key: []string{"name"}, Privileges: all,
	},
	{
		Name: "popup_list_parts",
		Columns: []tables.Column{
			{Name: "name", Type: tables.Word},
			{Name: "part", Type: tables.Small},
			{Name: "hashes", Type: tables.Bytes},
		},
		Key: []string{"name", "part"}, Large: true, Privileges: all,
	},
}

// Holder is the table of the last holder of the lock, for adapters that need one.
var Holder = tables.Table{
	Name: "popup_holder",
	Columns: []tables.Column{
		{Name: "id", Type: tables.Small},
		{Name: "token", Type: tables.UUID},
		{Name: "holder", Type: tables.Text},
		{Name: "since", Type: tables.Time},
	},
	Key: []string{"id"}, Privileges: changes,
}
