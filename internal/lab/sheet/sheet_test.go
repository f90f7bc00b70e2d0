package sheet

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// example has something of everything.
func example() *Sheet {
	return &Sheet{
		Title: "a run of <b>", Verdict: "It holds.", Caveat: "Not for long.", Findings: []string{"One finding."},
		Facts: []Fact{{Name: "peak", Value: "892/s"}, {Name: "µs", Value: "1 | 2"}},
		Sections: []Section{
			{
				Title: "Steps", Text: []string{"Two steps."}, Lines: []string{"100/s: 1 error\x1b[31m"}, Note: "p50: median. max: longest.",
				Table: &Table{
					Heads: []string{"load", "p50", "validity"}, Rows: [][]string{{"100/s", "812 µs", "VALID"}, {"1,000/s", "1 ms", "-"}},
					Left: []int{2}, Marks: []string{"", "missed"},
				},
			},
			{Title: "Needs", Nested: true, Facts: []Fact{{Name: "hosts", Value: "2", More: []string{"1 x 2 = 2"}}, {Name: "ports", Value: "3"}}},
		},
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	want := `a run of <b>
It holds.
Not for long.
  One finding.

  peak  892/s
  µs    1 | 2

Steps
  Two steps.

     load     p50  validity
    100/s  812 µs  VALID
  1,000/s    1 ms  -
  100/s: 1 error [31m

p50: median.
max: longest.

Needs
  hosts: 2
      1 x 2 = 2
  ports: 3
`
	var out strings.Builder
	if err := example().WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	want := `## a run of &lt;b\>

**It holds.** Not for long.

- One finding.

- peak: 892/s
- µs: 1 \| 2

### Steps

Two steps.

| load | p50 | validity |
|--:|--:|---|
| 100/s | 812 µs | VALID |
| 1,000/s | 1 ms | - |

- 100/s: 1 error \[31m

p50: median. max: longest.

#### Needs

- hosts: 2
  - 1 x 2 = 2
- ports: 3
`
	var out strings.Builder
	if err := example().WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
