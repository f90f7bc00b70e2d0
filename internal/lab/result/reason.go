package result

import "slices"

// A Reason says why a step is not VALID, or is a remark about it. Readers decide by its code; the text is for people.
// What to do, if there is advice, follows after the first "; ".
type Reason struct {
	Code    ReasonCode `json:"code"`
	Verdict Validity   `json:"verdict,omitempty"` // that it supports by itself; VALID or "" for a remark
	Host    string     `json:"host,omitempty"`    // of a merged run
	Class   string     `json:"class,omitempty"`   // of FirstError: the class of the errors
	Text    string     `json:"text"`              // a sentence; of FirstError what the first error of its class said
}

// A ReasonCode names the check that found a Reason.
type ReasonCode string

// The checks of a step. The first group finds a load generator that did not do what it should have done.
const (
	OwnErrors   ReasonCode = "own_errors"   // the generator had no local ports or open files left
	UsersShort  ReasonCode = "users"        // no user of a flow was free
	SendRate    ReasonCode = "send_rate"    // arrivals were not started in time
	PacerLag    ReasonCode = "lag"          // requests were sent late
	ThreadBusy  ReasonCode = "busy"         // a generator thread had no time left
	CPUWait     ReasonCode = "wait"         // the generator waited for a CPU
	Unread      ReasonCode = "unread"       // answers were read late
	LittlesLaw  ReasonCode = "little"       // the figures contradict each other
	IdleSlots   ReasonCode = "idle"         // connections of a closed loop had no request
	Stolen      ReasonCode = "stolen"       // the hypervisor took CPU time from the generator's host
	ForeignUse  ReasonCode = "foreign"      // other programs used cores that belong to a host of the run
	PartAbsent  ReasonCode = "absent"       // a part of the load ended early
	NotTogether ReasonCode = "not_together" // the parts did not run at the same time

	Backlog       ReasonCode = "backlog" // fewer requests were answered than arrived
	Drift         ReasonCode = "drift"   // response times changed during the step
	Silence       ReasonCode = "silence" // nothing was answered for a while
	TooFewAnswers ReasonCode = "samples" // there are not enough answers
	CutOff        ReasonCode = "cut_off" // the file ended before the step did

	NeverSent    ReasonCode = "unsent"      // arrivals found all connections busy
	TimeoutShort ReasonCode = "timeout"     // a limit of the SLO is above the timeout
	DataUsedUp   ReasonCode = "data"        // a file of data has no rows left
	FirstError   ReasonCode = "first_error" // the first error of a class
)

// String returns the reason as a sentence.
func (r Reason) String() string {
	text := r.Text
	if r.Code == FirstError {
		text = "first " + r.Class + " error: " + text
	}
	if r.Host != "" {
		text = r.Host + ": " + text
	}
	return text
}

// Sentences returns the reasons of a step as text, in their order.
func (t *Total) Sentences() []string {
	var sentences []string
	for _, r := range t.Reasons {
		sentences = append(sentences, r.String())
	}
	return sentences
}

// Codes returns the codes of the reasons of a step, in their order.
func (t *Total) Codes() []ReasonCode {
	var codes []ReasonCode
	for _, r := range t.Reasons {
		codes = append(codes, r.Code)
	}
	return codes
}

// OnlyStolen reports whether nothing but the hypervisor disturbed the load generator.
func (t *Total) OnlyStolen() bool { return t.OnlyDisturbed(Stolen) }

// OnlyDisturbed reports whether something disturbed the load generator, and nothing but what has these codes.
func (t *Total) OnlyDisturbed(codes ...ReasonCode) bool {
	disturbs := func(r Reason) bool { return r.Verdict == HostContended }
	others := func(r Reason) bool { return disturbs(r) && !slices.Contains(codes, r.Code) }
	return t.Validity == HostContended && slices.ContainsFunc(t.Reasons, disturbs) && !slices.ContainsFunc(t.Reasons, others)
}
