// Package freight is the built-in demo: a freight platform. Its default feed is the newest
// orders joined to the users who placed them; its streams are new orders and truck
// positions.
//
// The package contains the schema for each kind of database, generates data sets that are
// identical on every database, and loads them in bulk. It serves nothing: Configuration and
// Campaign only describe what is served.
//
// It recognizes its tables by a row in the table spillway_schema and changes no others.
package freight

import (
	_ "embed"
	"fmt"
	"time"
)

// Configuration is the app's configuration file: its feed, its streams and its popups.
//
//go:embed configuration.yaml
var Configuration []byte

// Demo is the data set that `spillway serve` creates without a configuration: 10,000 users
// and, with this random seed, exactly 200,000 orders.
func Demo() Dataset { return Dataset{Users: 10_000, Days: 366, PerDay: 563, Seed: 77} }

// Campaign describes a popup for a configuration. The app shows it to drivers on its home
// page.
type Campaign struct {
	Name         string
	Placement    string
	Order        int32
	Payload      string // JSON
	Target       string // an expression over the attributes; empty: everybody
	QuietClick   time.Duration
	QuietDismiss time.Duration
	Cap          int
}

// DefaultCampaigns returns three popups: for old versions of the app, for drivers who
// joined in the last summer of the data set, and for everybody.
func DefaultCampaigns() []Campaign {
	const day = 24 * time.Hour
	return []Campaign{
		{
			Name: "Update the app", Placement: "home", Order: 10, Target: "app_version < 30",
			Payload:    `{"title":"A new version is out","button":"Update","link":"/app/update"}`,
			QuietClick: day, QuietDismiss: 3 * day, Cap: 5,
		},
		{
			Name: "Fuel card for newcomers", Placement: "home", Order: 20, Target: `joined >= date("2016-06-01T00:00:00Z")`,
			Payload:    `{"title":"300 off your first fuel card","button":"Get it","link":"/fuel"}`,
			QuietClick: 7 * day, QuietDismiss: 7 * day,
		},
		{
			Name: "Weekend loads", Placement: "home", Order: 30,
			Payload:    `{"title":"Loads for the weekend","button":"Show","link":"/goodslist"}`,
			QuietClick: 2 * day, QuietDismiss: 2 * day,
		},
	}
}

// Tour returns example requests to the freight app on its two listeners.
func Tour(public, admin string) string {
	return fmt.Sprintf(`
The freight app is running. Try:

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
