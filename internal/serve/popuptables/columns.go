package popuptables

import (
	_ "embed" // tables.json
	"encoding/json"

	"spillway/internal/serve/tables"
)

//go:embed tables.json
var described []byte

// Own returns the tables that popups need, the last one if the adapter keeps the last holder of the lock in a table. A NULL time of a
// state or an event means never. In popup_history, campaign 0 has the changes of no campaign, whose content is a detail of theirs.
func Own(holder bool) []tables.Table {
	var all []tables.Table
	if err := json.Unmarshal(described, &all); err != nil {
		panic("bug: tables.json: " + err.Error())
	}
	if !holder {
		all = all[:len(all)-1]
	}
	return all
}
