package plans

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Plan is how a database runs one statement.
type Plan struct {
	// Nodes are the steps: for PostgreSQL the root of a tree, for the others a
	// list in the order of execution.
	Nodes []Node
	// ExecutionSeconds is how long the statement took; nil unless it was executed.
	ExecutionSeconds *float64
	SQL              string  // the statement; "" if it is not known
	Reads            float64 // rows that it reads as a Check expects or has counted; 0 if they are not known

	Rewritten Rewritten // MySQL's statement
}

// Node is one step of a plan. Fields that a database does not tell are zero.
type Node struct {
	Type     string `json:"Node Type"` // "Seq Scan", "ALL", "SEARCH o USING INDEX by_city (city=?)"
	Schema   string `json:"Schema"`
	Relation string `json:"Relation Name"` // the table that it reads; of MySQL and SQLite the alias
	Alias    string `json:"Alias"`
	Index    string `json:"Index Name"`

	Rows      float64  `json:"Plan Rows"` // the planner's estimate for one execution
	Startup   float64  `json:"Startup Cost"`
	Cost      float64  `json:"Total Cost"`
	Strategy  string   `json:"Strategy"`
	IndexCond string   `json:"Index Cond"`
	Recheck   string   `json:"Recheck Cond"`
	HashCond  string   `json:"Hash Cond"`
	Filter    string   `json:"Filter"`
	SortKey   []string `json:"Sort Key"`
	Role      string   `json:"Parent Relationship"`
	Nodes     []Node   `json:"Plans"`

	// What PostgreSQL measured: averages of one execution, which was repeated Loops times.
	ActualRows   *float64 `json:"Actual Rows"`
	Loops        float64  `json:"Actual Loops"`
	Milliseconds float64  `json:"Actual Total Time"`
	Removed      float64  `json:"Rows Removed by Filter"`
	Rechecked    float64  `json:"Rows Removed by Index Recheck"`
	SortKB       int64    `json:"Sort Space Used"`
	SortType     string   `json:"Sort Space Type"`
	SharedHit    int64    `json:"Shared Hit Blocks"`
	SharedRead   int64    `json:"Shared Read Blocks"`
	LocalHit     int64    `json:"Local Hit Blocks"`
	LocalRead    int64    `json:"Local Read Blocks"`

	Extra string `json:"-"` // MySQL's remarks: "Using where; Using filesort"

	id, parent int     // MySQL: the SELECT; SQLite: the step and the one around it
	passing    float64 // MySQL: percent of the rows that pass the conditions
}

// Scans reports whether a step reads all of a table or of an index.
func (n Node) Scans() bool {
	switch n.Type {
	case "ALL", "index":
		return true
	}
	// SQLite's SEARCH without an index looks for a minimum or a maximum.
	return strings.HasSuffix(n.Type, "Seq Scan") || strings.HasPrefix(n.Type, "SCAN ") ||
		strings.HasPrefix(n.Type, "SEARCH ") && !strings.Contains(n.Type, " USING ")
}

// Sorts reports whether a step sorts rows.
func (n Node) Sorts() bool {
	return strings.HasSuffix(n.Type, "Sort") || strings.HasPrefix(n.Type, "USE TEMP B-TREE FOR") || strings.Contains(n.Extra, "Using filesort")
}

// ReadPostgres reads the document of EXPLAIN (FORMAT JSON), with ANALYZE,
// BUFFERS and VERBOSE or without.
func ReadPostgres(document string) (*Plan, error) {
	var explained []struct {
		Plan      Node
		Execution *float64 `json:"Execution Time"`
	}
	if err := json.Unmarshal([]byte(document), &explained); err != nil {
		return nil, fmt.Errorf("read a plan: %w", err)
	}
	if len(explained) != 1 {
		return nil, errors.New("read a plan: EXPLAIN returned no plan")
	}
	p := &Plan{Nodes: []Node{explained[0].Plan}}
	if milliseconds := explained[0].Execution; milliseconds != nil {
		seconds := *milliseconds / 1000
		p.ExecutionSeconds = &seconds
	}
	return p, nil
}

// ReadMySQL reads the rows of EXPLAIN as a table, in the form of MariaDB (10
// columns, 11 with EXTENDED) or MySQL (12). rewritten is the statement as the
// server rewrote it (note 1003 of SHOW WARNINGS), "" if it is not known.
func ReadMySQL(rows [][]string, rewritten string) (*Plan, error) {
	layouts := map[int][]string{
		10: {"id", "select", "table", "type", "possible", "key", "length", "ref", "rows", "extra"},
		11: {"id", "select", "table", "type", "possible", "key", "length", "ref", "rows", "filtered", "extra"},
		12: {"id", "select", "table", "partitions", "type", "possible", "key", "length", "ref", "rows", "filtered", "extra"},
	}
	p := &Plan{Rewritten: ReadRewritten(rewritten)}
	for _, row := range rows {
		layout, ok := layouts[len(row)]
		if !ok {
			return nil, fmt.Errorf("read a plan: EXPLAIN returned %d columns; 10 to 12 are known", len(row))
		}
		cell := func(name string) string {
			if i := slices.Index(layout, name); i >= 0 {
				return row[i]
			}
			return ""
		}
		n := Node{
			Type: cell("type"), Relation: cell("table"), Alias: cell("table"), Index: cell("key"), Extra: cell("extra"),
			id: int(number(cell("id"))), Rows: float64(number(cell("rows"))), passing: 100,
		}
		if share, err := strconv.ParseFloat(cell("filtered"), 64); err == nil && share > 0 {
			n.passing = share
		}
		p.Nodes = append(p.Nodes, n)
	}
	return p, nil
}

// ReadSQLite reads the rows of EXPLAIN QUERY PLAN: id, parent, unused, detail.
func ReadSQLite(rows [][]string) (*Plan, error) {
	p := &Plan{}
	for _, row := range rows {
		if len(row) != 4 {
			return nil, fmt.Errorf("read a plan: EXPLAIN QUERY PLAN returned %d columns, not 4", len(row))
		}
		n := Node{id: int(number(row[0])), parent: int(number(row[1])), Type: row[3]}
		words, read := strings.CutPrefix(row[3], "SCAN ")
		if !read {
			words, read = strings.CutPrefix(row[3], "SEARCH ")
		}
		if read {
			name, _, _ := strings.Cut(words, " USING ")
			name, _, _ = strings.Cut(name, " VIRTUAL TABLE ")
			n.Relation = strings.TrimSuffix(name, " LEFT-JOIN")
			n.Alias = n.Relation
		}
		p.Nodes = append(p.Nodes, n)
	}
	return p, nil
}
