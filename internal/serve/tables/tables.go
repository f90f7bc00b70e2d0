// Package tables describes the tables that the server keeps for itself in a database: once
// for all databases, as columns, keys and privileges. The statement that creates a table, the
// check at start and the grants come from this description.
//
// An adapter has a Dialect and a Session. The packages streamtables and popuptables have the
// statements, which read alike for all databases, and know no driver.
package tables

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"time"

	"spillway/internal/plans"
)

// Session is one connection of a database. Statements mark each parameter with ?, and contain
// no other question mark. An argument is nil, an int64, a bool, a string, a []byte, a [16]byte
// (of a column of type uuid) or a time.Time. In makes a []any of strings, []byte or [16]byte too.
type Session interface {
	// Exec runs a statement and returns how many rows it changed. Without arguments it may be
	// one that cannot be prepared, such as SAVEPOINT, and changed is 0.
	Exec(ctx context.Context, sql string, args ...any) (changed int64, err error)
	// Rows runs a statement and returns all of its rows.
	Rows(ctx context.Context, sql string, args ...any) ([]Row, error)
}

// Row is a row of a result, with a text for each value: "" for NULL, the bytes of uuid,
// shortbytes and bytes, and the microseconds since 1970 of time.
type Row []string

// Integer returns a value of an integer type.
func (r Row) Integer(column int) (int64, error) {
	n, err := strconv.ParseInt(r[column], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read a number of the database: %w", err)
	}
	return n, nil
}

// Time returns a value of type time, the zero time for NULL.
func (r Row) Time(column int) (time.Time, error) {
	if r[column] == "" {
		return time.Time{}, nil
	}
	micros, err := r.Integer(column)
	return time.UnixMicro(micros).UTC(), err
}

// Table is a table that the server keeps for itself.
type Table struct {
	Name string
	// Columns are the names and the types of the columns, with commas between them, such as
	// "id uuid, until time null". Only those with null may be NULL. Names need no quotes in any
	// database.
	Columns string
	Key     []string // columns of the primary key
	// Index is a column with an index; "" for none. If the table is Small, only MySQL needs
	// the index: its DELETE locks every row that it looks at.
	Index      string
	Small      bool
	Large      bool     // rows can be large; SQLite would read whole ones to compare their keys
	FillFactor int      // of PostgreSQL, for rows that change often; 0: its default
	Privileges []string // that the server needs, as GRANT takes them
}

// Dialect is how a database writes what the statements need. Expressions of time have the
// type time.
type Dialect struct {
	SQL plans.Dialect
	// Types has a type of the database for each of these:
	//
	//	uuid                     16 bytes
	//	shortbytes, bytes        up to 255 bytes, or any number
	//	name                     a text of up to 255 bytes, which is compared byte by byte
	//	word                     a text of up to 64 ASCII characters
	//	text                     a text of any length
	//	integer, number, small   integers of 64, 32 and 16 bits
	//	boolean
	//	time                     in microseconds
	Types     map[string]string
	Now       string // the time of the database
	Later     string // Now and a parameter: microseconds, which may be negative
	ForUpdate string // the end of a SELECT that locks its rows; "" if a transaction locks all
	// Find selects the name and the comment of those tables that exist. %s is the list of
	// names, as literals. In SQLite the comment is the text that created the table.
	Find string
	// Create surrounds the statements that create a table, which are %s.
	Create string

	// What the database says with an error.
	Duplicate func(error) bool // a row with the key exists
	Locked    func(error) bool // a lock was not free in time
	Denied    func(error) bool // a privilege is missing
}

// InsertNew writes the statement that inserts a row unless its key is there. row is the table, its
// columns and VALUES. In MySQL the statement also bends values that do not fit.
func (d Dialect) InsertNew(row string) string {
	if d.SQL == plans.MySQL {
		return "INSERT IGNORE INTO " + row
	}
	return "INSERT INTO " + row + " ON CONFLICT DO NOTHING"
}

// After writes that a row comes after values in the order of two columns, and the arguments for
// that. PostgreSQL takes the parts of the longer form for independent: it expects far too few rows
// and would rather sort them than read an index. MySQL reads no index for a comparison of rows.
func (d Dialect) After(columns [2]string, values [2]any) (condition string, args []any) {
	if d.SQL == plans.MySQL {
		return fmt.Sprintf("%[1]s >= ? AND (%[1]s > ? OR %[2]s > ?)", columns[0], columns[1]), []any{values[0], values[0], values[1]}
	}
	return fmt.Sprintf("(%s, %s) > (?, ?)", columns[0], columns[1]), values[:]
}

// In writes that a value is one of some, and the arguments for that. PostgreSQL takes them as one
// array. Other databases keep statements prepared: the last value is repeated up to a power of two,
// so that there are few different ones.
func (d Dialect) In(values []any) (condition string, args []any) {
	if d.SQL == plans.Postgres {
		return "= ANY(?)", []any{values}
	}
	n := 1 << bits.Len(uint(len(values)-1))
	for len(values) < n {
		values = append(values, values[len(values)-1])
	}
	return "IN (?" + strings.Repeat(", ?", n-1) + ")", values
}

// Comment is the comment of each table: its format.
const Comment = "spillway format 1"

var tableFormat = regexp.MustCompile(`spillway format (\d+)`)

// DDL returns the statements that create the table if it is missing.
func (t *Table) DDL(d Dialect) string {
	var lines, tail []string
	for column := range strings.SplitSeq(t.Columns, ", ") {
		name, kind, _ := strings.Cut(column, " ")
		kind, null := strings.CutSuffix(kind, " null")
		line := name + " " + d.Types[kind]
		if !null {
			line += " NOT NULL"
		}
		lines = append(lines, line)
	}
	lines = append(lines, "PRIMARY KEY ("+strings.Join(t.Key, ", ")+")")
	begin, end := "(", ")"
	index := fmt.Sprintf("CREATE INDEX IF NOT EXISTS %[1]s_%[2]s ON %[1]s (%[2]s)", t.Name, t.Index)
	if t.Index == "" || t.Small {
		index = ""
	}
	switch d.SQL {
	case plans.Postgres:
		if t.FillFactor > 0 {
			end = fmt.Sprintf(") WITH (fillfactor = %d)", t.FillFactor)
		}
		tail = []string{index, "COMMENT ON TABLE " + t.Name + " IS '" + Comment + "'"}
	case plans.MySQL:
		if t.Index != "" {
			lines = append(lines, "KEY "+t.Index+" ("+t.Index+")")
		}
		end = ") ENGINE=InnoDB COMMENT='" + Comment + "'"
	default:
		if begin = "( -- " + Comment; !t.Large {
			end = ") WITHOUT ROWID"
		}
		tail = []string{index}
	}
	sql := "CREATE TABLE IF NOT EXISTS " + t.Name + " " + begin + "\n\t" + strings.Join(lines, ",\n\t") + "\n" + end
	for _, statement := range tail {
		if statement != "" {
			sql += ";\n" + statement
		}
	}
	return sql
}

// Ensure creates those of the tables that are missing, and refuses tables of another format.
// An error of a missing right has the statements to run.
func Ensure(ctx context.Context, s Session, d Dialect, all []Table) error {
	names := make([]string, len(all))
	for i := range all {
		names[i] = "'" + all[i].Name + "'"
	}
	rows, err := s.Rows(ctx, fmt.Sprintf(d.Find, strings.Join(names, ", ")))
	if err != nil {
		return fmt.Errorf("look up the server's own tables: %w", err)
	}
	present := make(map[string]bool)
	for _, row := range rows {
		if found := tableFormat.FindStringSubmatch(row[1]); found != nil && found[0] != Comment {
			return fmt.Errorf("%w: %s has format %s, this program supports format 1", ErrUnusable, row[0], found[1])
		}
		present[row[0]] = true
	}
	for i := range all {
		t := &all[i]
		if present[t.Name] {
			continue
		}
		_, err := s.Exec(ctx, fmt.Sprintf(d.Create, t.DDL(d)))
		if err != nil && d.Denied(err) {
			return fmt.Errorf("create the table %s: %w; have an administrator run: %s", t.Name, err, strings.Join(strings.Fields(t.DDL(d)), " "))
		}
		if err != nil {
			return fmt.Errorf("create the table %s: %w", t.Name, err)
		}
	}
	return nil
}

// ErrUnusable is the error of a table that an administrator has to change: one of another format
// than this program knows, or one that would change what is stored in it.
var ErrUnusable = errors.New("the table cannot be used")
