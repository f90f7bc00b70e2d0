package freight

// app is one set of tables that this package makes: a row in spillway_schema.
type app struct {
	name    string
	tables  []string            // in the order of loading
	columns map[string][]string // by which we know our tables; a later migration may add more
	since   map[string]int      // the migration that makes a table, where it is not the first
}

const registryTable = "spillway_schema"

// registryColumns are those by which we know spillway_schema. Its column dataset came
// later.
func registryColumns() []string {
	return []string{"name", "version", "state", "applied_at", "users", "days", "per_day", "random_seed"}
}

func freightApp() app {
	return app{
		name:   "freight",
		tables: []string{"users", "orders", "positions"},
		since:  map[string]int{"positions": 2},
		columns: map[string][]string{
			"users":  {"id", "nickname", "mobileno", "createtime"},
			"orders": {"id", "createtime", "users_id", "goods_name"},

			"positions": {"id", "device_id", "recorded_at", "latitude", "longitude", "speed"},
		},
	}
}

func gamesApp() app {
	return app{
		name:    "games",
		tables:  []string{gameTable},
		columns: map[string][]string{gameTable: gameColumns()},
	}
}

// ourColumns returns the columns that a table of ours has at least.
func (a app) ourColumns(table string) []string {
	if table == registryTable {
		return registryColumns()
	}
	return a.columns[table]
}

// job is one data set to be made.
type job struct {
	app     app
	dataset string         // its parameters as flags
	columns string         // of spillway_schema that hold the parameters
	values  string         // and their values, as SQL
	tables  func() []table // the rows; called only when they are wanted
	indexes []string       // statements that make indexes which the schema leaves to the data set
}
