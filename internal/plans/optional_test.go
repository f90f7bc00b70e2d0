package plans

import "testing"

func TestKnowNull(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ sql, null, given string }{
		{"SELECT a FROM t WHERE (:x IS NULL OR a = :x)", "SELECT a FROM t WHERE (TRUE OR a = :x)", "SELECT a FROM t WHERE ( a = :x)"},
		{"SELECT a FROM t WHERE :x::int IS NULL OR a = :x", "SELECT a FROM t WHERE TRUE OR a = :x", "SELECT a FROM t WHERE  a = :x"},
		{"SELECT a FROM t WHERE (a = :x OR CAST(:x AS int) is null)", "SELECT a FROM t WHERE (a = :x OR TRUE)", "SELECT a FROM t WHERE (a = :x )"},
		{"SELECT a FROM t WHERE ((:x IS NULL) OR a = :x)", "SELECT a FROM t WHERE (TRUE OR a = :x)", "SELECT a FROM t WHERE ( a = :x)"},
		{"SELECT a FROM t WHERE b AND :x IS NULL OR a = :x", "SELECT a FROM t WHERE b AND TRUE OR a = :x", "SELECT a FROM t WHERE b AND FALSE OR a = :x"},
		{
			"SELECT CASE WHEN :x IS NOT NULL THEN 1 END FROM t WHERE a > :x", "SELECT CASE WHEN FALSE THEN 1 END FROM t WHERE a > :x",
			"SELECT CASE WHEN TRUE THEN 1 END FROM t WHERE a > :x",
		},
		{"SELECT a FROM t WHERE :x IS NULL OR a = 1", "", ""},              // it is only tested
		{"SELECT a FROM t WHERE a = :x IS NULL AND b = :x", "", ""},        // PostgreSQL compares first
		{"SELECT a FROM t WHERE :x IS DISTINCT FROM a", "", ""},            // no test of NULL
		{"SELECT a FROM t WHERE ':x IS NULL' = :x AND :y IS NULL", "", ""}, // a string, another parameter
	} {
		null, given := c.null, c.given
		if null == "" {
			null, given = c.sql, c.sql
		}
		if got := KnowNull(c.sql, SQLite, "x", true); got != null {
			t.Errorf("%s\n%s, want\n%s", c.sql, got, null)
		}
		if got := KnowNull(c.sql, SQLite, "x", false); got != given {
			t.Errorf("%s\n%s, want\n%s", c.sql, got, given)
		}
	}
	if got := KnowNull("SELECT a FROM t WHERE (:x IS NULL OR a = :x)", Postgres, "x", false); got != "SELECT a FROM t WHERE (FALSE OR a = :x)" {
		t.Error(got)
	}
}
