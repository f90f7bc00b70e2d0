package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// events are what go test -json prints of a package that passes, one that fails and one that
// ends in the middle of a test.
const events = `{"Action":"run","Package":"spillway/internal/a","Test":"TestRoot"}
{"Action":"output","Package":"spillway/internal/a","Test":"TestRoot","Output":"=== RUN   TestRoot\n"}
{"Action":"output","Package":"spillway/internal/a","Test":"TestRoot","Output":"    a_test.go:5: needs root\n"}
{"Action":"output","Package":"spillway/internal/a","Test":"TestRoot","Output":"--- SKIP: TestRoot (0.00s)\n"}
{"Action":"skip","Package":"spillway/internal/a","Test":"TestRoot"}
{"Action":"run","Package":"spillway/internal/a","Test":"TestLong"}
{"Action":"output","Package":"spillway/internal/a","Test":"TestLong","Output":"    a_test.go:9: long\n"}
{"Action":"skip","Package":"spillway/internal/a","Test":"TestLong"}
{"Action":"run","Package":"spillway/internal/a","Test":"TestGood"}
{"Action":"output","Package":"spillway/internal/a","Test":"TestGood","Output":"    a_test.go:7: not shown\n"}
{"Action":"pass","Package":"spillway/internal/a","Test":"TestGood"}
{"Action":"output","Package":"spillway/internal/a","Output":"PASS\n"}
{"Action":"output","Package":"spillway/internal/a","Output":"ok  \tspillway/internal/a\t1.50s\n"}
{"Action":"pass","Package":"spillway/internal/a","Elapsed":1.5}
not an event
{"Action":"run","Package":"spillway/internal/b","Test":"TestBad"}
{"Action":"output","Package":"spillway/internal/b","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"spillway/internal/b","Test":"TestBad","Output":"    b_test.go:7: 3 rows, want 4\n"}
{"Action":"output","Package":"spillway/internal/b","Test":"TestBad","Output":"--- FAIL: TestBad (0.10s)\n"}
{"Action":"fail","Package":"spillway/internal/b","Test":"TestBad"}
{"Action":"output","Package":"spillway/internal/b","Output":"FAIL\n"}
{"Action":"fail","Package":"spillway/internal/b","Elapsed":2.4}
{"Action":"run","Package":"spillway/internal/c","Test":"TestPanics"}
{"Action":"output","Package":"spillway/internal/c","Test":"TestPanics","Output":"panic: no\n"}
{"Action":"fail","Package":"spillway/internal/c","Elapsed":0.1}
{"ImportPath":"spillway/internal/d","Action":"build-output","Output":"d.go:3: syntax error\n"}
`

const want = `ok  	spillway/internal/a	1.50s
not an event
FAIL internal/b TestBad: b_test.go:7: 3 rows, want 4 (servers' logs: {logs})
=== RUN   TestBad
    b_test.go:7: 3 rows, want 4
--- FAIL: TestBad (0.10s)
FAIL
FAIL internal/c TestPanics: did not end
panic: no
d.go:3: syntax error
1 long tests were left to: make race, make long
Not run, because they need root (control groups, network namespaces, other users); run them with: sudo make test
  internal/a TestRoot
failed: internal/b, internal/c
1 passed, 2 failed, 2 skipped
3 packages, 3 tests in 61 s; slowest: internal/b 2 s, internal/a 2 s, internal/c 0 s
`

func TestReport(t *testing.T) {
	var out strings.Builder
	begin := time.Unix(1000, 0)
	logs := t.TempDir()
	r := newReport(&out, logs, begin)
	if err := read(strings.NewReader(events), r); err != nil {
		t.Fatal(err)
	}
	r.finish(begin.Add(61 * time.Second))
	if diff := cmp.Diff(strings.ReplaceAll(want, "{logs}", logs), out.String()); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}

// TestProgress: a test is named once it runs for ten seconds, and on a terminal the next text
// replaces the line.
func TestProgress(t *testing.T) {
	var out strings.Builder
	begin := time.Unix(1000, 0)
	r := newReport(&out, "", begin)
	r.add(event{Action: "run", Package: "spillway/a", Test: "TestSlow", Time: begin})
	r.add(event{Action: "run", Package: "spillway/a", Test: "TestPaused", Time: begin})
	r.add(event{Action: "pause", Package: "spillway/a", Test: "TestPaused"})
	r.progress(begin.Add(9 * time.Second))
	r.progress(begin.Add(12 * time.Second))
	r.terminal = true
	r.progress(begin.Add(13 * time.Second))
	r.print("next\n")
	want := "12 s: 0 tests passed, 0 failed; running: a TestSlow (12 s)\n" +
		"13 s: 0 tests passed, 0 failed; running: a TestSlow (13 s)\r\033[Knext\n"
	if out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}
