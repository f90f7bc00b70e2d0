package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/database"
)

// tooLongCodes are MariaDB's max_statement_time, MySQL's max_execution_time
// and a killed query.
var tooLongCodes = []uint16{1969, 3024, 1317}

func mysqlDialect() dialect {
	quote := quoteName(database.MySQL)
	return dialect{
		driver:      database.MySQL,
		placeholder: func(int) string { return "?" },
		readOnly:    "SET SESSION TRANSACTION READ ONLY",
		readWrite:   "SET SESSION TRANSACTION READ WRITE",
		table:       mysqlTable,
		explain:     mysqlExplain,
		begin:       func(context.Context, session, int64) error { return nil },
		copyTable: func(ctx context.Context, s session, t *TableInfo, name string, rows int64) error {
			return run(ctx, s, fmt.Sprintf("CREATE TEMPORARY TABLE %s ENGINE=InnoDB SELECT * FROM %s LIMIT %d", name, t.quoted(database.MySQL), rows))
		},
		again: func(ctx context.Context, s session, t *TableInfo, from, name string, indexed bool) error {
			create := fmt.Sprintf("CREATE TEMPORARY TABLE %s LIKE %s", name, from)
			if indexed {
				create = fmt.Sprintf("CREATE TEMPORARY TABLE %s LIKE %s", name, t.quoted(database.MySQL))
			}
			return run(ctx, s, create, fmt.Sprintf("INSERT INTO %s SELECT * FROM %s", name, from))
		},
		index: func(ctx context.Context, s session, name string, columns []indexColumn) error {
			return run(ctx, s, fmt.Sprintf("ALTER TABLE %s ADD INDEX spillway_doctor_candidate (%s)", name, writeColumns(columns, quote)))
		},
		settle: func(ctx context.Context, s session, name string) error {
			return run(ctx, s, "ANALYZE TABLE "+name)
		},
		indexBytes: mysqlIndexBytes,
		limit:      mysqlLimit,
		tooLong: func(err error) bool {
			var answered *mysql.MySQLError
			return errors.As(err, &answered) && slices.Contains(tooLongCodes, answered.Number)
		},
	}
}

// mysqlLimit bounds statements: MariaDB counts seconds, MySQL milliseconds and
// SELECTs only.
func mysqlLimit(ctx context.Context, s session, d time.Duration) error {
	rows, err := s.query(ctx, "SELECT VERSION()")
	if err != nil {
		return err
	}
	if strings.Contains(rows[0][0], "MariaDB") {
		return run(ctx, s, fmt.Sprintf("SET SESSION max_statement_time = %.3f", max(0.001, d.Seconds())))
	}
	return run(ctx, s, fmt.Sprintf("SET SESSION max_execution_time = %d", max(1, d.Milliseconds())))
}

func mysqlTable(ctx context.Context, s session, ref tableRef) (*TableInfo, error) {
	t := &TableInfo{Name: ref.name, plain: ref.name, schema: ref.schema}
	if ref.schema != "" {
		t.Name = ref.schema + "." + ref.name
	}
	where := "TABLE_SCHEMA = COALESCE(NULLIF(?, ''), DATABASE()) AND TABLE_NAME = ?"
	args := []value{{text: ref.schema}, {text: ref.name}}
	columns, err := s.query(ctx, "SELECT COLUMN_NAME, DATA_TYPE, NUMERIC_PRECISION IS NOT NULL FROM information_schema.COLUMNS WHERE "+where+" ORDER BY ORDINAL_POSITION", args...)
	if err != nil {
		return nil, err
	}
	for _, c := range columns {
		kind := strings.ToLower(c[1])
		unbound := strings.HasSuffix(kind, "text") || strings.HasSuffix(kind, "blob") || kind == "json" || kind == "geometry"
		t.columns = append(t.columns, column{name: c[0], kind: kind, number: c[2] == "1", unbound: unbound})
	}
	sizes, err := s.query(ctx, "SELECT COALESCE(TABLE_ROWS, 0), COALESCE(DATA_LENGTH, 0) FROM information_schema.TABLES WHERE "+where, args...)
	if err != nil {
		return nil, err
	}
	if len(sizes) > 0 {
		t.Rows, t.Bytes = parseNumber(sizes[0][0]), parseNumber(sizes[0][1])
	}
	rows, err := s.query(ctx, `SELECT INDEX_NAME, COALESCE(COLUMN_NAME, ''), COALESCE(COLLATION, '') = 'D', INDEX_TYPE = 'BTREE' AND SUB_PART IS NULL, NON_UNIQUE = 0
		FROM information_schema.STATISTICS WHERE `+where+" ORDER BY INDEX_NAME, SEQ_IN_INDEX", args...)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if len(t.Indexes) == 0 || t.Indexes[len(t.Indexes)-1].Name != row[0] {
			t.Indexes = append(t.Indexes, Index{Name: row[0], whole: true, unique: row[4] == "1"})
		}
		last := &t.Indexes[len(t.Indexes)-1]
		last.Columns = append(last.Columns, indexColumn{Name: row[1], Desc: row[2] == "1"})
		last.whole = last.whole && row[3] == "1" && row[1] != ""
	}
	return t, nil
}

// mysqlExplain reads the table form of EXPLAIN, which all versions have, and
// executes the statement within limit, counting the rows that its handlers read.
func mysqlExplain(ctx context.Context, s session, text string, args []value, limit time.Duration) (*Plan, error) {
	rows, err := s.query(ctx, "EXPLAIN "+text, args...)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	for _, row := range rows {
		p.mysqlStep(row)
	}
	if err := mysqlLimit(ctx, s, limit); err != nil {
		return nil, err
	}
	idle, err := mysqlReads(ctx, s) // reading the counters counts too
	if err != nil {
		return nil, err
	}
	before, err := mysqlReads(ctx, s)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if _, err = s.query(ctx, text, args...); err != nil {
		if mysqlDialect().tooLong(err) {
			return p, nil
		}
		return nil, err
	}
	seconds := time.Since(start).Seconds()
	after, err := mysqlReads(ctx, s)
	if err != nil {
		return nil, err
	}
	p.ExecutionSeconds = &seconds
	p.RowsExamined = max(0, after-before-(before-idle))
	return p, nil
}

// mysqlReads sums the rows that this session's handlers have read.
func mysqlReads(ctx context.Context, s session) (int64, error) {
	rows, err := s.query(ctx, "SHOW SESSION STATUS LIKE 'Handler_read%'")
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, row := range rows {
		if !strings.Contains(row[0], "retry") && !strings.Contains(row[0], "deleted") {
			total += max(0, parseNumber(row[1]))
		}
	}
	return total, nil
}

// mysqlStep adds a row of EXPLAIN: MariaDB's has 10 columns, MySQL's 12.
func (p *Plan) mysqlStep(row []string) {
	table, access, key, rows, extra := 2, 3, 5, 8, 9
	if len(row) >= 12 {
		table, access, key, rows, extra = 2, 4, 6, 9, 11
	}
	if len(row) <= extra {
		return
	}
	words := fmt.Sprintf("%s: %s", row[table], row[access])
	if row[key] != "" {
		words += " using " + row[key]
	}
	words += fmt.Sprintf(", about %s rows", row[rows])
	if row[extra] != "" {
		words += ", " + row[extra]
	}
	p.Lines = append(p.Lines, words)
	if row[access] == "ALL" {
		p.Costs = append(p.Costs, fmt.Sprintf("reads all of %s (about %s rows)", row[table], row[rows]))
	}
	if row[access] == "index" {
		p.Costs = append(p.Costs, fmt.Sprintf("reads %s in the order of %s until it has enough (all of it is about %s rows)", row[table], row[key], row[rows]))
	}
	if strings.Contains(row[extra], "filesort") {
		p.Sorts = true
		p.Costs = append(p.Costs, fmt.Sprintf("sorts what it finds in %s (Using filesort)", row[table]))
	}
	if strings.Contains(row[extra], "Using temporary") {
		p.Costs = append(p.Costs, "keeps rows in a temporary table (Using temporary)")
	}
}

// mysqlIndexBytes estimates: the server tells no sizes of temporary tables. An
// entry holds its columns, the primary key (8 bytes assumed) and a header of 6,
// in pages filled to 15/16 by a build.
func mysqlIndexBytes(ctx context.Context, s session, t *TableInfo, name string, columns []indexColumn) (int64, bool, error) {
	widths := map[string]int{"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8, "float": 4, "double": 8, "date": 3, "datetime": 5, "timestamp": 4, "year": 1}
	terms := []string{"14"}
	for _, c := range columns {
		info, _ := t.column(c.Name)
		if width, ok := widths[info.kind]; ok {
			terms = append(terms, fmt.Sprint(width))
			continue
		}
		terms = append(terms, fmt.Sprintf("COALESCE(LENGTH(%s), 0) + 2", quoteName(database.MySQL)(c.Name)))
	}
	rows, err := s.query(ctx, fmt.Sprintf("SELECT CAST(COALESCE(SUM(%s), 0) * 16 / 15 AS UNSIGNED) FROM %s", strings.Join(terms, " + "), name))
	if err != nil {
		return 0, true, err
	}
	return parseNumber(rows[0][0]), true, nil
}
