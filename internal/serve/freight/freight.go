// Package freight is the built-in demo: a freight platform. Its default feed is the newest
// orders joined to the users who placed them; its streams are new orders and truck
// positions.
//
// The package contains the schema for each kind of database, generates data sets that are
// identical on every database, and loads them in bulk. It serves nothing: Configuration and
// Campaigns only describe what is served.
//
// It recognizes its tables by a row in the table spillway_schema and changes no others.
package freight

import (
	_ "embed"
	"fmt"
)

// Configuration is the app's configuration file: its feed, its streams and its popups.
//
//go:embed configuration.yaml
var Configuration []byte

// Campaigns are the app's campaigns as JSON: a popup for old versions of the app, one for drivers
// who joined in the last summer of the data set, and one for everybody.
//
//go:embed campaigns.json
var Campaigns []byte

// The app's page: at /, /demo.js and /demo.css.
//
//go:embed page/index.html
var Page []byte

//go:embed page/demo.js
var Script []byte

//go:embed page/demo.css
var Style []byte

// Demo is the data set that `spillway serve` creates without a configuration: 10,000 users
// and, with this random seed, exactly 200,000 orders.
func Demo() Dataset { return Dataset{Users: 10_000, Days: 366, PerDay: 563, Seed: 77} }

//go:embed tour.txt
var tour string

// Tour returns example requests to the freight app on its two listeners.
func Tour(public, admin string) string {
	return fmt.Sprintf(tour, public, admin)
}
