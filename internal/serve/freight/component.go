package freight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The states of a component. A component is "building" from before its tables
// are made until its last index is: where tables are made in a transaction
// nobody sees that.
const (
	stateBuilding = "building"
	stateComplete = "complete"
)

var errNewer = errors.New("made by a newer Spillway: use that release or a newer one")

// component is an app as a database holds it.
type component struct {
	app     app
	version int // 0: there is no row in spillway_schema
	state   string
	dataset string              // its parameters as flags
	numbers Dataset             // the freight app's parameters
	tables  map[string][]string // columns of each of our names that is taken
}

// has tells whether the name is taken.
func (c component) has(table string) bool { return c.tables[table] != nil }

// foreign returns the name of a table that is not ours, "" if there is none.
func (c component) foreign() string {
	for _, table := range append([]string{registryTable}, c.app.tables...) {
		if !c.has(table) {
			continue
		}
		if table != registryTable && c.version == 0 {
			return table
		}
		for _, column := range c.app.ourColumns(table) {
			if !slices.Contains(c.tables[table], column) {
				return table
			}
		}
	}
	return ""
}

// early returns the name of a table that is there before the migration that makes
// it, "" if there is none. It has our columns: that migration takes it as it is.
func (c component) early() string {
	for _, table := range c.app.tables {
		if c.has(table) && c.app.since[table] > c.version {
			return table
		}
	}
	return ""
}

// inspect reads what the database holds of an app. Relations selects the name of
// each table in a list that is there, and its columns joined by commas.
func inspect(ctx context.Context, tx transaction, a app, relations string) (component, error) {
	found := component{app: a, tables: map[string][]string{}}
	names := "'" + strings.Join(append([]string{registryTable}, a.tables...), "', '") + "'"
	rows, err := tx.query(ctx, fmt.Sprintf(relations, names))
	if err != nil {
		return component{}, fmt.Errorf("list tables: %w", err)
	}
	for _, row := range rows {
		found.tables[row[0]] = strings.Split(row[1], ",")
	}
	if !found.has(registryTable) || found.foreign() == registryTable {
		return found, nil
	}
	dataset := "''"
	if slices.Contains(found.tables[registryTable], "dataset") {
		dataset = "coalesce(dataset, '')"
	}
	rows, err = tx.query(ctx, fmt.Sprintf("SELECT version, state, %s, users, days, per_day, random_seed FROM %s WHERE name = '%s'", dataset, registryTable, a.name))
	if err != nil {
		return component{}, fmt.Errorf("read spillway_schema: %w", err)
	}
	if len(rows) == 0 {
		return found, nil
	}
	return found, found.scan(rows[0])
}

// scan fills in the row of spillway_schema.
func (c *component) scan(row []string) error {
	var numbers [5]int64
	for i, text := range slices.Concat(row[:1], row[3:]) {
		if text == "" {
			continue // another app's parameter
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("read spillway_schema: %w", err)
		}
		numbers[i] = n
	}
	c.version, c.state, c.dataset = int(numbers[0]), row[1], row[2]
	c.numbers = Dataset{Users: int(numbers[1]), Days: int(numbers[2]), PerDay: int(numbers[3]), Seed: uint64(numbers[4])}
	if c.dataset == "" {
		c.dataset = c.numbers.String()
	}
	return nil
}

// action is what Seed does about what it found.
type action int

const (
	keep    action = iota // the data set is there
	build                 // nothing is there
	rebuild               // what is there goes first
)

// decide chooses the action for a data set, or explains why there is none.
func decide(found component, want string, replace bool, latest int, elsewhere string) (action, error) {
	taken := func(table string) error {
		return fmt.Errorf("the name %q is taken by a table that Spillway did not make: %s", table, elsewhere)
	}
	if table := found.foreign(); table != "" {
		return 0, taken(table)
	}
	due, missing := 0, 0
	for _, table := range found.app.tables {
		if found.version > 0 && found.app.since[table] > found.version {
			continue // a migration makes it
		}
		due++
		if !found.has(table) {
			missing++
		}
	}
	switch {
	case found.version > latest:
		return 0, errNewer
	case missing == due || found.state == stateBuilding || replace:
		if table := found.early(); table != "" { // it would be dropped
			return 0, taken(table)
		}
		if missing == due {
			return build, nil
		}
		return rebuild, nil
	case missing > 0:
		return 0, fmt.Errorf("one of the tables %s is gone: --replace makes all anew", strings.Join(found.app.tables, ", "))
	case found.dataset != want:
		return 0, fmt.Errorf("another data set is there (%s): --replace drops it, with every row added since, and makes this one", found.dataset)
	}
	return keep, nil
}

// record returns the statements that write the component's row in a registry.
func (j job) record(registry string, version int, state string) []string {
	return []string{
		fmt.Sprintf("DELETE FROM %s WHERE name = '%s'", registry, j.app.name),
		fmt.Sprintf("INSERT INTO %s (name, version, state, %s) VALUES ('%s', %d, '%s', %s)",
			registry, j.columns, j.app.name, version, state, j.values),
	}
}

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
