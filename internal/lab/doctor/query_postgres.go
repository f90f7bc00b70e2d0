package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
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
		table:       postgresTable,
		explain:     postgresExplain,
		begin: func(ctx context.Context, s session, bytes int64) error {
			// Temporary tables do not use shared_buffers.
			return run(ctx, s, fmt.Sprintf("SET temp_buffers = '%dkB'", max(tempBuffersLess, min(2*bytes, tempBuffersMax))>>10))
		},
		copyTable: func(ctx context.Context, s session, t *TableInfo, name string, rows int64) error {
			sample := ""
			if t.Rows > rows {
				// Pages from all over the table, a few too many for LIMIT to cut.
				sample = fmt.Sprintf(" TABLESAMPLE SYSTEM (%.4f)", min(100, 110*float64(rows)/float64(t.Rows)))
			}
			return run(ctx, s, fmt.Sprintf("CREATE TEMP TABLE %s AS SELECT * FROM %s%s LIMIT %d", name, t.quoted(database.Postgres), sample, rows))
		},
		again: postgresAgain,
		index: func(ctx context.Context, s session, name string, columns []indexColumn) error {
			return run(ctx, s, fmt.Sprintf("CREATE INDEX spillway_doctor_candidate_%s ON %s (%s)", name, name, writeColumns(columns, quoteName(database.Postgres))))
		},
		settle: func(ctx context.Context, s session, name string) error {
			return run(ctx, s, "VACUUM (ANALYZE) "+name) // index-only scans need what VACUUM notes
		},
		indexBytes: func(ctx context.Context, s session, _ *TableInfo, name string, _ []indexColumn) (int64, bool, error) {
			rows, err := s.query(ctx, fmt.Sprintf("SELECT pg_relation_size('spillway_doctor_candidate_%s')", name))
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

// postgresTable reads the catalog.
func postgresTable(ctx context.Context, s session, ref tableRef) (*TableInfo, error) {
	name := ref.name
	if ref.schema != "" {
		name = ref.schema + "." + name
	}
	// Plain names are folded to lower case, as the server does.
	rows, err := s.query(ctx, `SELECT c.oid, n.nspname, c.relname, greatest(c.reltuples, 0)::bigint, pg_table_size(c.oid)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relname IN ($1::text, lower($1::text)) AND c.relkind IN ('r', 'p', 'm', 'f')
		AND CASE WHEN $2::text = '' THEN pg_table_is_visible(c.oid) ELSE n.nspname IN ($2::text, lower($2::text)) END
		ORDER BY c.relname = $1::text DESC LIMIT 1`, value{text: ref.name}, value{text: ref.schema})
	if err != nil {
		return nil, err
	}
	t := &TableInfo{Name: name}
	if len(rows) == 0 {
		return t, nil
	}
	oid := value{text: rows[0][0]}
	t.schema, t.plain = rows[0][1], rows[0][2]
	t.Rows, t.Bytes = parseNumber(rows[0][3]), parseNumber(rows[0][4])
	columns, err := s.query(ctx, `SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typcategory
		FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, oid)
	if err != nil {
		return nil, err
	}
	for _, c := range columns {
		t.columns = append(t.columns, column{name: c[0], kind: c[1], number: c[2] == "N"})
	}
	t.Indexes, err = postgresIndexes(ctx, s, oid)
	return t, err
}

// postgresIndexes reads the valid indexes of a table with their order: bit 0
// of an option is DESC, bit 1 NULLS FIRST.
func postgresIndexes(ctx context.Context, s session, oid value) ([]Index, error) {
	rows, err := s.query(ctx, `SELECT c.relname, pg_get_indexdef(i.indexrelid), i.indpred IS NULL AND i.indexprs IS NULL AND am.amname = 'btree',
		coalesce(a.attname, ''), i.indoption[k.n - 1]::int, i.indisunique
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
		CROSS JOIN LATERAL generate_series(1, i.indnkeyatts) AS k(n)
		LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.n - 1]
		WHERE i.indrelid = $1::oid AND i.indisvalid ORDER BY c.relname, k.n`, oid)
	if err != nil {
		return nil, err
	}
	var indexes []Index
	for _, row := range rows {
		if len(indexes) == 0 || indexes[len(indexes)-1].Name != row[0] {
			indexes = append(indexes, Index{Name: row[0], definition: row[1], whole: row[2] == "t", unique: row[5] == "t"})
		}
		option := parseNumber(row[4])
		c := indexColumn{Name: row[3], Desc: option&1 != 0}
		if nullsFirst := option&2 != 0; nullsFirst != c.Desc {
			c.Nulls = map[bool]string{true: "FIRST", false: "LAST"}[nullsFirst]
		}
		last := &indexes[len(indexes)-1]
		last.Columns = append(last.Columns, c)
	}
	return indexes, nil
}

// postgresAgain copies a copy, with the live table's indexes as the catalog writes them.
func postgresAgain(ctx context.Context, s session, t *TableInfo, from, name string, indexed bool) error {
	if err := run(ctx, s, fmt.Sprintf("CREATE TEMP TABLE %s AS TABLE %s", name, from)); err != nil || !indexed {
		return err
	}
	for _, index := range t.Indexes {
		_, using, found := strings.Cut(index.definition, " USING ")
		if !found {
			return fmt.Errorf("index %s cannot be read: %s", index.Name, index.definition)
		}
		if err := run(ctx, s, fmt.Sprintf("CREATE INDEX ON %s USING %s", name, withoutTablespace(using))); err != nil {
			return fmt.Errorf("build %s: %w", index.Name, err)
		}
	}
	return nil
}

func withoutTablespace(definition string) string {
	return regexp.MustCompile(` TABLESPACE \S+`).ReplaceAllString(definition, "")
}

// pgNode is a node of EXPLAIN (FORMAT JSON).
type pgNode struct {
	NodeType     string   `json:"Node Type"`
	Relation     string   `json:"Relation Name"`
	Index        string   `json:"Index Name"`
	IndexCond    string   `json:"Index Cond"`
	Filter       string   `json:"Filter"`
	SortKey      []string `json:"Sort Key"`
	SortMethod   string   `json:"Sort Method"`
	SortKB       int64    `json:"Sort Space Used"`
	SortType     string   `json:"Sort Space Type"`
	PlanRows     float64  `json:"Plan Rows"`
	Rows         *float64 `json:"Actual Rows"`
	Loops        float64  `json:"Actual Loops"`
	Milliseconds float64  `json:"Actual Total Time"`
	Filtered     float64  `json:"Rows Removed by Filter"`
	Rechecked    float64  `json:"Rows Removed by Index Recheck"`
	SharedHit    int64    `json:"Shared Hit Blocks"`
	SharedRead   int64    `json:"Shared Read Blocks"`
	LocalHit     int64    `json:"Local Hit Blocks"`
	LocalRead    int64    `json:"Local Read Blocks"`
	Plans        []pgNode `json:"Plans"`
}

// postgresExplain explains, and executes within limit in a read-only transaction.
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
	return parsePostgresPlan(answer[0][0])
}

// parsePostgresPlan reads EXPLAIN's JSON.
func parsePostgresPlan(text string) (*Plan, error) {
	var explained []struct {
		Plan      pgNode
		Execution *float64 `json:"Execution Time"`
	}
	if err := json.Unmarshal([]byte(text), &explained); err != nil || len(explained) != 1 {
		return nil, errors.Join(errors.New("the plan cannot be read"), err)
	}
	root := explained[0].Plan
	p := &Plan{Buffers: root.SharedHit + root.SharedRead + root.LocalHit + root.LocalRead}
	if explained[0].Execution != nil {
		seconds := *explained[0].Execution / 1000
		p.ExecutionSeconds = &seconds
	}
	p.walk(root, 0)
	return p, nil
}

// walk adds a node's line and what is expensive in it.
func (p *Plan) walk(n pgNode, depth int) {
	name := n.NodeType
	if n.Index != "" {
		name += " using " + n.Index
	}
	if n.Relation != "" {
		name += " on " + n.Relation
	}
	line := strings.Repeat("  ", depth) + name
	examined := 0.0
	if n.Rows != nil {
		loops := max(1, n.Loops)
		line += fmt.Sprintf(": %s rows, %s", figure(*n.Rows*loops), duration(n.Milliseconds*loops/1000))
		examined = (*n.Rows + n.Filtered + n.Rechecked) * loops
	} else {
		line += fmt.Sprintf(": about %s rows", figure(n.PlanRows))
	}
	if n.IndexCond != "" {
		line += ", finds by " + masked(n.IndexCond)
	}
	if n.Filtered > 0 {
		line += fmt.Sprintf(", discards %s", figure(n.Filtered*max(1, n.Loops)))
	}
	p.Lines = append(p.Lines, line)
	if n.Relation != "" && n.NodeType != "Bitmap Index Scan" {
		p.RowsExamined += int64(examined)
	}
	p.expensive(n, examined)
	for _, child := range n.Plans {
		p.walk(child, depth+1)
	}
}

// expensive names what costs in a node.
func (p *Plan) expensive(n pgNode, examined float64) {
	const many = 1000
	switch {
	case strings.HasSuffix(n.NodeType, "Seq Scan") && n.Filter != "":
		p.Costs = append(p.Costs, fmt.Sprintf("reads all of %s (%s rows) to keep %s", n.Relation, figure(max(examined, n.PlanRows)), figure(kept(n))))
	case n.Relation != "" && n.Filtered*max(1, n.Loops) >= many && n.Filtered > 9**n.Rows:
		p.Costs = append(p.Costs, fmt.Sprintf("finds %s rows of %s by an index and discards %s of them", figure(examined), n.Relation, figure(n.Filtered*max(1, n.Loops))))
	case n.Relation != "" && n.Loops >= many:
		p.Costs = append(p.Costs, fmt.Sprintf("looks into %s %s times, once for each row of the other table", n.Relation, figure(n.Loops)))
	}
	if strings.HasSuffix(n.NodeType, "Sort") {
		p.Sorts = true
		input := n.PlanRows
		if len(n.Plans) > 0 {
			input = kept(n.Plans[0])
		}
		cost := fmt.Sprintf("sorts %s rows by %s", figure(input), strings.Join(n.SortKey, ", "))
		if n.SortType == "Disk" {
			cost += fmt.Sprintf(", on disk (%s): more than work_mem", size(n.SortKB<<10))
		}
		p.Costs = append(p.Costs, cost)
	}
}

// kept is how many rows a node hands on.
func kept(n pgNode) float64 {
	if n.Rows == nil {
		return n.PlanRows
	}
	return *n.Rows * max(1, n.Loops)
}

// masked hides the values in a condition: a parameter may be a secret.
func masked(condition string) string {
	return regexp.MustCompile(`'(?:[^']|'')*'|\b\d[\w.]*`).ReplaceAllString(condition, "…")
}
