package storetest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// PlanBackend is a database whose check at start is compared with what statements read.
type PlanBackend struct {
	Name   string // in docs/explanation/start-check.md
	InList string // compares with the values of the parameter list: IN (:list)
	Scalar bool   // that is one value
	Exec   func(t *testing.T, sql string)
	// Analyze is a format for a table. INDEX and TABLE stand for names in DropIndex.
	Analyze, DropIndex string
	Source             func(def feed.Definition) (feed.Source, error)
	// Judged returns how many rows the last check expected or counted, at most in one statement.
	Judged func() float64
	// Reads returns how many rows of tables the statement for r reads.
	Reads func(t *testing.T, source feed.Source, r feed.Range) float64
}

const (
	planWindow = 200
	fewReads   = 10_000  // what reads as many is not refused
	manyReads  = 100_000 // what reads more is not accepted
)

// planStatement is a feed that is tried with some of planIndexes.
type planStatement struct {
	sql     string // TABLE stands for the table, LIST for InList
	key     []string
	params  string // of planParams, with blanks between
	filter  string
	indexes string // of planIndexes, with blanks between; the primary key is always there
}

var planStatements = []planStatement{
	{"SELECT id, status FROM TABLE", []string{"id"}, "", "", "none customer"},
	{"SELECT id, at FROM TABLE", []string{"at", "id"}, "", "", "none at_id"},
	{"SELECT id, at FROM TABLE", []string{"at", "id asc"}, "", "", "none at_id"},
	{
		"SELECT id, status FROM TABLE WHERE customer = :customer",
		[]string{"id"},
		"customer", "", "none customer customer_id customer+customer_id",
	},
	{
		"SELECT id, status FROM TABLE WHERE customer = :customer AND status = :status",
		[]string{"id"},
		"customer status", "", "none customer customer_id customer_status_id status",
	},
	{
		"SELECT id, status FROM TABLE WHERE customer = :customer AND status <> 'returned'",
		[]string{"id"},
		"customer", "", "none customer customer_id",
	},
	{
		"SELECT id, status FROM TABLE WHERE customer = :customer AND deleted IS NULL",
		[]string{"id"},
		"customer", "", "none customer customer_id",
	},
	{
		"SELECT id, status FROM TABLE WHERE customer = :customer AND status IN ('new', 'paid')",
		[]string{"id"},
		"customer", "", "none customer customer_id customer_status_id",
	},
	{
		"SELECT id, status FROM TABLE WHERE customer = :customer AND status LIST",
		[]string{"id"},
		"customer list", "", "none customer customer_id customer+customer_id",
	},
	{
		"SELECT id, status FROM TABLE WHERE customer = :customer AND amount >= :amount",
		[]string{"id"},
		"customer amount", "", "none customer customer_id",
	},
	{"SELECT id, at FROM TABLE WHERE customer = :customer", []string{"at", "id"}, "customer", "", "none customer customer_at at_id"},
	{"SELECT id, status FROM TABLE WHERE customer = :customer", []string{"id"}, "customer", "status", "none customer customer_id"},
	{"SELECT id, status FROM TABLE WHERE status = :status", []string{"id"}, "status", "", "none status status_id"},
	{"SELECT id, status FROM TABLE", []string{"id"}, "", "status", "none status status_id"},
	{"SELECT id, kind FROM TABLE WHERE kind = :kind", []string{"id"}, "kind", "", "none kind kind_id"},
	{"SELECT id, kind FROM TABLE WHERE kind = :kind AND status = :status", []string{"id"}, "kind status", "", "none kind kind_id status_id"},
	{"SELECT id, deleted FROM TABLE WHERE deleted IS NULL", []string{"id"}, "", "", "none deleted_id"},
	{"SELECT id, deleted FROM TABLE WHERE deleted IS NOT NULL", []string{"id"}, "", "", "none deleted_id"},
	{"SELECT id, status FROM TABLE WHERE status <> 'shipped'", []string{"id"}, "", "", "none status_id"},
	{"SELECT id, amount FROM TABLE WHERE amount >= :amount", []string{"id"}, "amount", "", "none amount"},
	{"SELECT o.id, c.city FROM TABLE o JOIN customers c ON c.id = o.customer", []string{"id"}, "", "", "none customer"},
	{
		"SELECT o.id, c.city FROM TABLE o JOIN customers c ON c.id = o.customer WHERE o.customer = :customer",
		[]string{"id"},
		"customer", "", "none customer customer_id",
	},
	{
		"SELECT o.id, c.city FROM TABLE o JOIN customers c ON c.id = o.customer WHERE c.city = 3",
		[]string{"id"},
		"", "", "none customer customer_id",
	},
}

// planIndexes are the columns of indexes, by name. With + between names there are several.
var planIndexes = map[string]string{
	"customer": "customer", "customer_id": "customer, id DESC", "customer_status_id": "customer, status, id DESC",
	"customer_at": "customer, at DESC",
	"at_id":       "at DESC, id DESC", "status": "status", "status_id": "status, id DESC", "kind": "kind", "kind_id": "kind, id DESC",
	"deleted_id": "deleted, id DESC", "amount": "amount",
}

var planParams = map[string]param.Param{
	"customer": {Name: "customer", Type: param.Integer},
	"status":   {Name: "status", Type: param.Text},
	"list":     {Name: "list", Type: param.Text, ListMax: 2},
	"kind":     {Name: "kind", Type: param.Integer},
	"amount":   {Name: "amount", Type: param.Integer},
}

// planRow is a row of a table; the columns are those of planIndexes.
type planRow struct {
	customer, kind, amount, deleted int // deleted: -1 is NULL
	status                          string
}

func (r planRow) value(column string) string {
	switch column {
	case "customer":
		return strconv.Itoa(r.customer)
	case "kind":
		return strconv.Itoa(r.kind)
	case "amount":
		return "500000"
	}
	return r.status
}

// planData returns the rows of three tables.
func planData(n int) map[string][]planRow {
	random := rand.New(rand.NewPCG(1, 2))
	data := make(map[string][]planRow)
	for i := range n {
		deleted := -1
		if random.IntN(10) == 0 {
			deleted = i
		}
		status := []string{"new", "paid", "shipped", "returned"}[random.IntN(4)]
		row := planRow{1 + random.IntN(n/10), random.IntN(50), random.IntN(1_000_000), deleted, status}
		data["uniform"] = append(data["uniform"], row)
		skewed := row
		if random.IntN(2) == 0 {
			skewed.customer = 1
		}
		skewed.kind = int(50 * math.Pow(random.Float64(), 4))
		switch share := random.IntN(1000); {
		case share < 1:
			skewed.status = "returned"
		case share < 20:
			skewed.status = "new"
		case share < 100:
			skewed.status = "paid"
		default:
			skewed.status = "shipped"
		}
		data["skewed"] = append(data["skewed"], skewed)
		together := row // what is rare is old, and a customer's orders have one status
		together.customer = 1 + i/10
		together.kind = i * 50 / n
		together.status = []string{"returned", "shipped", "paid", "new"}[min(3, 2*i/n+together.customer%2+random.IntN(2))]
		data["correlated"] = append(data["correlated"], together)
	}
	return data
}

// fill creates a table with rows.
func (b PlanBackend) fill(t *testing.T, table string, rows []planRow) {
	t.Helper()
	b.Exec(t, "CREATE TABLE "+table+" (id INTEGER NOT NULL PRIMARY KEY, customer INTEGER NOT NULL, kind INTEGER NOT NULL, "+
		"amount INTEGER NOT NULL, deleted INTEGER, at INTEGER NOT NULL, status VARCHAR(20) NOT NULL)")
	const batch = 5000
	for first := 0; first < len(rows); first += batch {
		var text strings.Builder
		for i, r := range rows[first:min(first+batch, len(rows))] {
			deleted := "NULL"
			if r.deleted >= 0 {
				deleted = strconv.Itoa(r.deleted)
			}
			id := first + i
			fmt.Fprintf(&text, ",(%d,%d,%d,%d,%s,%d,'%s')", id, r.customer, r.kind, r.amount, deleted, id/2, r.status)
		}
		b.Exec(t, "INSERT INTO "+table+" VALUES "+text.String()[1:])
	}
}

// planCase is the outcome for one statement.
type planCase struct {
	accepted      bool
	judged, reads float64
}

func (c planCase) String() string {
	verdict := "accepted"
	if !c.accepted {
		verdict = "refused"
	}
	return fmt.Sprintf("%s: %s, %s", verdict, rounded(c.judged), rounded(c.reads))
}

// Plans compares the check of feeds at start with what their statements read, and writes the results to
// docs/explanation/start-check.md if update is set.
func Plans(t *testing.T, b PlanBackend, update bool) {
	n := 200_000
	if testing.Short() {
		n = 110_000
	}
	data := planData(n)
	var customers strings.Builder
	for id := range n/10 + 1 {
		fmt.Fprintf(&customers, ",(%d,%d)", id+1, id*7919%1000)
	}
	b.Exec(t, "CREATE TABLE customers (id INTEGER NOT NULL PRIMARY KEY, city INTEGER NOT NULL)")
	b.Exec(t, "INSERT INTO customers VALUES "+customers.String()[1:])
	if analyze := fmt.Sprintf(b.Analyze, "customers"); strings.HasPrefix(analyze, "ANALYZE TABLE ") {
		b.Exec(t, analyze) // InnoDB does so at some later time, and then plans change
	}
	results := make(map[string]map[string]planCase) // by statement and index, then table
	for _, table := range []string{"uniform", "skewed", "correlated"} {
		if testing.Short() && table == "correlated" {
			continue
		}
		b.fill(t, table, data[table])
		for name := range b.eachIndex(t, table) {
			for i, s := range planStatements {
				if !slices.Contains(strings.Fields(s.indexes), name) || testing.Short() && i%2 > 0 {
					continue
				}
				c := b.try(t, s, table, data[table])
				for again := 0; again < 10 && c.accepted && c.judged == 0 && c.reads > manyReads; again++ {
					c = b.try(t, s, table, data[table]) // a busy machine did not count the rows in time
				}
				title := s.title() + " | " + name
				if results[title] == nil {
					results[title] = make(map[string]planCase)
				}
				results[title][table] = c
				wrong := c.accepted && c.reads > manyReads || !c.accepted && c.reads <= fewReads
				before, known := results[s.title()+" | none"][table]
				worse := known && before.accepted && !c.accepted && c.reads <= before.reads
				if (wrong || worse) && table != "correlated" {
					t.Errorf("%s, %s, %s (without the index %s)", table, title, c, before)
				}
			}
		}
	}
	if update && !testing.Short() {
		b.document(t, results)
	}
}

// eachIndex creates the indexes of each name in turn, "none" first, and drops them.
func (b PlanBackend) eachIndex(t *testing.T, table string) func(yield func(string) bool) {
	names := []string{"none"}
	for _, s := range planStatements {
		for _, name := range strings.Fields(s.indexes) {
			brief := name == "customer" || name == "customer_id"
			if !slices.Contains(names, name) && (brief || !testing.Short()) {
				names = append(names, name)
			}
		}
	}
	return func(yield func(string) bool) {
		for _, name := range names {
			parts := strings.Split(name, "+")
			if name == "none" {
				parts = nil
			}
			for _, part := range parts {
				b.Exec(t, fmt.Sprintf("CREATE INDEX %s_%s ON %s (%s)", table, part, table, planIndexes[part]))
			}
			b.Exec(t, fmt.Sprintf(b.Analyze, table))
			if !yield(name) {
				return
			}
			for _, part := range parts {
				b.Exec(t, strings.NewReplacer("INDEX", table+"_"+part, "TABLE", table).Replace(b.DropIndex))
			}
		}
	}
}

func (s planStatement) title() string {
	text := "`" + s.sql + "` by " + strings.Join(s.key, ", ")
	if s.filter != "" {
		text += ", filter " + s.filter
	}
	return text
}

func (b PlanBackend) try(t *testing.T, s planStatement, table string, rows []planRow) planCase {
	t.Helper()
	def := feed.Definition{Name: "/" + table, SQL: strings.NewReplacer("TABLE", table, "LIST", b.InList).Replace(s.sql)}
	for _, k := range s.key {
		name, direction, _ := strings.Cut(k, " ")
		def.Key = append(def.Key, feed.KeyColumn{Name: name, Ascending: direction == "asc"})
	}
	var columns []string
	for _, name := range strings.Fields(s.params) {
		p := planParams[name]
		if b.Scalar {
			p.ListMax = 0
		}
		def.Params = append(def.Params, p)
		columns = append(columns, name)
	}
	if s.filter != "" {
		def.Params = append(def.Params, param.Filter(s.filter, param.Text))
		columns = append(columns, s.filter)
	}
	source, err := b.Source(def)
	if err != nil {
		t.Fatal(err)
	}
	err = source.Check(t.Context(), planWindow)
	c := planCase{accepted: err == nil, judged: b.Judged()}
	if err != nil && !strings.Contains(err.Error(), "rows") {
		t.Errorf("%s: %v", def.SQL, err)
	}
	for _, values := range extremes(rows, columns) {
		args := make([]string, len(values))
		for i, p := range def.Params {
			if args[i] = values[i]; p.ListMax > 0 {
				args[i] = argumentOf(t, p, values[i])
			}
		}
		r := feed.Range{Args: args, Limit: planWindow}
		c.reads = max(c.reads, b.Reads(t, source, r))
		walk, err := source.Keys(t.Context(), feed.Range{Args: args, Skip: planWindow, Limit: 1}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if r.After = walk.Last; r.After != "" {
			c.reads = max(c.reads, b.Reads(t, source, r))
		}
		if s.filter != "" { // also without it
			r.Args, r.After = slices.Clone(args), ""
			r.Args[len(args)-1] = param.Absent
			c.reads = max(c.reads, b.Reads(t, source, r))
		}
	}
	return c
}

func argumentOf(t *testing.T, p param.Param, text string) string {
	t.Helper()
	arg, err := param.Argument(p, text)
	if err != nil {
		t.Fatal(err)
	}
	return arg
}

// extremes returns values that rows have together: those of the most rows, of the fewest, and for each column the
// fewest that have its most frequent value.
func extremes(rows []planRow, columns []string) [][]string {
	if len(columns) == 0 {
		return [][]string{nil}
	}
	counts, of := make(map[string]int), make([]map[string]int, len(columns))
	tuple := func(r planRow) []string {
		var values []string
		for _, column := range columns {
			values = append(values, r.value(column))
		}
		return values
	}
	for _, r := range rows {
		values := tuple(r)
		counts[strings.Join(values, "\x00")]++
		for i, v := range values {
			if of[i] == nil {
				of[i] = make(map[string]int)
			}
			of[i][v]++
		}
	}
	least := func(a, b string) int { return cmp.Or(counts[a]-counts[b], strings.Compare(a, b)) }
	all := slices.SortedFunc(func(yield func(string) bool) {
		for key := range counts {
			if !yield(key) {
				return
			}
		}
	}, least)
	chosen := []string{all[0], all[len(all)-1]}
	for i := range columns {
		most := 0
		for _, n := range of[i] {
			most = max(most, n)
		}
		j := slices.IndexFunc(all, func(key string) bool { return of[i][strings.Split(key, "\x00")[i]] == most })
		chosen = append(chosen, all[j])
	}
	slices.Sort(chosen)
	var sets [][]string
	for _, key := range slices.Compact(chosen) {
		sets = append(sets, strings.Split(key, "\x00"))
	}
	return sets
}

// rounded writes a number with two digits.
func rounded(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.0f", x)
	}
	scale := math.Pow(10, math.Floor(math.Log10(x))-1)
	return fmt.Sprintf("%.0f", math.Round(x/scale)*scale)
}

// document writes the results to the database's part of docs/explanation/start-check.md.
func (b PlanBackend) document(t *testing.T, results map[string]map[string]planCase) {
	t.Helper()
	const name = "../../../docs/explanation/start-check.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- plans of "+b.Name+": generated by go test -run TestPlans -update -->\n", "<!-- end of the plans of "+b.Name+" -->\n"
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table of the plans of %s", name, b.Name)
	}
	var table strings.Builder
	table.WriteString("| statement | index | uniform | skewed | correlated |\n|---|---|---|---|---|\n")
	wrong := 0
	worst := 1.0
	for _, s := range planStatements {
		for _, index := range strings.Fields(s.indexes) {
			title := s.title() + " | " + index
			fmt.Fprintf(&table, "| %s |", title)
			for _, data := range []string{"uniform", "skewed", "correlated"} {
				c := results[title][data]
				mark := ""
				if c.accepted && c.reads > manyReads || !c.accepted && c.reads <= fewReads {
					factor := max(c.judged, c.reads) / max(1, min(c.judged, c.reads))
					mark = fmt.Sprintf(" **wrong by %s**", rounded(factor))
					wrong++
					worst = max(worst, factor)
				}
				fmt.Fprintf(&table, " %s%s |", c, mark)
			}
			table.WriteString("\n")
		}
	}
	fmt.Fprintf(&table, "\nVerdicts that are wrong: %d of %d", wrong, 3*len(results))
	if wrong > 0 {
		fmt.Fprintf(&table, ", by a factor of up to %s", rounded(worst))
	}
	table.WriteString(".\n")
	if err := os.WriteFile(name, []byte(before+begin+table.String()+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}

// PlanLog is the handler of an adapter's log that remembers how many rows the check expected.
type PlanLog struct{ rows float64 }

// WithAttrs returns l.
func (l *PlanLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup returns l.
func (l *PlanLog) WithGroup(string) slog.Handler { return l }

// Enabled reports true.
func (l *PlanLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle takes the rows of a record.
func (l *PlanLog) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "rows" && r.Level == slog.LevelDebug {
			l.rows = max(l.rows, a.Value.Float64())
		}
		return true
	})
	return nil
}

// Judged returns the most rows since the last call.
func (l *PlanLog) Judged() float64 {
	rows := l.rows
	l.rows = 0
	return rows
}
