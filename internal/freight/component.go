package freight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// componentName is the freight app's row in spillway_schema.
const componentName = "freight"

// The states of a component. A component is "building" from before its tables
// are made until its last index is: where tables are made in a transaction
// nobody sees that; where they are not (MySQL) it marks what a crash left.
const (
	stateBuilding = "building"
	stateComplete = "complete"
)

// The columns by which we know our tables; a later migration may add more.
const (
	registryTable = "spillway_schema"
	usersTable    = "users"
	ordersTable   = "orders"
)

var errNewer = errors.New("made by a newer Spillway: use that release or a newer one")

// ourColumns returns the columns that a table of ours has at least.
func ourColumns(table string) []string {
	switch table {
	case registryTable:
		return []string{"name", "version", "state", "applied_at", "users", "days", "per_day", "random_seed"}
	case usersTable:
		return []string{"id", "nickname", "mobileno", "createtime"}
	default:
		return []string{"id", "createtime", "users_id", "goods_name"}
	}
}

// component is the freight app as a database holds it.
type component struct {
	version int // 0: there is no row in spillway_schema
	state   string
	dataset Dataset
	tables  map[string][]string // columns of each of our names that is taken
}

// has tells whether the name is taken.
func (c component) has(table string) bool { return c.tables[table] != nil }

// foreign returns the name of a table that is not ours, "" if there is none.
func (c component) foreign() string {
	for _, table := range []string{registryTable, usersTable, ordersTable} {
		if !c.has(table) {
			continue
		}
		if table != registryTable && c.version == 0 {
			return table
		}
		for _, column := range ourColumns(table) {
			if !slices.Contains(c.tables[table], column) {
				return table
			}
		}
	}
	return ""
}

// inspect reads what the database holds.
func inspect(ctx context.Context, tx transaction, relations string) (component, error) {
	found := component{tables: map[string][]string{}}
	rows, err := tx.query(ctx, relations)
	if err != nil {
		return component{}, fmt.Errorf("list tables: %w", err)
	}
	for _, row := range rows {
		found.tables[row[0]] = strings.Split(row[1], ",")
	}
	if !found.has(registryTable) || found.foreign() == registryTable {
		return found, nil
	}
	rows, err = tx.query(ctx, "SELECT version, state, users, days, per_day, random_seed FROM spillway_schema WHERE name = '"+componentName+"'")
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
	numbers := make([]int64, 0, 5)
	for _, text := range slices.Concat(row[:1], row[2:]) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("read spillway_schema: %w", err)
		}
		numbers = append(numbers, n)
	}
	c.version, c.state = int(numbers[0]), row[1]
	c.dataset = Dataset{Users: int(numbers[1]), Days: int(numbers[2]), PerDay: int(numbers[3]), Seed: uint64(numbers[4])}
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
func decide(found component, want Dataset, replace bool, latest int, elsewhere string) (action, error) {
	if table := found.foreign(); table != "" {
		return 0, fmt.Errorf("the name %q is taken by a table that Spillway did not make: %s", table, elsewhere)
	}
	missing := 0
	for _, table := range []string{usersTable, ordersTable} {
		if !found.has(table) {
			missing++
		}
	}
	switch {
	case found.version > latest:
		return 0, errNewer
	case missing == 2:
		return build, nil
	case found.state == stateBuilding || replace:
		return rebuild, nil
	case missing == 1:
		return 0, errors.New("one of the tables users and orders is gone: --replace makes both anew")
	case found.dataset != want:
		return 0, fmt.Errorf("another data set is there (%s): --replace drops it, with every row added since, and makes this one", found.dataset)
	}
	return keep, nil
}

// record returns the statements that write the component's row.
func record(dataset Dataset, version int, state string) []string {
	return []string{
		"DELETE FROM spillway_schema WHERE name = '" + componentName + "'",
		fmt.Sprintf("INSERT INTO spillway_schema (name, version, state, users, days, per_day, random_seed) VALUES ('%s', %d, '%s', %d, %d, %d, %d)",
			componentName, version, state, dataset.Users, dataset.Days, dataset.PerDay, dataset.Seed),
	}
}
