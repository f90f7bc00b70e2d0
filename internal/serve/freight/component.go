package freight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

var errNewer = errors.New("created by a newer Spillway; use that release or a newer one")

// component is the state of an app in a database.
type component struct {
	app     app
	version int                 // 0: there is no row in spillway_schema
	dataset string              // its parameters as flags
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
		for _, column := range c.app.columns[table] {
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
	rows, err = tx.query(ctx, fmt.Sprintf("SELECT version, dataset FROM %s WHERE name = '%s'", registryTable, a.name))
	if err == nil && len(rows) > 0 {
		found.version, err = strconv.Atoi(rows[0][0])
		found.dataset = rows[0][1]
	}
	if err != nil {
		return component{}, fmt.Errorf("read spillway_schema: %w", err)
	}
	return found, nil
}

// decide returns whether a data set must be created. An error explains why it cannot be.
func decide(found component, want string, replace bool, elsewhere string) (create bool, err error) {
	if table := found.foreign(); table != "" {
		return false, fmt.Errorf("the name %q belongs to a table that Spillway did not create; %s", table, elsewhere)
	}
	missing := 0
	for _, table := range found.app.tables {
		if !found.has(table) {
			missing++
		}
	}
	switch {
	case found.version > schemaVersion:
		return false, errNewer
	case replace, missing == len(found.app.tables), found.dataset == unfinishedDataset:
		return true, nil
	case missing > 0:
		return false, fmt.Errorf("one of the tables %s is missing; --replace creates all of them again", strings.Join(found.app.tables, ", "))
	case found.dataset != want:
		return false, fmt.Errorf("the database contains another data set (%s); --replace drops it, with all rows added since, and creates "+
			"this one", found.dataset)
	}
	return false, nil
}

// register returns the statement that writes the row of an app in spillway_schema, which may be there.
func register(a app, dataset string, there bool) string {
	if there {
		return fmt.Sprintf("UPDATE %s SET version = %d, applied_at = CURRENT_TIMESTAMP, dataset = '%s' WHERE name = '%s'",
			registryTable, schemaVersion, dataset, a.name)
	}
	return fmt.Sprintf("INSERT INTO %s (name, version, dataset) VALUES ('%s', %d, '%s')", registryTable, a.name, schemaVersion, dataset)
}

// app is one set of tables, a row in spillway_schema.
type app struct {
	name    string
	tables  []string            // in the order of loading
	columns map[string][]string // by which the tables, and spillway_schema, are recognized; there may be more
}

const registryTable = "spillway_schema"

// unfinishedDataset is in place of a data set that is not complete.
const unfinishedDataset = "unfinished"

func freightApp() app {
	return app{
		name:   "freight",
		tables: []string{"users", "orders", "positions"},
		columns: map[string][]string{
			registryTable: {"name", "version", "applied_at", "dataset"},
			"users":       {"id", "nickname", "mobileno", "createtime"},
			"orders":      {"id", "createtime", "users_id", "goods_name"},
			"positions":   {"id", "device_id", "recorded_at", "latitude", "longitude", "speed"},
		},
	}
}

func gamesApp() app {
	return app{
		name:    "games",
		tables:  []string{gameTable},
		columns: map[string][]string{registryTable: freightApp().columns[registryTable], gameTable: gameColumns()},
	}
}

// job is one data set to create.
type job struct {
	app     app
	dataset string         // its parameters as flags
	replace bool           // in place of another one
	any     bool           // another one of the app is as good
	tables  func() []table // called only if the rows are needed
	indexes []string       // statements for indexes that depend on the data set
}
