package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// explainName is the prepared statement that Check explains. It is dropped
// before the transaction ends.
const explainName = "spillway_explain"

// Check implements feed.Source. It explains the statement for a window and the
// one for the rows behind a key, as they are planned for unknown parameters.
// It returns an error, too, when a key column's table lets it be NULL, and logs a
// warning when no unique index says that the key is unique.
func (f *Feed) Check(ctx context.Context, window int) error {
	if err := f.check(ctx, window); err != nil {
		return fmt.Errorf("check feed %s: %w", f.def.Name, err)
	}
	return nil
}

func (f *Feed) check(ctx context.Context, window int) error {
	pooled, err := f.db.acquire(ctx)
	if err != nil {
		return err
	}
	defer pooled.Release()
	limited, cancel := context.WithTimeout(ctx, f.db.bounds.StatementTimeout+clientGrace)
	defer cancel()
	conn := pooled.Conn().PgConn()
	description, err := f.describe(limited, conn)
	if err != nil {
		return err
	}
	c, err := newColumns(f.def, description.Fields)
	if err != nil {
		return err
	}
	key, err := readKeySources(limited, conn, c)
	if err != nil {
		return err
	}
	if err := checkNotNull(key); err != nil {
		return err
	}
	if err := f.warnUnlessUnique(limited, conn, key); err != nil {
		return err
	}
	a := adviser{key: f.def.Key, sources: key, indexed: func(table string, columns []string) (bool, error) {
		return hasIndex(limited, conn, table, columns)
	}}
	for _, s := range []shape{{rows: powerOfTwo(window)}, {rows: powerOfTwo(window), after: true}} {
		w := f.writer()
		text := w.write(s)
		plan, err := explain(limited, conn, text, w.parameters())
		if err != nil {
			return err
		}
		p := planReader{
			window:     float64(s.rows),
			size:       func(scan planNode) (float64, error) { return tableSize(limited, conn, scan) },
			ordersFeed: a.ordersFeed,
		}
		if err := p.walk(plan, p.window, wrappingLimits); err != nil {
			return err
		}
		if err := a.verdict(p.findings); err != nil {
			return err
		}
	}
	return nil
}

// planNode is one node of a plan, as EXPLAIN (VERBOSE, FORMAT JSON) writes it.
type planNode struct {
	Type      string     `json:"Node Type"`
	Role      string     `json:"Parent Relationship"`
	Schema    string     `json:"Schema"`
	Relation  string     `json:"Relation Name"`
	Alias     string     `json:"Alias"`
	Rows      float64    `json:"Plan Rows"`
	IndexCond string     `json:"Index Cond"`
	Recheck   string     `json:"Recheck Cond"`
	HashCond  string     `json:"Hash Cond"`
	Filter    string     `json:"Filter"`
	Plans     []planNode `json:"Plans"`
}

// table returns the name of the table that the node scans, quoted where needed.
func (n planNode) table() string {
	if plainName.MatchString(n.Schema) && plainName.MatchString(n.Relation) {
		return n.Schema + "." + n.Relation
	}
	return quoteIdentifier(n.Schema) + "." + quoteIdentifier(n.Relation)
}

// explain returns the generic plan of a statement with that many parameters. It
// runs in a transaction, which holds one server connection behind any pooler.
func explain(ctx context.Context, conn *pgconn.PgConn, sql string, parameters int) (planNode, error) {
	err := run(ctx, conn, "BEGIN; SET LOCAL plan_cache_mode = force_generic_plan; PREPARE "+explainName+" AS "+sql)
	if err != nil {
		return planNode{}, errors.Join(err, run(ctx, conn, "ROLLBACK"))
	}
	arguments := strings.TrimSuffix(strings.Repeat("NULL, ", parameters), ", ")
	results, err := conn.Exec(ctx, "SAVEPOINT prepared; EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE "+explainName+"("+arguments+")").ReadAll()
	end := "DEALLOCATE " + explainName + "; ROLLBACK"
	if err != nil {
		return planNode{}, errors.Join(err, run(ctx, conn, "ROLLBACK TO SAVEPOINT prepared; "+end))
	}
	if err := run(ctx, conn, end); err != nil {
		return planNode{}, err
	}
	return decodePlan(results)
}

// tableSize returns the planner's estimate of a table's rows. It follows the
// table's size on disk, so it serves tables that were never analysed, too.
func tableSize(ctx context.Context, conn *pgconn.PgConn, n planNode) (float64, error) {
	results, err := conn.Exec(ctx, "EXPLAIN (FORMAT JSON) SELECT FROM "+n.table()).ReadAll()
	if err != nil {
		return 0, fmt.Errorf("estimate the rows of %s: %w", n.table(), err)
	}
	plan, err := decodePlan(results)
	return plan.Rows, err
}

func run(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	_, err := conn.Exec(ctx, sql).ReadAll()
	return err
}

// decodePlan reads the one value of the last result.
func decodePlan(results []*pgconn.Result) (planNode, error) {
	var documents []struct{ Plan planNode }
	rows := results[len(results)-1].Rows
	if len(rows) != 1 || len(rows[0]) != 1 {
		return planNode{}, errors.New("read a plan: EXPLAIN gave no document")
	}
	if err := json.Unmarshal(rows[0][0], &documents); err != nil {
		return planNode{}, fmt.Errorf("read a plan: %w", err)
	}
	if len(documents) != 1 {
		return planNode{}, errors.New("read a plan: EXPLAIN gave no plan")
	}
	return documents[0].Plan, nil
}
