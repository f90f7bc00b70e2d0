package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"spillway/internal/database"
)

// The bounds of a query's analysis.
const (
	executionLimit = 10 * time.Second // of the statement on the live tables
)

// ErrStatement marks mistakes in the statement or its parameters.
var ErrStatement = errors.New("read the query")

// QueryConfig says what to analyse and how far to go.
type QueryConfig struct {
	Statement string
	Params    map[string]string // values of ? (called like its column, or by number) and :name
	Measure   bool              // build each candidate on a copy
	CopyRows  int64             // rows of a copy at most
	Timeout   time.Duration     // of the whole analysis
	Progress  func(string)      // told what is under way
}

// Query is what doctor found about one statement. It holds no values of
// parameters: they may be secrets.
type Query struct {
	Statement  string        `json:"statement"`
	Database   string        `json:"database"` // without its password
	Params     []QueryParam  `json:"params,omitempty"`
	Tables     []*TableInfo  `json:"tables"`
	Plan       *Plan         `json:"plan"`
	Candidates []Candidate   `json:"candidates"`
	Covered    []string      `json:"covered,omitempty"` // candidates that the table has
	Notes      []string      `json:"notes,omitempty"`
	Measured   []Measurement `json:"measured,omitempty"`
	Winner     *Candidate    `json:"winner,omitempty"`
	Verdict    string        `json:"verdict"`
}

// QueryParam is a parameter and where its value came from.
type QueryParam struct {
	Name string `json:"name"`
	From string `json:"from"` // "given", or the table a row of which held it
}

// Plan is how the database runs a statement.
type Plan struct {
	Lines            []string `json:"lines"`
	ExecutionSeconds *float64 `json:"execution_seconds,omitempty"` // none: it took longer than was allowed
	RowsExamined     int64    `json:"rows_examined"`
	Buffers          int64    `json:"buffers,omitempty"` // pages of 8 KiB, PostgreSQL's
	Sorts            bool     `json:"sorts"`
	Costs            []string `json:"costs,omitempty"` // what is expensive in it
}

// dialect is what analysing a statement needs to know of one kind of database.
type dialect struct {
	driver      database.Driver
	placeholder func(i int) string
	// readOnly and readWrite are statements that make a session so.
	readOnly, readWrite string
	// table reads a table's columns, indexes and size.
	table func(ctx context.Context, s session, ref tableRef) (*TableInfo, error)
	// explain returns the plan, and executes the statement for at most limit.
	explain func(ctx context.Context, s session, sql string, args []value, limit time.Duration) (*Plan, error)
	// begin readies a session for copies of that many bytes in all.
	begin func(ctx context.Context, s session, bytes int64) error
	// copyTable makes a temporary table of at most so many rows, without indexes.
	copyTable func(ctx context.Context, s session, t *TableInfo, name string, rows int64) error
	// again makes a temporary table of a copy's rows, with the live table's indexes or none.
	again func(ctx context.Context, s session, t *TableInfo, from, name string, indexed bool) error
	// index builds an index on a copy.
	index func(ctx context.Context, s session, name string, columns []indexColumn) error
	// settle gathers statistics.
	settle func(ctx context.Context, s session, name string) error
	// indexBytes is the size of one index more on a copy; estimated when the server does not tell.
	indexBytes func(ctx context.Context, s session, t *TableInfo, name string, columns []indexColumn) (bytes int64, estimated bool, err error)
	// limit bounds the statements that follow.
	limit func(ctx context.Context, s session, d time.Duration) error
	// tooLong reports whether that bound ended a statement.
	tooLong func(error) bool
}

func dialectOf(driver database.Driver) dialect {
	switch driver {
	case database.Postgres:
		return postgresDialect()
	case database.MySQL:
		return mysqlDialect()
	}
	return sqliteDialect()
}

// analysis is one statement under analysis.
type analysis struct {
	config    QueryConfig
	dialect   dialect
	session   session
	selection *selection
	tables    []*TableInfo
	args      []value
	deadline  time.Time
	report    *Query
}

// Analyze shows a statement's plan, derives index candidates from it, and with
// Measure tries each on a copy of its table. The live tables are only read.
// Mistakes in the statement or its parameters are ErrStatement.
func Analyze(ctx context.Context, url database.URL, c QueryConfig) (*Query, error) {
	s, err := readStatement(c.Statement, url.Driver)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	conn, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	a := &analysis{
		config: c, dialect: dialectOf(url.Driver), session: conn, selection: s, deadline: deadline,
		report: &Query{Statement: s.src, Database: url.String()},
	}
	err = a.run(ctx)
	if closing := conn.close(); err == nil && closing != nil {
		err = fmt.Errorf("close the session: %w", closing)
	}
	if err != nil {
		return nil, fmt.Errorf("analyze on %s: %w", url, err)
	}
	return a.report, nil
}

func (a *analysis) run(ctx context.Context) error {
	if err := a.readTables(ctx); err != nil {
		return err
	}
	d, err := derive(a.selection, a.tables)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStatement, err)
	}
	if err := a.readParams(ctx); err != nil {
		return err
	}
	a.config.Progress("explaining the statement")
	text := a.selection.render(a.dialect.placeholder, nil)
	a.report.Plan, err = a.dialect.explain(ctx, a.session, text, a.args, min(executionLimit, time.Until(a.deadline)))
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	a.report.Candidates, a.report.Covered, a.report.Notes = d.candidates, d.covered, d.notes
	switch {
	case len(d.candidates) == 0 && len(d.covered) > 0:
		a.report.Verdict = "the indexes that the statement suggests are there"
	case len(d.candidates) == 0:
		a.report.Verdict = "the statement suggests no index"
	case !a.config.Measure:
		a.report.Verdict = "candidates are not measured; --measure builds each on a temporary copy of the table and drops it"
	default:
		return a.measure(ctx)
	}
	return nil
}

func (a *analysis) readTables(ctx context.Context) error {
	for i, ref := range a.selection.tables {
		t, err := a.dialect.table(ctx, a.session, ref)
		if err != nil {
			return fmt.Errorf("describe table %s: %w", ref.name, err)
		}
		if len(t.columns) == 0 {
			return fmt.Errorf("%w: there is no table %s", ErrStatement, ref.name)
		}
		t.from = i
		a.tables = append(a.tables, t)
	}
	a.report.Tables = a.tables
	return nil
}

// readParams finds a value for each parameter: the one given, or for a column
// that must equal it that of one row of the table.
func (a *analysis) readParams(ctx context.Context) error {
	if err := a.checkNames(); err != nil {
		return err
	}
	samples := map[*TableInfo]map[string]string{}
	for _, p := range a.selection.params {
		v := value{number: p.count}
		var table *TableInfo
		var column string
		if p.column.name != "" {
			var err error
			if table, column, err = resolve(a.selection, a.tables, p.column); err != nil {
				return fmt.Errorf("%w: %w", ErrStatement, err)
			}
			info, _ := table.column(column)
			v.number = info.number
		}
		text, given := a.config.Params[p.name]
		from := "given"
		if !given {
			if !p.equal {
				return fmt.Errorf("%w: parameter %s has no value; add --param %s=…", ErrStatement, p.name, p.name)
			}
			if samples[table] == nil {
				sample, err := a.sample(ctx, table)
				if err != nil {
					return err
				}
				samples[table] = sample
			}
			text, from = samples[table][column], "a row of "+table.Name
		}
		v.text = text
		a.args = append(a.args, v)
		a.report.Params = append(a.report.Params, QueryParam{Name: p.name, From: from})
	}
	return nil
}

// checkNames refuses values for parameters that the statement does not have.
func (a *analysis) checkNames() error {
	var names []string
	for _, p := range a.selection.params {
		names = append(names, p.name)
	}
	given := make([]string, 0, len(a.config.Params))
	for name := range a.config.Params {
		given = append(given, name)
	}
	sort.Strings(given)
	for _, name := range given {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%w: there is no parameter %s; the statement has: %s", ErrStatement, name, strings.Join(names, ", "))
		}
	}
	return nil
}

// sample reads from one row of a table the values of the columns that
// parameters without a value must equal.
func (a *analysis) sample(ctx context.Context, t *TableInfo) (map[string]string, error) {
	quote := quoteName(a.dialect.driver)
	var columns, words, set []string
	for _, p := range a.selection.params {
		if _, given := a.config.Params[p.name]; given || !p.equal {
			continue
		}
		owner, column, err := resolve(a.selection, a.tables, p.column)
		if err != nil || owner != t || slices.Contains(columns, column) {
			continue
		}
		columns = append(columns, column)
		words = append(words, quote(column))
		set = append(set, quote(column)+" IS NOT NULL")
	}
	rows, err := a.session.query(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s LIMIT 1", strings.Join(words, ", "), t.quoted(a.dialect.driver), strings.Join(set, " AND ")))
	if err != nil {
		return nil, fmt.Errorf("read a row of %s: %w", t.Name, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%w: %s has no row to take values from; add --param %s=…", ErrStatement, t.Name, columns[0])
	}
	values := map[string]string{}
	for i, column := range columns {
		values[column] = rows[0][i]
	}
	return values, nil
}

// quoted is the table's name for a statement.
func (t *TableInfo) quoted(driver database.Driver) string {
	quote := quoteName(driver)
	if t.schema == "" {
		return quote(t.plain)
	}
	return quote(t.schema) + "." + quote(t.plain)
}
