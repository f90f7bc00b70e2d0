package plans

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnderstood(t *testing.T) {
	const text = "/* select#1 */ select \"d\".\"o\".\"a,\"\"b\" AS \"x\",'it''s \\' from `q`' AS `s`,`v`.`c``d` AS `y`,f(`d`.`o`.`z`,1) AS `z` from `d`.`orders` `o` join `d`.`v` where `d`.`o`.`k` = 'x' and `d`.`o`.`f` = `v`.`g`"
	u := ReadRewritten(text)
	if diff := cmp.Diff(map[string]ColumnRef{"x": {"o", `a,"b`}, "y": {"v", "c`d"}}, u.Outputs()); diff != "" {
		t.Errorf("outputs (-want +got):\n%s", diff)
	}
	tables := map[string]TableName{}
	for _, found := range u.Tables() {
		tables[found.Alias] = found.TableName
	}
	if tables["o"] != (TableName{"d", "orders"}) || tables["v"] != (TableName{"d", "v"}) {
		t.Errorf("tables %v", tables)
	}
	if constant, join := u.equalities("o"); !cmp.Equal(constant, []string{"k"}) || !cmp.Equal(join, []string{"f"}) {
		t.Errorf("constant %v, join %v", constant, join)
	}
}

func FuzzUnderstood(f *testing.F) {
	f.Add("select `d`.`o`.`a` AS `x`,'s' AS `s` from `d`.`orders` `o` where `d`.`o`.`k` = 'x'")
	f.Add("select `")
	f.Add("'\\")
	f.Fuzz(func(_ *testing.T, text string) {
		u := ReadRewritten(text)
		u.Outputs()
		u.Tables()
		u.equalities("o")
	})
}

// What a server or a proxy sends as a plan may be anything.
func FuzzReadPlan(f *testing.F) {
	f.Add(`[{"Plan":{"Node Type":"Sort","Plans":[{"Node Type":"Seq Scan","Relation Name":"orders","Plan Rows":60000}]},"Execution Time":1.5}]`)
	f.Add("SEARCH o USING INDEX by_city (city=? AND id<?)")
	f.Add("[{}]")
	f.Fuzz(func(_ *testing.T, text string) {
		c := Check{Key: []KeyColumn{{Output: "id"}}, Window: 10, Catalog: Catalog{Dialect: Postgres, Query: func(string, ...string) ([][]string, error) { return nil, nil }}}
		if p, err := ReadPostgres(text); err == nil {
			_, _ = c.judgePostgres(p)
		}
		row := []string{"1", "0", "0", text}
		if p, err := ReadSQLite([][]string{row, {"2", "1", "0", text}}); err == nil {
			p.leads(1)
			p.Nodes[0].equal()
		}
		_, _ = ReadMySQL([][]string{{"1", "", text, "ref", "", "", "", text, text, text}}, text)
	})
}
