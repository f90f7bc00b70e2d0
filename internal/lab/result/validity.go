package result

// Validity says whether a step measured the target or something else.
type Validity string

// The verdicts on a step. Only a Valid step says anything about the target's limit.
const (
	Valid            Validity = "VALID"
	GeneratorLimited Validity = "GENERATOR_LIMITED" // the generator could not offer the load
	HostContended    Validity = "HOST_CONTENDED"    // generator and target, or strangers, fought for the host
	NotStationary    Validity = "NOT_STATIONARY"    // the backlog grew or the rate drifted: no steady state was seen
	TooFewSamples    Validity = "TOO_FEW_SAMPLES"   // not enough requests for the percentile asked for
	Unjudged         Validity = ""                  // the file ended before the step did
)

// worse orders verdicts for a merge: the worst of the hosts' verdicts is that of the run.
func (v Validity) worse(than Validity) bool { return v.rank() > than.rank() }

func (v Validity) rank() int {
	switch v {
	case Valid:
		return 0
	case TooFewSamples:
		return 1
	case NotStationary:
		return 2
	case HostContended:
		return 3
	case GeneratorLimited:
		return 4
	}
	return 5
}
