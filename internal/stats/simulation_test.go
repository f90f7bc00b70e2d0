package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"spillway/internal/apptest"
)

// A noisyHost plays the blocks of a comparison on a host with other programs: all runs of a block share its speed, each run has
// noise of its own, and some runs are disturbed by a burst, which costs only ever more.
type noisyHost struct {
	random *rand.Rand
	block  float64 // standard deviation of the logarithm of a block's speed
	run    float64 // of a run's noise
	bursts float64 // share of runs with a burst
	burst  float64 // mean size of a burst, as a share
}

// compare judges one comparison of a variant that costs effect times as much, as a study with one comparison does.
func (h *noisyHost) compare(blocks int, effect float64) Comparison {
	var baseline, variant []float64
	for range blocks {
		speed := math.Exp(h.block * h.random.NormFloat64())
		baseline, variant = append(baseline, speed*h.noise()), append(variant, speed*effect*h.noise())
	}
	return Judge([]Ratio{PairedRatio(baseline, variant, Level)})[0]
}

func (h *noisyHost) noise() float64 {
	noise := math.Exp(h.run * h.random.NormFloat64())
	if h.random.Float64() < h.bursts {
		noise *= 1 + h.burst*h.random.ExpFloat64()
	}
	return noise
}

// TestVerdictsOnANoisyHost wants of 40 comparisons of the same with itself, over ten blocks each, at most 5 to show a difference,
// and of 20 with a planted difference of 10 %, at least 18 to show it in the right direction. It plays that many times.
func TestVerdictsOnANoisyHost(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	const proofs, same, planted = 200, 40, 20
	for name, host := range map[string]noisyHost{
		"quiet":  {block: 0.05, run: 0.02},
		"shared": {block: 0.3, run: 0.05},
		"bursts": {block: 0.3, run: 0.03, bursts: 0.05, burst: 0.1},
	} {
		host.random = rand.New(rand.NewPCG(18, uint64(len(name))))
		falseProofs, weakProofs, differences := 0, 0, 0
		for range proofs {
			wrong, found := 0, 0
			for range same {
				if v := host.compare(MinPairs, 1).Verdict; v != NoDifference {
					wrong++
				}
			}
			for range planted {
				if host.compare(MinPairs, 1.1).Verdict == Higher {
					found++
				}
			}
			differences += wrong
			if wrong > 5 {
				falseProofs++
			}
			if found < 18 {
				weakProofs++
			}
		}
		rate := float64(differences) / (proofs * same)
		if rate > Alpha*1.1 || falseProofs > proofs*3/100 || weakProofs > proofs/20 {
			t.Errorf("%s: %.1f %% false differences; %d of %d proofs had more than 5, %d found fewer than 18", name, 100*rate, falseProofs, proofs, weakProofs)
		}
	}
}
