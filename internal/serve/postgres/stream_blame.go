package postgres

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/serve/stream"
)

// origins is what a refusal may come from other than the values of the records, as read with the table.
type origins struct {
	numbered  bool // a column that is not sent numbers the rows, and may leave its range
	defaulted bool // a default of such a column may fail
	computed  bool // other columns, indexes or checks compute integers of values that are sent
	triggered bool // a row trigger runs at INSERT
	// unique has whose fault a duplicate is, by the schema, table and name of its index.
	unique map[string]stream.Fault
}

// defaults yields the columns of relations that have a default, are numbered or generated: their name, whether
// they are generated, whether their range is less than bigint's, and the expression, which is "" for an identity.
//
//go:embed sql/defaults.sql
var defaults string

// effects yields whether row triggers run at INSERT, and whether an index or a check casts to a smaller integer.
//
//go:embed sql/effects.sql
var effects string

// uniques yields the schema, table and name of unique indexes, and their definition.
//
//go:embed sql/uniques.sql
var uniques string

// A default that is a constant, a time, a random UUID or a number of a sequence does not fail, unless its
// range ends. safeDefault and constantText are what is removed to see whether there is anything else.
var (
	constantText = regexp.MustCompile(`'(?:[^']|'')*'`)
	safeDefault  = regexp.MustCompile(`nextval\(::regclass\)|timezone\(::text, now\(\)\)|\b(?:now|\w+_timestamp|\w*uuid\w*)\(\)|` +
		`\b(?:CURRENT|LOCAL)_?TIME(?:STAMP)?\(\d\)`)
)

// readOrigins reads the origins of refusals from the catalog.
func (st *Stream) readOrigins(ctx context.Context, conn *pgconn.PgConn, all []relation) (*origins, error) {
	var oids []string
	for _, r := range all {
		oids = append(oids, r.oid)
	}
	list := "{" + strings.Join(oids, ",") + "}"
	o := &origins{unique: make(map[string]stream.Fault)}
	columns, err := texts(ctx, conn, defaults, list)
	var does, indexes [][]string
	if err == nil {
		does, err = texts(ctx, conn, effects, list)
	}
	if err == nil {
		indexes, err = texts(ctx, conn, uniques, list)
	}
	if err != nil {
		return nil, fmt.Errorf("look up defaults, triggers and indexes of %s: %w", st.def.Table, err)
	}
	o.triggered, o.computed = does[0][0] == "t", does[0][1] == "t"
	generated := make(map[string]string)
	for _, c := range columns {
		name, expression := c[0], c[3]
		isNarrow := c[2] == "t"
		rest := constantText.ReplaceAllString(expression, "")
		switch numbers := expression == "" || strings.Contains(rest, "nextval("); {
		case c[1] == "t":
			generated[name] = expression
			fault := st.def.FaultOf(expression)
			o.computed = o.computed || fault != stream.ServersFault
			o.numbered = o.numbered || fault == stream.ServersFault
		case !slices.ContainsFunc(st.schema.Columns(), func(c stream.Column) bool { return c.Name == name }):
			o.numbered = o.numbered || numbers && isNarrow
			o.defaulted = o.defaulted || strings.Contains(safeDefault.ReplaceAllString(rest, ""), "(")
		}
	}
	for _, index := range indexes {
		_, parts, _ := strings.Cut(index[3], " USING ")
		for name, expression := range generated {
			if strings.Contains(parts, name) {
				parts += " " + expression
			}
		}
		o.unique[strings.Join(index[:3], ".")] = st.def.FaultOf(parts)
	}
	return o, nil
}

// faultOf returns whose fault a refusal is. The range of columns is checked before their values are sent, so that
// only what is computed can leave the range of an integer.
func (st *Stream) faultOf(err *pgconn.PgError) stream.Fault {
	o := st.origins.Load()
	if o == nil {
		o = &origins{}
	}
	unlessTriggered := func(fault stream.Fault) stream.Fault {
		if o.triggered && fault == stream.ServersFault {
			return stream.UnsureFault
		}
		return fault
	}
	inTrigger := o.triggered && err.Where != ""
	switch {
	case err.Routine == "ExecFindPartition":
		// The detail names the columns: Partition key of the failing row contains (a, b) = (1, 2).
		_, names, _ := strings.Cut(err.Detail, "(")
		names, _, found := strings.Cut(names, ") = (")
		if found && !st.def.Sends(stream.Words(names)...) {
			return stream.ServersFault
		}
	case err.Code == stateSequenceExhausted:
		return stream.ServersFault
	case err.Code == stateUniqueViolation:
		if fault, known := o.unique[strings.Join([]string{err.SchemaName, err.TableName, err.ConstraintName}, ".")]; known {
			return unlessTriggered(fault)
		}
	case err.Code == stateOutOfRange && slices.Contains([]string{"int84", "int82", "i4toi2"}, err.Routine):
		switch {
		case inTrigger, !o.numbered && !o.defaulted && !o.computed, (o.numbered || o.defaulted) && o.computed:
			return stream.UnsureFault
		case !o.computed:
			return stream.ServersFault
		}
	case strings.HasPrefix(err.Code, classDataException) && o.defaulted:
		return stream.UnsureFault
	}
	return stream.RecordsFault
}
