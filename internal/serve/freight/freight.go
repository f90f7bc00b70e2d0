// Package freight is the built-in app: a freight platform whose newest orders,
// joined to the users who placed them, are the default feed, and whose drivers and
// trucks post orders and positions.
//
// It holds the schema of its tables for each kind of database, generates
// data sets that are the same on every database and in every process, and
// loads them in bulk. It does not serve anything: Feed and Stream only name what is
// shown and stored.
//
// It knows its tables by a row in the table spillway_schema and touches no
// others.
package freight

import (
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

// Demo is the data set that `spillway serve` makes when it has no
// configuration: 10,000 users and, with this random seed, exactly 200,000 orders.
func Demo() Dataset { return Dataset{Users: 10_000, Days: 366, PerDay: 563, Seed: 77} }

// Stream describes a default stream for a configuration.
type Stream struct {
	Path    string   // that records are posted to
	Table   string   // that takes them
	Columns []Column // in the order of the table
	OrderBy string   // column whose equal values keep their order; empty: none
}

// Column describes one column of a Stream, in the words of the configuration.
type Column struct {
	Name      string
	Type      string
	Required  bool
	Default   string // empty: NULL
	Min, Max  string // empty: none
	MaxLength int    // 0: none
}

// DefaultStreams returns the orders that are placed and the positions that trucks
// report.
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

// Campaign is one of the popups that the app shows to drivers on its home page, for a
// configuration.
type Campaign struct {
	Name         string
	Placement    string
	Order        int32
	Payload      string // JSON
	Target       string // over CampaignAttributes; empty: everybody
	QuietClick   time.Duration
	QuietDismiss time.Duration
	Cap          int
}

// CampaignAttribute is what a campaign may ask of a driver.
type CampaignAttribute struct {
	Name string
	Type string
}

// CampaignAttributes returns what the app tells of a driver with each request, and
// joined, which CampaignSQL reads.
func CampaignAttributes() []CampaignAttribute {
	return []CampaignAttribute{{"app_version", "integer"}, {"city", "text"}, {"joined", "timestamp"}}
}

// CampaignSQL reads what the database knows of a driver.
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
