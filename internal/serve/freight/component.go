package freight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The states of a component. It is "building" from before its tables are created until its
// last index is built. Where tables are created in a transaction, that state is never
// visible.
const (
	stateBuilding = "building"
	stateComplete = "complete"
)

var errNewer = errors.New("created by a newer Spillway; use that release or a newer one")

// component is the state of an app in a database.
type component struct {
	app     app
	version int // 0: there is no row in spillway_schema
	state   string
	dataset string              // its parameters as flags
	numbers Dataset             // the freight app's parameters
	tables  map[string][]string // columns of each of our names that is taken
}

// has reports whether a table of that name exists.
func (c component) has(table string) bool { return c.tables[table] != nil }

// foreign returns the name of a table that Spillway did not create, "" if there is none.
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

// inspect reads the state of an app in the database. relations selects the existing tables
// of a list with their columns, joined by commas.
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
	rows, err = tx.query(ctx, fmt.Sprintf("SELECT version, state, coalesce(dataset, ''), users, days, per_day, random_seed FROM %s WHERE "+
		"name = '%s'", registryTable, a.name))
	if err != nil {
		return component{}, fmt.Errorf("read spillway_schema: %w", err)
	}
	if len(rows) == 0 {
		return found, nil
	}
	return found, found.scan(rows[0])
}

// scan reads the row of spillway_schema.
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

// action is what Seed does with the state that it found.
type action int

const (
	keep    action = iota // the data set exists
	build                 // there is nothing
	rebuild               // the existing tables are dropped first
)

// decide chooses the action for a data set. An error explains why there is none.
func decide(found component, want string, replace bool, elsewhere string) (action, error) {
	if table := found.foreign(); table != "" {
		return 0, fmt.Errorf("the name %q belongs to a table that Spillway did not create; %s", table, elsewhere)
	}
	missing := 0
	for _, table := range found.app.tables {
		if !found.has(table) {
			missing++
		}
	}
	switch {
	case found.version > schemaVersion:
		return 0, errNewer
	case missing == len(found.app.tables):
		return build, nil
	case found.state == stateBuilding || replace:
		return rebuild, nil
	case missing > 0:
		return 0, fmt.Errorf("one of the tables %s is missing; --replace creates all of them again", strings.Join(found.app.tables, ", "))
	case found.dataset != want:
		return 0, fmt.Errorf("the database contains another data set (%s); --replace drops it, with all rows added since, and creates this one",
			found.dataset)
	}
	return keep, nil
}

// record returns the statements that write the component's row in spillway_schema.
func (j job) record(registry, state string) []string {
	return []string{
		fmt.Sprintf("DELETE FROM %s WHERE name = '%s'", registry, j.app.name),
		fmt.Sprintf("INSERT INTO %s (name, version, state, %s) VALUES ('%s', %d, '%s', %s)",
			registry, j.columns, j.app.name, schemaVersion, state, j.values),
	}
}

// app is one set of tables, a row in spillway_schema.
type app struct {
	name    string
	tables  []string            // in the order of loading
	columns map[string][]string // by which the tables are recognized; there may be more
}

const registryTable = "spillway_schema"

// registryColumns returns the columns by which spillway_schema is recognized.
func registryColumns() []string {
	return []string{"name", "version", "state", "applied_at", "users", "days", "per_day", "random_seed", "dataset"}
}

func freightApp() app {
	return app{
		name:   "freight",
		tables: []string{"users", "orders", "positions"},
		columns: map[string][]string{
			"users":     {"id", "nickname", "mobileno", "createtime"},
			"orders":    {"id", "createtime", "users_id", "goods_name"},
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

// ourColumns returns the columns that a table of this package has at least.
func (a app) ourColumns(table string) []string {
	if table == registryTable {
		return registryColumns()
	}
	return a.columns[table]
}

// job is one data set to create.
type job struct {
	app     app
	dataset string         // its parameters as flags
	columns string         // of spillway_schema that hold the parameters
	values  string         // and their values, as SQL
	tables  func() []table // called only if the rows are needed
	indexes []string       // statements for indexes that depend on the data set
}
