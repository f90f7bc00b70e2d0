package stats

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// holmByDefinition rejects step by step as Holm wrote it: the smallest p against alpha/m, the next against alpha/(m-1),
// until the first that stays.
func holmByDefinition(p []float64, alpha float64) []bool {
	rejected := make([]bool, len(p))
	left := 0
	for _, v := range p {
		if !math.IsNaN(v) {
			left++
		}
	}
	for left > 0 {
		smallest := -1
		for i, v := range p {
			if !math.IsNaN(v) && !rejected[i] && (smallest < 0 || v < p[smallest]) {
				smallest = i
			}
		}
		if p[smallest]*float64(left) >= alpha {
			break
		}
		rejected[smallest] = true
		left--
	}
	return rejected
}

func TestHolmAgainstItsDefinition(t *testing.T) {
	t.Parallel()
	value := rapid.OneOf(rapid.Float64Range(0, 1), rapid.Float64Range(0, 0.05), rapid.SampledFrom([]float64{0, 0.01, 0.05, 1, math.NaN()}))
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(value, 0, 12).Draw(t, "p")
		alpha := rapid.Float64Range(0.001, 0.2).Draw(t, "alpha")
		want := holmByDefinition(p, alpha)
		for i, adjusted := range Holm(p) {
			if got := adjusted < alpha; got != want[i] {
				t.Fatalf("p %v at alpha %v: adjusted %v, rejected %v, want %v", p, alpha, adjusted, got, want[i])
			}
			if math.IsNaN(p[i]) != math.IsNaN(adjusted) || adjusted < p[i] || adjusted > 1 {
				t.Fatalf("p %v became %v", p[i], adjusted)
			}
		}
	})
}

func TestHolmKnown(t *testing.T) {
	got := Holm([]float64{0.04, 0.01, math.NaN(), 0.03, 0.005})
	want := []float64{0.06, 0.03, math.NaN(), 0.06, 0.02} // R: p.adjust(c(0.04, 0.01, NA, 0.03, 0.005), "holm")
	if diff := cmp.Diff(want, got, cmpopts.EquateNaNs(), cmpopts.EquateApprox(1e-12, 0)); diff != "" {
		t.Errorf("adjusted (-want +got):\n%s", diff)
	}
}

func TestJudge(t *testing.T) {
	clear := Ratio{N: MinPairs, Ratio: 2, P: 1e-6, Spread: 0.1}
	down := Ratio{N: MinPairs, Ratio: 0.5, P: 1e-6, Spread: 0.1}
	edge := Ratio{N: MinPairs, Ratio: 1.1, P: 0.03, Spread: 0.1}
	few := Ratio{N: MinPairs - 1, Ratio: 2, P: 1e-9, Spread: 0.1}
	none := PairedRatio(nil, nil, Level)
	var got []Verdict
	judged := Judge([]Ratio{clear, down, edge, few, none, edge})
	for _, c := range judged {
		got = append(got, c.Verdict)
		if c.Family != 4 {
			t.Errorf("family of %d, want 4: those with too few pairs are not in it", c.Family)
		}
	}
	want := []Verdict{Higher, Lower, NoDifference, NoVerdict, NoVerdict, NoDifference}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if alone := Judge([]Ratio{edge})[0]; alone.Verdict != Higher || alone.MinimumEffect >= judged[2].MinimumEffect {
		t.Errorf("alone: %+v, in a family: %+v", alone, judged[2])
	}
	if len(Judge(nil)) != 0 {
		t.Error("a family of none has verdicts")
	}
}
