package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// source reads the rows of a feed or a query without lists. It implements feed.Source.
type source struct {
	db   *DB
	def  feed.Definition
	body string // the SELECT with ? for its parameters
	uses []int  // uses[i] is the position in Params of the i-th ?

	nulls     feed.NullKeys
	known     atomic.Pointer[description]
	stale     atomic.Bool // the description must be read again
	optimizer atomic.Bool // the optimizer chooses the order of the tables; Check decides
}

// errOutdated is the error of rows whose columns differ from the description.
var errOutdated = errors.New("the columns changed")

// Source returns the source of the feed or the query that def describes. Mistakes that only
// the database can find are errors of Read and Check.
//
// A list becomes placeholders, IN (?, ?), because JSON_TABLE is missing before MySQL 8.0 and MariaDB 10.6, and would convert the values'
// types and collations. Text and UUIDs are bound as strings, integers and reals as numbers, booleans as 0 or 1, and timestamps as DATETIME
// in UTC. A backslash in the statement's strings is a character.
func (db *DB) Source(def feed.Definition) (feed.Source, error) {
	return feed.Optional(def, plans.MySQL, func(def feed.Definition) (feed.Source, error) {
		return feed.Expand(def, plans.MySQL, func(def feed.Definition) (feed.Source, error) { return db.source(def) })
	})
}

// source returns the source of a definition without lists.
func (db *DB) source(def feed.Definition) (*source, error) {
	parsed, err := plans.ParseStatement(def.SQL, plans.MySQL)
	if err != nil {
		return nil, err
	}
	if err := param.Match(parsed, def.Params); err != nil {
		return nil, err
	}
	s := &source{db: db, def: def}
	s.body = parsed.Render(func(name string) string {
		i := param.Index(def.Params, name)
		s.uses = append(s.uses, i)
		return placeholder(def.Params[i])
	})
	return s, nil
}

// placeholder stands for the value of a parameter.
func placeholder(p param.Param) string {
	switch p.Type {
	case param.Timestamp:
		return "CAST(? AS DATETIME(6))"
	case param.Date:
		return "CAST(? AS DATE)"
	case param.Time:
		return "CAST(? AS TIME(6))"
	case param.Decimal:
		return fmt.Sprintf("CAST(? AS DECIMAL(%d,%d))", decimalMax, scaleMax)
	case param.Bytes:
		return "CAST(? AS BINARY)"
	}
	return "?"
}

// Read implements feed.Source. An error leaves rows unchanged.
func (s *source) Read(ctx context.Context, r feed.Range, rows *feed.Rows) error {
	return feed.Collect(&s.def, rows, func(to feed.RowHandler) error { return s.run(ctx, r, false, to) })
}

// Keys implements feed.Source.
func (s *source) Keys(ctx context.Context, r feed.Range, every int) (feed.Walk, error) {
	return feed.CollectKeys(&s.def, every, func(to feed.RowHandler) error { return s.run(ctx, r, true, to) })
}

// run runs the statement for r. It describes the feed first if necessary, and again if the rows differ from the description.
func (s *source) run(ctx context.Context, r feed.Range, keysOnly bool, to feed.RowHandler) error {
	err := feed.ReadEnd(ctx, r, to, func(to feed.RowHandler) error {
		err := s.runOnce(ctx, r, keysOnly, false, to)
		if errors.Is(err, errOutdated) {
			s.stale.Store(true)
			err = s.runOnce(ctx, r, keysOnly, true, to)
		}
		return err
	}, s.lookForNull)
	return s.explainError(r, err)
}

// lookForNull returns an error if a row for the arguments has NULL in the key.
func (s *source) lookForNull(ctx context.Context, args []string) error {
	return s.nulls.Look(args, func(columns []string) (found bool, err error) {
		var values []any
		if args != nil {
			if values, err = s.bindParams(args, nil, nil); err != nil {
				return false, err
			}
		}
		err = s.db.withSession(ctx, func(ctx context.Context, se *session) error {
			rows, err := se.texts(ctx, plans.MySQL.FindNull(s.body, columns), values...)
			found = len(rows) > 0
			return err
		})
		return found, err
	})
}

func (s *source) runOnce(ctx context.Context, r feed.Range, keysOnly, adapt bool, to feed.RowHandler) error {
	d, err := s.describe(ctx)
	if err != nil {
		return err
	}
	st, args, err := s.statement(d, r, keysOnly, adapt)
	if err != nil {
		return err
	}
	return s.db.query(ctx, st, args, to)
}

// statement returns the statement for r with a description of the columns, and its parameters.
func (s *source) statement(d *description, r feed.Range, keysOnly, adapt bool) (statement, []driver.NamedValue, error) {
	st := statement{sql: s.body, columns: s.reading(d, keysOnly, adapt), endless: true}
	if !s.def.IsQuery() {
		of := shape{
			after: r.After != "", until: r.Until != "", keysOnly: keysOnly, straight: !s.optimizer.Load(),
			filters: param.Given(s.def.Params, r.Args),
		}
		st.sql, st.endless = s.writer(d.columns).write(of), false
	}
	args, err := s.arguments(d.columns, r)
	return st, args, err
}

// reading returns how rows are read with the description d. Rows that differ from d are errOutdated, unless adapt is set.
func (s *source) reading(d *description, keysOnly, adapt bool) func(driver.Rows) (*columns, error) {
	return func(rows driver.Rows) (*columns, error) {
		if c := d.match(rows, keysOnly); c != nil {
			return c, nil
		}
		if !adapt {
			return nil, errOutdated
		}
		return d.adapt(s.def, rows, keysOnly)
	}
}

func (s *source) writer(c *columns) writer {
	return writer{def: s.def, body: s.body, key: c.key, decimals: c.decimals}
}

// explainError adds the cause to an error of the server.
func (s *source) explainError(r feed.Range, err error) error {
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Number {
	case numCollationMix2, numCollationMix3, numCollationMix, numCannotConvert, numInvalidCharacters:
		if r.After != "" || r.Until != "" {
			return fmt.Errorf("%w: %w", feed.ErrCursor, err)
		}
	case numDuplicateColumn:
		return fmt.Errorf("the statement has two columns with one name; rename one with AS (%w)", err)
	case numStatementTimeout, numQueryTimeout, numInterrupted:
		return fmt.Errorf("the server stopped the statement after the statement timeout of %v: %w", s.db.bounds.StatementTimeout, err)
	}
	if len(s.def.Params) > 0 && rejectsValue(refused) {
		return param.Rejected(s.def.Params, r.Args, err)
	}
	return err
}

// rejectsValue reports whether the server rejects the value of a parameter: it is out of
// range, or not what a function accepts. Most such errors have no SQLSTATE of their own.
func rejectsValue(err *mysql.MySQLError) bool {
	switch n := err.Number; n {
	case numCollationMix2, numCollationMix3, numCollationMix, numCannotConvert, numInvalidCharacters,
		numRegexp, numWrongArguments, numWrongTime, numWrongFunctionValue, numJSONPath:
		return true
	default:
		return string(err.SQLState[:2]) == "22" || n >= numRegexpFirst && n <= numRegexpLast
	}
}

// arguments returns the statement's parameters in the order of writer.write.
func (s *source) arguments(c *columns, r feed.Range) ([]driver.NamedValue, error) {
	args, err := s.bindParams(r.Args, param.Given(s.def.Params, r.Args), c)
	if err != nil {
		return nil, err
	}
	if s.def.IsQuery() {
		return namedValues(args), nil
	}
	for _, key := range []feed.Key{r.After, r.Until} {
		if key == "" {
			continue
		}
		values, err := key.Values(len(s.def.Key))
		if err != nil {
			return nil, err
		}
		bound := make([]any, len(values))
		for i, value := range values {
			if bound[i], err = c.key[i].value(value); err != nil {
				return nil, err
			}
		}
		args = boundArgs(args, bound)
	}
	return namedValues(append(args, int64(r.Limit), int64(r.Skip))), nil
}

// bindParams returns the values for the parameters of the feed's own statement, and for the
// filters at some positions, which compare with c's columns.
func (s *source) bindParams(texts []string, filters []int, c *columns) ([]any, error) {
	if len(texts) != len(s.def.Params) {
		return nil, fmt.Errorf("%d arguments for %d parameters", len(texts), len(s.def.Params))
	}
	args := make([]any, 0, len(s.uses)+4*len(s.def.Key)+2)
	for _, i := range s.uses {
		if texts[i] == param.Absent {
			args = append(args, nil)
			continue
		}
		value, err := bindParam(s.def.Params[i].Type, texts[i])
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", s.def.Params[i].Name, err)
		}
		args = append(args, value)
	}
	for _, i := range filters {
		value, err := bindFilter(s.def.Params[i], texts[i], c.typeOf(s.def.Params[i].Name))
		if err != nil {
			return nil, fmt.Errorf("filter %s: %w", s.def.Params[i].Name, err)
		}
		args = append(args, value)
	}
	return args, nil
}

// bindFilter returns the value of a filter for a column of a type. It is nil, which equals nothing, if the column cannot hold the value,
// which the server would round. The server compares a FLOAT with all digits of a real, so the real is rounded as the column is.
func bindFilter(p param.Param, text, columnType string) (any, error) {
	switch {
	case param.Finer(p, text):
		return nil, nil
	case columnType == "YEAR" && !isYear(text): // 5 would be 2005
		return nil, nil
	case columnType == "DECIMAL" && isNumeric(p.Type):
		if !number.MatchString(text) {
			return nil, nil
		}
		return text, nil
	case columnType == "FLOAT" && p.Type == param.Real:
		x, err := strconv.ParseFloat(text, 32)
		if err != nil {
			return nil, nil // it is too large
		}
		return x, nil
	}
	return bindParam(p.Type, text)
}

func bindParam(kind param.Type, text string) (any, error) {
	switch kind {
	case param.Text, param.UUID, param.Date, param.Time:
		return text, nil
	case param.Decimal:
		if whole, _, _ := strings.Cut(strings.TrimPrefix(text, "-"), "."); len(whole) > decimalMax-scaleMax {
			return nil, fmt.Errorf("%w: it has more than %d digits before the point", param.ErrValue, decimalMax-scaleMax)
		}
		return text, nil
	case param.Bytes:
		return param.Raw(text)
	case param.Integer:
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && n > math.MaxInt64 {
			return n, nil
		}
		return strconv.ParseInt(text, 10, 64)
	case param.Real:
		return strconv.ParseFloat(text, 64)
	case param.Boolean:
		return text == "true", nil
	case param.Timestamp:
		t, err := time.Parse(time.RFC3339Nano, text)
		return t.UTC().Format("2006-01-02 15:04:05.999999"), err
	}
	return nil, fmt.Errorf("unknown type %q", kind)
}

// isYear reports whether a YEAR has a value.
func isYear(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && (n == 0 || n >= 1901 && n <= 2155)
}

// isNumeric reports whether values of a type are compared with a DECIMAL digit by digit.
func isNumeric(t param.Type) bool { return t == param.Text || t == param.Real || t == param.Decimal }

// number matches what the server reads as a number as a whole.
var number = regexp.MustCompile(`^(?i)[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]{1,3})?$`)

// samples returns sample values for the feed's parameters. Of the filters, only the one at a
// position has one, which its column in c can hold.
func (s *source) samples(filter int, c *columns) []string {
	texts := make([]string, len(s.def.Params))
	for i, p := range s.def.Params {
		texts[i] = p.Type.Sample()
		switch {
		case p.Filter && i != filter:
			texts[i] = param.Absent
		case p.Filter && p.Type == param.Text && c.typeOf(p.Name) == "DECIMAL":
			texts[i] = param.Real.Sample()
		}
	}
	return texts
}
