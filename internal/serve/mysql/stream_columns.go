package mysql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"spillway/internal/plans"
	"spillway/internal/serve/stream"
)

// tableColumn is a column of the stream's table, as far as the stream must know it.
type tableColumn struct {
	kind             string // such as decimal
	precision, scale int    // of a decimal
	charset          string // of a text
	collation        string
}

// readColumns reads the columns of the stream's table by their names in lower case.
func (st *Stream) readColumns(ctx context.Context, se *session) (map[string]tableColumn, error) {
	name := plans.ParseTableName(st.def.Table)
	rows, err := se.texts(ctx, "SELECT column_name, data_type, COALESCE(numeric_precision, 0), COALESCE(numeric_scale, 0), COALESCE(character_set_name, ''), COALESCE(collation_name, '') "+
		"FROM information_schema.columns WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?", name.Schema, name.Name)
	if err != nil {
		return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
	}
	columns := make(map[string]tableColumn, len(rows))
	for _, row := range rows {
		precision, errPrecision := strconv.Atoi(row[2])
		scale, errScale := strconv.Atoi(row[3])
		if err := errors.Join(errPrecision, errScale); err != nil {
			return nil, fmt.Errorf("look up the columns of %s: %w", st.def.Table, err)
		}
		columns[strings.ToLower(row[0])] = tableColumn{strings.ToLower(row[1]), precision, scale, row[4], row[5]}
	}
	return columns, nil
}

// checkColumns refuses columns whose values would not arrive as they were sent: numbers
// that would be rounded, and keys of which some texts are equal to others.
func (st *Stream) checkColumns(ctx context.Context, se *session) error {
	table, err := st.readColumns(ctx, se)
	if err != nil {
		return err
	}
	for _, c := range st.columns {
		found, ok := table[strings.ToLower(c.Name)]
		if !ok {
			continue // the database names it when the INSERT is prepared
		}
		if c.Type == stream.Real && found.kind == "decimal" && found.precision > stream.RealDigits {
			return fmt.Errorf("%w: %s", errTable, stream.RealOnDecimal(c.Name, fmt.Sprintf("decimal(%d,%d)", found.precision, found.scale)))
		}
		if c.Type == stream.Decimal && !holdsDecimals(found.kind) {
			return fmt.Errorf("%w: %s", errTable, stream.DecimalOnOther(c.Name, found.kind))
		}
	}
	st.table.Store(&table)
	for _, name := range st.schema.TextKey() {
		found := table[strings.ToLower(name)]
		exact, err := se.isExact(ctx, found)
		if err != nil {
			return fmt.Errorf("compare texts by the collation of %s: %w", name, err)
		}
		if !exact {
			return fmt.Errorf("%w: %s", errTable, stream.InexactKey(name, found.collation, "COLLATE "+found.charset+"_bin"))
		}
	}
	return nil
}

func holdsDecimals(kind string) bool {
	return kind == "decimal" || strings.HasSuffix(kind, "text") || strings.HasSuffix(kind, "char")
}

// isExact reports whether a text column tells letters apart that differ in case or accents.
func (se *session) isExact(ctx context.Context, c tableColumn) (bool, error) {
	if c.collation == "" || strings.Contains(c.charset+c.collation, "'") {
		return true, nil
	}
	var equal []string
	for _, other := range []string{"AB", "äb"} {
		equal = append(equal, fmt.Sprintf("CONVERT(_utf8mb4 x'%x' USING %s) COLLATE %s = CONVERT(_utf8mb4 x'6162' USING %s) COLLATE %s", other, c.charset, c.collation, c.charset, c.collation))
	}
	rows, err := se.Query(ctx, "SELECT "+strings.Join(equal, " OR "))
	if err != nil {
		return false, err
	}
	return len(rows) == 1 && rows[0][0] == "0", nil
}

// inexact returns why a column would not hold a decimal of a row exactly; "" if all do. The
// server itself rounds without an error.
func (st *Stream) inexact(r stream.Row) string {
	table := st.table.Load()
	if table == nil {
		return ""
	}
	for i, c := range st.columns {
		if c.Type != stream.Decimal || r.Null(r.Row, i) {
			continue
		}
		if found := (*table)[strings.ToLower(c.Name)]; found.kind == "decimal" && !stream.DecimalFits(r.Bytes(r.Row, i), found.precision, found.scale) {
			return stream.InexactDecimal(c.Name, r.Bytes(r.Row, i), fmt.Sprintf("decimal(%d,%d)", found.precision, found.scale))
		}
	}
	return ""
}

// verifyColumns fails a batch with decimals if a column has changed since it was read. It
// runs behind the INSERTs, while their locks keep the table as it is.
func (w *batchWriter) verifyColumns() error {
	st := w.st
	table := st.table.Load()
	if table == nil || !st.schema.Has(stream.Decimal) {
		return nil
	}
	now, err := st.readColumns(w.ctx, w.se)
	if err != nil || maps.Equal(now, *table) {
		return err
	}
	st.ready.Store(false) // the next attempt checks the table
	return fmt.Errorf("%w: the columns of %s have changed", stream.ErrTransient, st.def.Table)
}
