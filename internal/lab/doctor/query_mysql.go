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
	"spillway/internal/plans"
)

// tooLongCodes are the errors of MariaDB's max_statement_time, MySQL's max_execution_time
// and a killed query.
var tooLongCodes = []uint16{1969, 3024, 1317}

func mysqlDialect() dialect {
	return dialect{
		driver:      database.MySQL,
		placeholder: func(int) string { return "?" },
		readOnly:    "SET SESSION TRANSACTION READ ONLY",
		readWrite:   "SET SESSION TRANSACTION READ WRITE",
		explain:     mysqlExplain,
		begin:       func(context.Context, session, int64) error { return nil },
		copyTable: func(t *plans.Table, name string, rows int64) string {
			return fmt.Sprintf("CREATE TEMPORARY TABLE %s ENGINE=InnoDB SELECT * FROM %s LIMIT %d", name, t.Full.SQL(plans.MySQL), rows)
		},
		duplicate: func(ctx context.Context, s session, t *plans.Table, from, name string, indexed bool) error {
			create := fmt.Sprintf("CREATE TEMPORARY TABLE %s LIKE %s", name, from)
			if indexed {
				create = fmt.Sprintf("CREATE TEMPORARY TABLE %s LIKE %s", name, t.Full.SQL(plans.MySQL))
			}
			return run(ctx, s, create, fmt.Sprintf("INSERT INTO %s SELECT * FROM %s", name, from))
		},
		index:      "ALTER TABLE %s ADD INDEX %s (%s)",
		analyze:    "ANALYZE TABLE %s",
		indexBytes: mysqlIndexBytes,
		limit:      mysqlLimit,
		tooLong: func(err error) bool {
			var answered *mysql.MySQLError
			return errors.As(err, &answered) && slices.Contains(tooLongCodes, answered.Number)
		},
	}
}

// mysqlLimit limits statements. MariaDB counts seconds; MySQL counts milliseconds and
// limits SELECTs only.
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

// mysqlExplain reads the table format of EXPLAIN, which all versions have. It executes the
// statement within limit and counts the rows read.
func mysqlExplain(ctx context.Context, s session, text string, args []value, limit time.Duration) (*Plan, error) {
	rows, err := s.query(ctx, "EXPLAIN "+text, args...)
	if err != nil {
		return nil, err
	}
	plan, err := plans.ReadMySQL(rows, "")
	if err != nil {
		return nil, err
	}
	p := newPlan(plan)
	if err := mysqlLimit(ctx, s, limit); err != nil {
		return nil, err
	}
	idle, err := mysqlReads(ctx, s) // reading the counters also counts
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
	p.ExecutionSeconds = new(time.Since(start).Seconds())
	after, err := mysqlReads(ctx, s)
	if err != nil {
		return nil, err
	}
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

// mysqlIndexBytes estimates, because the server shows no sizes of temporary tables. An
// entry holds its columns, the primary key (8 bytes assumed) and a header of 6 bytes;
// pages are 15/16 full after a build.
func mysqlIndexBytes(ctx context.Context, s session, t *plans.Table, table, _ string, columns []plans.IndexColumn) (int64, bool, error) {
	widths := map[string]int{
		"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8, "float": 4, "double": 8, "date": 3,
		"datetime": 5, "timestamp": 4, "year": 1,
	}
	terms := []string{"14"}
	for _, c := range columns {
		info, _ := t.Column(c.Name)
		kind, _, _ := strings.Cut(strings.ToLower(info.Type), "(")
		kind, _, _ = strings.Cut(kind, " ")
		if width, ok := widths[kind]; ok {
			terms = append(terms, fmt.Sprint(width))
			continue
		}
		terms = append(terms, fmt.Sprintf("COALESCE(LENGTH(%s), 0) + 2", plans.MySQL.QuoteAlways(c.Name)))
	}
	rows, err := s.query(ctx, fmt.Sprintf("SELECT CAST(COALESCE(SUM(%s), 0) * 16 / 15 AS UNSIGNED) FROM %s", strings.Join(terms, " + "),
		table))
	if err != nil {
		return 0, true, err
	}
	return parseNumber(rows[0][0]), true, nil
}
