package popuptables

import "spillway/internal/serve/tables"

// What the server does with the rows of a table.
var (
	changes = []string{"SELECT", "INSERT", "UPDATE"}
	deletes = []string{"SELECT", "INSERT", "DELETE"}
	all     = []string{"SELECT", "INSERT", "UPDATE", "DELETE"}
)

// All are the tables that popups need. A NULL time of a state or an event means never. In popup_history, campaign 0 has the changes
// of no campaign, whose content is a detail of theirs.
var All = []tables.Table{
	{
		Name:    "popup_campaigns",
		Columns: "id number, name text, placement word, status word, version integer, campaign text",
		Key:     []string{"id"}, Large: true, Privileges: changes,
	},
	{
		Name:    "popup_version",
		Columns: "id small, version integer, identity word",
		Key:     []string{"id"}, Privileges: changes,
	},
	{
		Name: "popup_events",
		Columns: "id uuid, user_id name, placement word, sequence integer, kind small, campaign_id number, shown_at time, at time, " +
			"next_at time null, variant small, first boolean",
		Key: []string{"id"}, Privileges: deletes,
	},
	{
		Name: "popup_state",
		Columns: "user_id name, placement word, sequence integer, kind small, campaign_id number, at time, next_at time null, " +
			"event_id uuid, state bytes",
		Key: []string{"user_id", "placement"}, FillFactor: 80, Privileges: all,
	},
	{
		Name:    "popup_counts",
		Columns: "campaign_id number, kind small, slot small, events integer",
		Key:     []string{"campaign_id", "kind", "slot"}, FillFactor: 50, Privileges: changes,
	},
	{
		Name:    "popup_hours",
		Columns: "campaign_id number, hour time, variant small, kind small, slot small, events integer, users integer",
		Key:     []string{"campaign_id", "hour", "variant", "kind", "slot"}, FillFactor: 80, Privileges: changes,
	},
	{
		Name:    "popup_history",
		Columns: "campaign_id number, version integer, at time, who text, address text, request text, content text",
		Key:     []string{"campaign_id", "version"}, Index: "at", Large: true, Privileges: deletes,
	},
	{
		Name:    "popup_lists",
		Columns: "name word, version integer, size integer, at time",
		Key:     []string{"name"}, Privileges: all,
	},
	{
		Name:    "popup_list_parts",
		Columns: "name word, part small, hashes bytes",
		Key:     []string{"name", "part"}, Large: true, Privileges: all,
	},
}

// Holder is the table of the last holder of the lock, for adapters that need one.
var Holder = tables.Table{
	Name:    "popup_holder",
	Columns: "id small, token uuid, holder text, since time",
	Key:     []string{"id"}, Privileges: changes,
}
