package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"spillway/internal/database"
	"spillway/internal/plans"
)

// executionLimit bounds the execution of the statement on the live tables.
const executionLimit = 10 * time.Second

// ErrStatement marks mistakes in the statement or its parameters.
var ErrStatement = errors.New("read the query")

// Query is the analysis of one statement. It contains no values of parameters, which may
// be secrets.
type Query struct {
	Statement string         `json:"statement"`
	Database  string         `json:"database"` // without its password
	Params    []QueryParam   `json:"params,omitempty"`
	Tables    []*plans.Table `json:"tables"`
	Plan      *Plan          `json:"plan"`
	Advice
	Measured []Measurement `json:"measured,omitempty"`
	Winner   *Candidate    `json:"winner,omitempty"`  // the first of Winners
	Winners  []Candidate   `json:"winners,omitempty"` // indexes to build together
	Verdict  string        `json:"verdict"`
}

// QueryParam is a parameter and the source of its value.
type QueryParam struct {
	Name string `json:"name"`
	From string `json:"from"` // "given", or the table a row of which held it
}

// dialect holds the differences between databases.
type dialect struct {
	driver      database.Driver
	placeholder func(i int) string
	// readOnly and readWrite set the mode of a session.
	readOnly, readWrite string
	// explain returns the plan. It executes the statement for at most limit.
	explain func(ctx context.Context, s session, sql string, args []value, limit time.Duration) (*Plan, error)
	// begin prepares a session for copies of that many bytes.
	begin func(ctx context.Context, s session, bytes int64) error
	// copyTable is the statement that creates a temporary table of at most so many rows, without indexes.
	copyTable func(t *plans.Table, name string, rows int64) string
	// duplicate creates a temporary table of a copy's rows, with the live table's indexes
	// or without any.
	duplicate func(ctx context.Context, s session, t *plans.Table, from, name string, indexed bool) error
	index     string // the statement that builds an index with a name on a copy: table, name, columns
	analyze   string // the statement that gathers statistics of a table
	// indexBytes returns the size of that index, estimated if the server does not tell.
	indexBytes func(ctx context.Context, s session, t *plans.Table, table, name string, columns []plans.IndexColumn) (bytes int64,
		estimated bool, err error)
	// limit limits the duration of the statements that follow.
	limit func(ctx context.Context, s session, d time.Duration) error
	// tooLong reports whether that limit ended a statement.
	tooLong func(error) bool
}

func dialectOf(driver database.Driver) dialect {
	if driver == database.Postgres {
		return postgresDialect()
	}
	return mysqlDialect()
}

// analysis is the state of one analysis.
type analysis struct {
	options   Options
	progress  func(step string)
	dialect   dialect
	session   session
	selection *selection
	args      []value
	deadline  time.Time
	report    *Query
}

// Analyze explains a statement, derives index candidates from it and, with Measure, tries
// each on a copy of its table. It only reads the live tables. Mistakes in the statement or
// its parameters are ErrStatement. progress is told each step. If only the measurement fails, the rest comes with the error.
func Analyze(ctx context.Context, url database.URL, o Options, progress func(step string)) (*Query, error) {
	sql := url.Driver.Dialect()
	if url.Driver == database.MySQL {
		sql |= plans.BackslashEscapes // the session has the default sql_mode
	}
	s, err := readSelect(o.Query, sql)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStatement, err)
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	conn, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	a := &analysis{
		options: o, progress: progress, dialect: dialectOf(url.Driver), session: conn, selection: s, deadline: deadline,
		report: &Query{Statement: s.text, Database: url.String()},
	}
	err = a.run(ctx)
	if closing := conn.close(); err == nil && closing != nil {
		err = fmt.Errorf("close the session: %w", closing)
	}
	switch {
	case err != nil && a.report.Verdict == "":
		return nil, fmt.Errorf("analyze on %s: %w", url, err)
	case err != nil:
		return a.report, fmt.Errorf("analyze on %s: %w", url, err)
	}
	return a.report, nil
}

func (a *analysis) run(ctx context.Context) error {
	if err := a.readTables(ctx); err != nil {
		return err
	}
	advice, err := a.selection.advise()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStatement, err)
	}
	if err := a.readParams(ctx); err != nil {
		return err
	}
	a.progress("explaining the statement")
	text := a.selection.render(a.dialect.placeholder, nil)
	a.report.Plan, err = a.dialect.explain(ctx, a.session, text, a.args, min(executionLimit, time.Until(a.deadline)))
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	a.report.Advice = *advice
	switch {
	case len(advice.Candidates) == 0 && len(advice.Covered) > 0:
		a.report.Verdict = "the indexes that the statement suggests are there"
	case len(advice.Candidates) == 0:
		a.report.Verdict = "the statement suggests no index"
	case !a.options.Measure:
		a.report.Verdict = "candidates are not measured; --measure builds each on a temporary copy of the table and drops it"
	default:
		err := a.measure(ctx)
		if err != nil {
			a.report.Verdict = fmt.Sprintf("candidates are not measured: %v; it takes the right to make temporary tables", err)
		}
		return err
	}
	return nil
}

func (a *analysis) readTables(ctx context.Context) error {
	catalog := plans.Catalog{Dialect: a.dialect.driver.Dialect(), Query: func(sql string, args ...string) ([][]string, error) {
		values := make([]value, len(args))
		for i, arg := range args {
			values[i].text = arg
		}
		return a.session.query(ctx, sql, values...)
	}}
	for i, ref := range a.selection.tables {
		t, err := catalog.Table(ref.TableName)
		if err != nil {
			return err
		}
		if len(t.Columns) == 0 {
			return fmt.Errorf("%w: there is no table %s", ErrStatement, ref.Name)
		}
		a.selection.tables[i].described = t
		a.report.Tables = append(a.report.Tables, t)
	}
	return nil
}

// readParams finds a value for each parameter: the given one or, if a column must equal
// it, the value in a row of the table.
func (a *analysis) readParams(ctx context.Context) error {
	if err := a.checkNames(); err != nil {
		return err
	}
	samples := map[int]map[string]string{} // by the table's place in FROM
	for _, p := range a.selection.params {
		v := value{number: p.count}
		var table int
		var column plans.Column
		if p.column.Name != "" {
			var err error
			if table, column, err = a.selection.resolve(p.column); err != nil {
				return fmt.Errorf("%w: %w", ErrStatement, err)
			}
			v.number = column.Number
		}
		from, given := "given", false
		if v.text, given = a.options.Param[p.name]; !given {
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
			v.text, from = samples[table][column.Name], "a row of "+a.report.Tables[table].Name
		}
		a.args = append(a.args, v)
		a.report.Params = append(a.report.Params, QueryParam{Name: p.name, From: from})
	}
	return nil
}

// checkNames refuses values for unknown parameters.
func (a *analysis) checkNames() error {
	var names []string
	for _, p := range a.selection.params {
		names = append(names, p.name)
	}
	for _, name := range slices.Sorted(maps.Keys(a.options.Param)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%w: there is no parameter %s; the statement has: %s", ErrStatement, name, strings.Join(names, ", "))
		}
	}
	return nil
}

// sample reads the values of the columns of a table that parameters without a value must
// equal from one row.
func (a *analysis) sample(ctx context.Context, table int) (map[string]string, error) {
	t, quote := a.report.Tables[table], a.dialect.driver.Dialect().QuoteAlways
	var columns, words, set []string
	for _, p := range a.selection.params {
		if _, given := a.options.Param[p.name]; given || !p.equal {
			continue
		}
		owner, column, err := a.selection.resolve(p.column)
		if err != nil || owner != table || slices.Contains(columns, column.Name) {
			continue
		}
		columns = append(columns, column.Name)
		words = append(words, quote(column.Name))
		set = append(set, quote(column.Name)+" IS NOT NULL")
	}
	rows, err := a.session.query(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s LIMIT 1", strings.Join(words, ", "), a.quoted(t),
		strings.Join(set, " AND ")))
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

// quoted returns a table's name for a statement.
func (a *analysis) quoted(t *plans.Table) string { return t.Full.SQL(a.dialect.driver.Dialect()) }
