package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/plans"
)

// describe gives each table of a statement the columns named, and no index.
func describe(s *selection, columns map[string]string) {
	for i, ref := range s.tables {
		t := &plans.Table{Name: ref.Name, Full: ref.TableName}
		for _, name := range strings.Fields(columns[ref.Name]) {
			t.Columns = append(t.Columns, plans.Column{Name: name})
		}
		s.tables[i].described = t
	}
}

func TestAdvise(t *testing.T) {
	columns := map[string]string{
		"game_record": "id app_id token prize_grade score start_time",
		"orders":      "id createtime goods_name users_id",
		"users":       "id nickname city",
	}
	for _, c := range []struct {
		sql  string
		want []string // table (columns)
	}{
		{gameRecord, []string{"game_record (app_id, token, prize_grade, score)", "game_record (prize_grade, score)"}},
		{"select id from orders where users_id = 3", []string{"orders (users_id)"}},
		{"SELECT id FROM orders WHERE 3 = users_id AND createtime > now() - interval '1 day'", []string{"orders (users_id, createtime)"}},
		{"SELECT id FROM orders WHERE users_id = 3 AND createtime BETWEEN ? AND ? ORDER BY id DESC", []string{
			"orders (users_id, id DESC, createtime)", "orders (users_id, createtime)",
		}},
		{"SELECT id FROM orders WHERE users_id = 3 ORDER BY createtime DESC, id DESC", []string{"orders (users_id, createtime DESC, id DESC)"}},
		{"SELECT id FROM orders WHERE users_id = 3 ORDER BY createtime DESC, id", []string{"orders (users_id, createtime DESC, id)"}},
		{"SELECT id FROM orders ORDER BY createtime DESC NULLS LAST LIMIT 5", []string{"orders (createtime DESC NULLS LAST)"}},
		{"SELECT id FROM orders WHERE users_id IN (1, 2) AND lower(goods_name) = 'x'", []string{"orders (users_id)"}},
		{"SELECT id FROM orders WHERE users_id = 1 OR goods_name = 'x'", []string{"orders (users_id)", "orders (goods_name)"}},
		{"SELECT id FROM orders WHERE id = 9 AND (users_id = 1 OR goods_name IN ('x') AND createtime < ?)", []string{
			"orders (id)", "orders (id, users_id)", "orders (id, goods_name, createtime)",
		}},
		{"SELECT id FROM orders WHERE users_id = 1 OR users_id = 2", []string{"orders (users_id)"}},
		{"SELECT id FROM orders WHERE users_id = 1 OR lower(goods_name) = 'x'", nil},
		{"SELECT id FROM orders WHERE users_id = 1 XOR createtime = 2", nil},
		{"SELECT o.id FROM orders o JOIN users u ON u.id = o.users_id WHERE u.city = 'x' OR o.goods_name = 'y'", []string{"orders (users_id)", "users (id)"}},
		{"SELECT id FROM orders WHERE users_id > 1 AND createtime < 5", []string{"orders (users_id)", "orders (createtime)"}},
		{"SELECT id FROM orders WHERE (users_id = 1 AND (goods_name = 'x'))", []string{"orders (users_id, goods_name)"}},
		{"SELECT users_id, count(*) FROM orders WHERE goods_name IS NULL GROUP BY users_id ORDER BY count(*) DESC", []string{"orders (goods_name, users_id)"}},
		{"SELECT lower(goods_name) AS createtime FROM orders ORDER BY createtime", nil},
		{"SELECT goods_name AS g, createtime AS createtime FROM orders ORDER BY createtime", []string{"orders (createtime)"}},
		{"SELECT o.id FROM orders AS o JOIN users u ON u.id = o.users_id WHERE u.city = :city ORDER BY o.createtime LIMIT 10", []string{
			"orders (createtime)", "orders (users_id)", "users (city)", "users (id, city)",
		}},
		{"SELECT 1 FROM orders, users WHERE orders.users_id = users.id AND city = 'x'", []string{
			"orders (users_id)", "users (city)", "users (id, city)",
		}},
		{"SELECT id FROM orders WHERE goods_name LIKE 'a%' AND createtime IS DISTINCT FROM now()", nil},
	} {
		s, err := readSelect(c.sql, plans.Postgres)
		if err != nil {
			t.Errorf("%s: %v", c.sql, err)
			continue
		}
		describe(s, columns)
		d, err := s.advise()
		if err != nil {
			t.Errorf("%s: %v", c.sql, err)
			continue
		}
		var got []string
		for _, candidate := range d.Candidates {
			got = append(got, candidate.Table+" ("+plans.ColumnList(candidate.Columns)+")")
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s%s", c.sql, diff, strings.Join(d.Notes, "\n"))
		}
	}
}

// What an index has already is no candidate.
func TestAdviseCovered(t *testing.T) {
	s, err := readSelect(gameRecord, plans.MySQL|plans.BackslashEscapes)
	if err != nil {
		t.Fatal(err)
	}
	describe(s, map[string]string{"game_record": "app_id token prize_grade score"})
	s.tables[0].described.Indexes = []plans.Index{{Name: "seed", Whole: true, Columns: []plans.IndexColumn{{Name: "prize_grade", Desc: true}, {Name: "score", Desc: true}, {Name: "x"}}}}
	d, err := s.advise()
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Candidates) != 1 || len(d.Candidates[0].Columns) != 4 || len(d.Covered) != 1 {
		t.Errorf("candidates %v, covered %v", d.Candidates, d.Covered)
	}
	want := "CREATE INDEX game_record_app_id_token_prize_grade_score ON game_record (app_id, token, prize_grade, score) ALGORITHM=INPLACE LOCK=NONE"
	if d.Candidates[0].Create != want {
		t.Errorf("create: %s", d.Candidates[0].Create)
	}
	if len(d.Notes) != 1 || !strings.Contains(d.Notes[0], "score != -1") {
		t.Errorf("notes: %q", d.Notes)
	}
}

// A unique index finds the row; more columns find nothing more.
func TestAdviseUnique(t *testing.T) {
	s, err := readSelect("SELECT 1 FROM orders o JOIN users u ON u.id = o.users_id WHERE u.city = 'x'", plans.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	describe(s, map[string]string{"orders": "id users_id", "users": "id city"})
	s.tables[1].described.Indexes = []plans.Index{{Name: "users_pkey", Whole: true, Unique: true, Columns: []plans.IndexColumn{{Name: "id"}}}}
	d, err := s.advise()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range d.Candidates {
		got = append(got, plans.ColumnList(c.Columns))
	}
	if diff := cmp.Diff([]string{"users_id", "city"}, got); diff != "" || len(d.Covered) != 1 {
		t.Errorf("candidates %v, covered %v", got, d.Covered)
	}
}

func TestReadSelectRefuses(t *testing.T) {
	for sql, says := range map[string]string{
		"":                                      "one plain SELECT",
		"DELETE FROM t":                         "one plain SELECT",
		"WITH a AS (SELECT 1) SELECT 1 FROM a":  "one plain SELECT",
		"SELECT 1":                              "no FROM",
		"SELECT 1 FROM t UNION SELECT 2 FROM t": "UNION",
		"SELECT 1 FROM (SELECT 1) x":            "something other than a table",
		"SELECT 1 FROM f(1)":                    "\"(\" in FROM",
		"SELECT 1 FROM a RIGHT JOIN b ON a.x = b.x": "RIGHT",
		"SELECT 1 FROM a JOIN b USING (x)":          "USING",
		"SELECT 1 FROM t WHERE a = 'x":              "1:27: this ' is not closed",
		"SELECT 1 FROM t WHERE (a = 1":              "( is not closed",
		"SELECT 1 FROM t) WHERE a = 1":              ") closes nothing",
		"SELECT 1 FROM t; DELETE FROM t":            "several statements",
		"SELECT 1 FROM t WHERE a = $1":              "write parameters as ? or :name",
		"SELECT 1 FROM t GROUP a":                   "without BY",
		"SELECT 1 INTO x FROM t":                    "INTO",
		"SELECT 1 FROM t /* open":                   "/* is not closed",
		"SELECT 1 FROM a JOIN":                      "something other than a table",
	} {
		if s, err := readSelect(sql, plans.Postgres); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v; want %q", sql, s, err, says)
		}
	}
}

func TestRender(t *testing.T) {
	s, err := readSelect("SELECT g.* FROM app.game_record g WHERE g.a = ? -- why\n AND b = :name LIMIT ? ;", plans.MySQL|plans.BackslashEscapes)
	if err != nil {
		t.Fatal(err)
	}
	got := s.render(func(i int) string { return "$" + string(rune('0'+i)) }, map[int]string{0: "copy"})
	if want := "SELECT g.* FROM copy g WHERE g.a = $1 -- why\n AND b = $2 LIMIT $3"; got != want {
		t.Errorf("rendered %q", got)
	}
	var names []string
	for _, p := range s.params {
		names = append(names, p.name)
	}
	if diff := cmp.Diff([]string{"a", "name", "3"}, names); diff != "" || !s.params[2].count || !s.params[0].equal {
		t.Errorf("parameters %v %+v", names, s.params)
	}
}

// Reading never panics, and what is read renders as it was.
func FuzzReadSelect(f *testing.F) {
	for _, sql := range []string{
		gameRecord, "SELECT a FROM t", "select 'a''b', \"c\" from `t` where x between 1 and 2 or y in (1,2)",
		"SELECT a FROM t JOIN u ON t.a = u.b, v WHERE (a = 1 AND b IS NULL) GROUP BY a ORDER BY 1 LIMIT ?",
		"SELECT /* x */ 1e-5 FROM t -- end", "SELECT FROM ORDER BY", "SELECT a FROM t WHERE a = ANY(:x::int[])", "SELECT a FROM t WHERE = =", "SELECT 1 FROM a.b.c",
	} {
		f.Add(sql, true)
		f.Add(sql, false)
	}
	f.Fuzz(func(t *testing.T, sql string, mysql bool) {
		dialect := plans.Postgres
		if mysql {
			dialect = plans.MySQL | plans.BackslashEscapes
		}
		s, err := readSelect(sql, dialect)
		if err != nil {
			return
		}
		number := 0
		same := s.render(func(int) string {
			for i := range s.params {
				if i == number {
					number++
					return s.text[s.reader.Tokens[s.params[i].token].Start:s.reader.Tokens[s.params[i].token].End]
				}
			}
			return ""
		}, nil)
		if same != s.text || !strings.HasPrefix(sql, s.text) {
			t.Errorf("%q renders as %q", sql, same)
		}
		describe(s, map[string]string{})
		if _, err := s.advise(); err == nil && len(s.conditions)+len(s.ors) > 0 {
			t.Errorf("%q: conditions on columns that no table has", sql)
		}
	})
}
