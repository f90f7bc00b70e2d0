package doctor

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/database"
	"spillway/internal/plans"
)

var update = flag.Bool("update", false, "write the golden files")

// example is a report with something of everything.
func example(t *testing.T) *Report {
	t.Helper()
	f := goodHost()
	f.TWReuse, f.Somaxconn = 2, 128
	w, err := ParseWorkload("rate=5000 short-connections", false)
	if err != nil {
		t.Fatal(err)
	}
	r := &Report{Host: f, Prediction: Predict(f, w)}
	r.Add(predicted(t, r.Prediction, f, w)...)
	r.Add(hostFindings(t, f)...)
	r.Database = &Server{Address: "postgres://app:***@db/app", Driver: database.Postgres, Version: "15.4", Settings: map[string]string{"fsync": "off", "max_connections": "100"}}
	r.Add(serverFindings(t, r.Database, f)...)
	seconds := 0.0353
	columns := []plans.IndexColumn{{Name: "app_id"}, {Name: "prize_grade"}}
	r.Query = &Query{
		Statement: "SELECT *\n FROM game_record WHERE app_id = ?", Database: "postgres://app:***@db/app", Params: []QueryParam{{"app_id", "a row of game_record"}},
		Tables: []*plans.Table{{Name: "game_record", Rows: 50_000, Bytes: 4 << 20, Indexes: []plans.Index{{Name: "game_record_pkey", Columns: []plans.IndexColumn{{Name: "id"}}}}}},
		Plan:   &Plan{Lines: []string{"Seq Scan on game_record: 500 rows, 35.3 ms, discards 49500"}, ExecutionSeconds: &seconds, RowsExamined: 50_000, Buffers: 468, Costs: []string{"reads all of game_record (50000 rows) to keep 500"}},
		Advice: Advice{
			Candidates: []Candidate{{Table: "game_record", Columns: columns, Reason: "app_id equal, then ORDER BY", Create: "CREATE INDEX …"}},
			Notes:      []string{"WHERE score != -1: all values but one"},
		},
		Verdict: "(app_id, prize_grade): 0.4 ms in place of 35.3 ms",
		Measured: []Measurement{
			{Variant: "no index", RowsCopied: 50_000, Runs: 15, MedianSeconds: 0.0353, MinSeconds: 0.03, MaxSeconds: 0.05, SpeedUp: 1, RowsExamined: 50_000, Buffers: 468, Sorts: true},
			{Variant: "existing indexes", RowsCopied: 50_000, MedianSeconds: 6, TooLong: true, SpeedUp: 0.006},
			{Variant: "(app_id, prize_grade)", RowsCopied: 50_000, Runs: 15, BuildSeconds: 0.1, IndexBytes: 1 << 20, IndexBytesEstimated: true, MedianSeconds: 0.0004, MinSeconds: 0.0003, MaxSeconds: 0.0009, SpeedUp: 88.2, RowsExamined: 50, Buffers: 52, candidates: make([]Candidate, 1), IndexesUsed: true},
		},
	}
	r.Query.Winners, r.Query.Winner = r.Query.Candidates, &r.Query.Candidates[0]
	return r
}

func TestGolden(t *testing.T) {
	for name, write := range map[string]func(*Report, *strings.Builder) error{
		"report.txt":  func(r *Report, b *strings.Builder) error { return r.WriteText(b) },
		"report.json": func(r *Report, b *strings.Builder) error { return r.WriteJSON(b) },
	} {
		var got strings.Builder
		if err := write(example(t), &got); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s (-want +got; -update writes it):\n%s", name, diff)
		}
		if name == "report.json" && !json.Valid([]byte(got.String())) {
			t.Error("no JSON")
		}
	}
}

// Groups come by their worst finding, findings from the worst to the best.
func TestOrder(t *testing.T) {
	r := &Report{}
	r.Add(Finding{Group: "a", Name: "1", Status: OK}, Finding{Group: "b", Name: "2", Status: Warn}, Finding{Name: "nothing to say"})
	r.Add(Finding{Group: "c", Name: "3", Status: OK}, Finding{Group: "a", Name: "4", Status: Fail}, Finding{Group: "b", Name: "5", Status: Note}, Finding{Group: "b", Name: "6", Status: Warn})
	var got []string
	for _, f := range r.Findings {
		got = append(got, f.Group+f.Name)
	}
	if diff := cmp.Diff([]string{"a4", "a1", "b2", "b6", "b5", "c3"}, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}
