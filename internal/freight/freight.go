// Package freight is the built-in app: a freight platform whose newest orders,
// joined to the users who placed them, are the default feed.
//
// It holds the schema of its two tables for each kind of database, generates
// data sets that are the same on every database and in every process, and
// loads them in bulk. It does not serve anything: Feed only names the statement
// that the feed shows.
//
// It knows its tables by a row in the table spillway_schema and touches no
// others.
package freight

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
