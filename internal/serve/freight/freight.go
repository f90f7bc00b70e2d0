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

// Tour returns example requests to the freight app on its two listeners.
func Tour(public, admin string) string {
	return fmt.Sprintf(`
The freight app is running. Look at it in a browser:

  http://%[1]s/      the app
  http://%[2]s/      the console for operators and marketers

Or try:

  curl 'http://%[1]s/goodslist'                       the 10 newest orders
  curl 'http://%[1]s/goodslist?offset=20&limit=5'     any offset, page size up to 100
  curl 'http://%[1]s/goodslist?before=CURSOR'         CURSOR is "next" of the previous page
  curl -i 'http://%[1]s/goodslist?offset=150000'      a deep offset; see the Spillway-Offset header
  curl --json '{"users_id": 7, "goods_name": "steel pipes, 12 t"}' 'http://%[1]s/orders'
                                                     create an order; it is on page 1 within 0.1 s
  curl --json '{"device_id": 7, "latitude": 31.23, "longitude": 121.47, "speed": 62.5}' 'http://%[1]s/positions'
                                                     report a truck's position; arrays and NDJSON work too
  curl -i 'http://%[1]s/popup?user=7&app_version=29'  the popup for driver 7; a second request gets none
  curl -i --json '{"show": "SHOW"}' 'http://%[1]s/popup/click'
                                                     SHOW is "show" of the previous answer
  curl -i 'http://%[1]s/popup?user=7&app_version=29&clock_offset=25h'
                                                     the next popup, a day later (only the demo accepts clock_offset)
  curl 'http://%[2]s/popups/explain?user=7'           why a popup is or is not shown; /openapi.json describes the admin API
  curl 'http://%[1]s/hello'                           an empty endpoint, for comparison
  curl 'http://%[2]s/readyz'                          readiness, also /readyz/reads and /readyz/writes; /metrics, /debug/pprof/

Ctrl-C stops it.
`, public, admin)
}
