// Package freight is the built-in demo: a freight platform. Its default feed is the newest
// orders joined to the users who placed them; its streams are new orders and truck
// positions.
//
// The package contains the schema for each kind of database, generates data sets that are
// identical on every database, and loads them in bulk. It serves nothing: Feed, Stream and
// Campaign only describe what is served.
//
// It recognizes its tables by a row in the table spillway_schema and changes no others.
package freight

import (
	"fmt"
	"time"
)

// Feed describes the default feed for a configuration.
type Feed struct {
	Path    string   // of the list
	Aliases []string // further paths of it
	SQL     string   // the feed's statement
	Key     string   // its key column
}

// DefaultFeed returns the newest orders joined to their users.
func DefaultFeed() Feed {
	return Feed{
		Path:    "/goodslist",
		Aliases: []string{"/openapi/goodslist"},
		SQL: "SELECT orders.id, orders.createtime, orders.goods_name, users.nickname, users.mobileno" +
			" FROM orders JOIN users ON users.id = orders.users_id",
		Key: "id",
	}
}

// Demo is the data set that `spillway serve` creates without a configuration: 10,000 users
// and, with this random seed, exactly 200,000 orders.
func Demo() Dataset { return Dataset{Users: 10_000, Days: 366, PerDay: 563, Seed: 77} }

// Stream describes a default stream for a configuration.
type Stream struct {
	Path    string   // that records are posted to
	Table   string   // that takes them
	Columns []Column // in the order of the table
	OrderBy string   // column whose equal values keep their order; empty: none
}

// Column describes one column of a Stream in terms of the configuration.
type Column struct {
	Name      string
	Type      string
	Required  bool
	Default   string // empty: NULL
	Min, Max  string // empty: none
	MaxLength int    // 0: none
}

// DefaultStreams returns the streams of new orders and of truck positions.
func DefaultStreams() []Stream {
	return []Stream{
		{
			Path: "/orders", Table: "orders",
			Columns: []Column{
				{Name: "users_id", Type: "integer", Required: true, Min: "1", Max: "2147483647"},
				{Name: "goods_name", Type: "text", Required: true, MaxLength: 255},
				{Name: "createtime", Type: "timestamp", Default: "now"},
			},
		},
		{
			Path: "/positions", Table: "positions", OrderBy: "device_id",
			Columns: []Column{
				{Name: "device_id", Type: "integer", Required: true},
				{Name: "recorded_at", Type: "timestamp", Default: "now"},
				{Name: "latitude", Type: "real", Min: "-90", Max: "90"},
				{Name: "longitude", Type: "real", Min: "-180", Max: "180"},
				{Name: "speed", Type: "real"},
			},
		},
	}
}

// Campaign describes a popup for a configuration. The app shows it to drivers on its home
// page.
type Campaign struct {
	Name         string
	Placement    string
	Order        int32
	Payload      string // JSON
	Target       string // an expression over CampaignAttributes; empty: everybody
	QuietClick   time.Duration
	QuietDismiss time.Duration
	Cap          int
}

// CampaignAttribute is an attribute of a driver that campaigns can use.
type CampaignAttribute struct {
	Name string
	Type string
}

// CampaignAttributes returns the attributes that the app sends with each request, and
// joined, which CampaignSQL reads.
func CampaignAttributes() []CampaignAttribute {
	return []CampaignAttribute{{"app_version", "integer"}, {"city", "text"}, {"joined", "timestamp"}}
}

// CampaignSQL reads the attributes of a driver that are in the database.
const CampaignSQL = "SELECT createtime AS joined FROM users WHERE id = :user"

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
