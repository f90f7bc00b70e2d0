package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/plans"
)

const (
	queryCanceled   = "57014"
	tempBuffersMax  = 1 << 30
	tempBuffersLess = 8 << 20
)

func postgresDialect() dialect {
	return dialect{
		driver:      database.Postgres,
		placeholder: func(i int) string { return "$" + strconv.Itoa(i) },
		readOnly:    "SET default_transaction_read_only = on",
		readWrite:   "SET default_transaction_read_only = off",
		explain:     postgresExplain,
		begin: func(ctx context.Context, s session, bytes int64) error {
			// Temporary tables do not use shared_buffers.
			return run(ctx, s, fmt.Sprintf("SET temp_buffers = '%dkB'", max(tempBuffersLess, min(2*bytes, tempBuffersMax))>>10))
		},
		copyTable: func(t *plans.Table, name string, rows int64) string {
			sample := ""
			if t.Rows > rows {
				// SYSTEM samples pages of the whole table; LIMIT cuts the excess.
				sample = fmt.Sprintf(" TABLESAMPLE SYSTEM (%.4f)", min(100, 110*float64(rows)/float64(t.Rows)))
			}
			return fmt.Sprintf("CREATE TEMP TABLE %s AS SELECT * FROM %s%s LIMIT %d", name, t.Full.SQL(plans.Postgres), sample, rows)
		},
		duplicate: postgresDuplicate,
		index:     "CREATE INDEX %[2]s ON %[1]s (%[3]s)",
		analyze:   "VACUUM (ANALYZE) %s", // index-only scans need the visibility map
		indexBytes: func(ctx context.Context, s session, _ *plans.Table, _, name string, _ []plans.IndexColumn) (int64, bool, error) {
			rows, err := s.query(ctx, fmt.Sprintf("SELECT pg_relation_size('%s')", name))
			if err != nil {
				return 0, false, err
			}
			return parseNumber(rows[0][0]), false, nil
		},
		limit: func(ctx context.Context, s session, d time.Duration) error {
			return run(ctx, s, fmt.Sprintf("SET statement_timeout = %d", max(1, d.Milliseconds())))
		},
		tooLong: func(err error) bool {
			var answered *pgconn.PgError
			return errors.As(err, &answered) && answered.Code == queryCanceled
		},
	}
}

// postgresDuplicate duplicates a copy, with the live table's indexes as in the catalog.
func postgresDuplicate(ctx context.Context, s session, t *plans.Table, from, name string, indexed bool) error {
	if err := run(ctx, s, fmt.Sprintf("CREATE TEMP TABLE %s AS TABLE %s", name, from)); err != nil || !indexed {
		return err
	}
	for _, index := range t.Indexes {
		_, using, found := strings.Cut(index.Definition, " USING ")
		if !found {
			return fmt.Errorf("index %s cannot be read: %s", index.Name, index.Definition)
		}
		using = regexp.MustCompile(` TABLESPACE \S+`).ReplaceAllString(using, "")
		if err := run(ctx, s, fmt.Sprintf("CREATE INDEX ON %s USING %s", name, using)); err != nil {
			return fmt.Errorf("build %s: %w", index.Name, err)
		}
	}
	return nil
}

// postgresExplain explains and executes a statement within limit in a read-only
// transaction.
func postgresExplain(ctx context.Context, s session, text string, args []value, limit time.Duration) (*Plan, error) {
	steps := []string{"BEGIN READ ONLY", fmt.Sprintf("SET LOCAL statement_timeout = %d", max(1, limit.Milliseconds()))}
	if err := run(ctx, s, steps...); err != nil {
		return nil, err
	}
	answer, err := s.query(ctx, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+text, args...)
	if ending := run(ctx, s, "ROLLBACK"); ending != nil {
		return nil, errors.Join(err, ending)
	}
	if postgresDialect().tooLong(err) {
		answer, err = s.query(ctx, "EXPLAIN (FORMAT JSON) "+text, args...)
	}
	if err != nil {
		return nil, err
	}
	plan, err := plans.ReadPostgres(answer[0][0])
	if err != nil {
		return nil, err
	}
	p := newPlan(plan)
	root := plan.Nodes[0]
	p.Buffers = root.SharedHit + root.SharedRead + root.LocalHit + root.LocalRead
	return p, nil
}
