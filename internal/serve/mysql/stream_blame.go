package mysql

import (
	"context"
	"regexp"
	"strings"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// quoted finds the name in a message of the server: of a column, or of a key behind its table.
var quoted = regexp.MustCompile(`(?:column|key) '(?:[^']*\.)?([^'.]+)'`)

// faultOf returns whose fault a refusal is. It is the server's if there is no partition for a default, or if an
// AUTO_INCREMENT or another default has left the range of its column, or repeats a key.
func (w *batchWriter) faultOf(ctx context.Context, refused *mysql.MySQLError) (fault stream.Fault, err error) {
	name := ""
	if found := quoted.FindStringSubmatch(refused.Message); found != nil {
		name = found[1]
	}
	switch refused.Number {
	case numAutoIncrement:
		return stream.ServersFault, nil
	case numOutOfRange, numOutOfRangeEngine:
		if name != "" && !w.st.def.Sends(name) {
			fault, err = w.faultOfColumn(ctx, name)
		}
	case numDuplicate:
		rows, failure := w.lookUpTable(ctx, "SELECT column_name FROM information_schema.statistics", " AND index_name = ?", name)
		if failure != nil || len(rows) == 0 {
			return stream.RecordsFault, failure
		}
		var parts string
		for _, row := range rows {
			if row[0] == "" { // an expression
				return stream.UnsureFault, nil
			}
			parts += " " + row[0]
		}
		parts, err = w.withGenerated(ctx, parts)
		fault = w.st.def.FaultOf(parts)
	case numNoPartition:
		rows, failure := w.lookUpTable(ctx, "SELECT CONCAT_WS(' ', partition_expression, subpartition_expression) "+
			"FROM information_schema.partitions", " AND partition_name IS NOT NULL LIMIT 1")
		if failure != nil || len(rows) == 0 {
			return stream.UnsureFault, failure
		}
		var parts string
		parts, err = w.withGenerated(ctx, rows[0][0])
		if !w.st.def.Sends(stream.Words(parts)...) {
			fault = stream.ServersFault
		}
	}
	if err == nil && fault == stream.ServersFault {
		fault, err = w.unlessTriggered(ctx)
	}
	return fault, err
}

// lookUpTable returns rows of information_schema about the table.
func (w *batchWriter) lookUpTable(ctx context.Context, sql, and string, args ...any) ([]tables.Row, error) {
	table := plans.ParseTableName(w.st.def.Table)
	return w.Rows(ctx, sql+" WHERE "+inDatabase+and, append([]any{table.Schema, table.Name}, args...)...)
}

// faultOfColumn returns whose fault it is that a column which no record has left its range. If neither it nor its
// default is computed, a trigger has set it, or another table has the column.
func (w *batchWriter) faultOfColumn(ctx context.Context, name string) (stream.Fault, error) {
	rows, err := w.lookUpTable(ctx, "SELECT extra, COALESCE(generation_expression, ''), COALESCE(column_default, '') "+
		"FROM information_schema.columns", " AND column_name = ?", name)
	if err != nil || len(rows) == 0 {
		return stream.UnsureFault, err
	}
	extra, generated, byDefault := strings.ToLower(rows[0][0]), rows[0][1], rows[0][2]
	if generated == "" && !strings.Contains(extra, "auto_increment") && !strings.ContainsAny(byDefault, "(+*/%") {
		return stream.UnsureFault, nil
	}
	return w.st.def.FaultOf(generated + " " + byDefault), nil
}

// withGenerated adds the expressions of the generated columns that an expression may name.
func (w *batchWriter) withGenerated(ctx context.Context, expression string) (string, error) {
	rows, err := w.lookUpTable(ctx, "SELECT column_name, generation_expression FROM information_schema.columns",
		" AND generation_expression <> ''")
	for _, row := range rows {
		if strings.Contains(expression, row[0]) {
			expression += " " + row[1]
		}
	}
	return expression, err
}

// unlessTriggered returns that a refusal is the server's fault, unless a trigger may have caused it.
func (w *batchWriter) unlessTriggered(ctx context.Context) (stream.Fault, error) {
	table := plans.ParseTableName(w.st.def.Table)
	rows, err := w.Rows(ctx, "SELECT trigger_name FROM information_schema.triggers WHERE event_manipulation = 'INSERT' "+
		"AND event_object_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND event_object_table = ? LIMIT 1", table.Schema, table.Name)
	if err == nil && len(rows) > 0 {
		return stream.UnsureFault, nil
	}
	return stream.ServersFault, err
}
