package chaostest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"spillway/internal/apptest"
)

// database is the database of a run, as its operator sees it. Rows are archived before a column
// gets another type, so that the change itself alters no row.
type database struct {
	url      string
	server   *apptest.Server  // nil: SQLite
	address  *apptest.Forward // of the server, for the process
	down     bool
	current  string   // name of the database, or the file
	replaced []string // those that were replaced by a copy
	types    []string // of columns

	create      func(table string, key bool) error
	rows        func(name, table string, archive bool) ([][]string, error)
	normalize   func(table string, key bool) error
	copy        func(n int) error
	restore     func(n int, running bool) error
	endSessions func() error
	changes     []tableChange
}

// renameTable is the change after which a table is not found.
const renameTable = "rename table"

// tableChange is a change of a table. What lasts is undone by normalize.
type tableChange struct {
	name    string
	weight  int
	lasts   bool
	keyOnly bool // only for the stream with a key
	do      func(r *run, table string) (string, error)
}

// executor runs statements in one session and returns the rows of the last.
type executor func(statements ...string) ([][]string, error)

// patience bounds what the operator does in the database.
func patience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Minute)
}

// statements returns a change that runs statements, one of the given lists. %s stands for the table.
func statements(name string, weight int, execute executor, lists ...[]string) tableChange {
	return tableChange{name: name, weight: weight, lasts: true, do: func(r *run, table string) (string, error) {
		var all []string
		for _, text := range lists[r.random.IntN(len(lists))] {
			all = append(all, strings.ReplaceAll(text, "%s", table))
		}
		_, err := execute(all...)
		return all[len(all)-1], err
	}}
}

// retype returns a change that gives a column one of the types in variants. An empty type drops
// the column.
func retype(variants map[string][]string, change func(table, column, to string) error) tableChange {
	return tableChange{name: "change type", weight: 12, lasts: true, do: func(r *run, table string) (string, error) {
		column := r.choose(columns[1:]...)
		to := r.choose(variants[column]...)
		return fmt.Sprintf("%s to %q", column, to), change(table, column, to)
	}}
}

// hold returns a change that holds a lock for a moment. %s stands for the table.
func hold(name string, lock func(text string, held func()) error, text string) tableChange {
	return tableChange{name: name, weight: 2, do: func(r *run, table string) (string, error) {
		return "", lock(strings.ReplaceAll(text, "%s", table), func() { r.pause(200, 3000) })
	}}
}

// definitions returns the columns of a table with their types.
func (d *database) definitions(skip string) string {
	var all []string
	for i, name := range columns {
		if name != skip {
			all = append(all, name+" "+d.types[i])
		}
	}
	return strings.Join(all, ", ")
}
