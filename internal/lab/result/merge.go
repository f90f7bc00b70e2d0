package result

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/histogram"
)

// Merge puts the parts of a load together. Offered rates, connections, requests and counters are added. Histograms are
// added bucket by bucket, and percentiles are read from the sums. Seconds are matched by their distance from the begin of
// the step on each host. Named requests are added by name, and the SLO is judged on the sums. A step is as valid as its
// least valid part; package load judges what no part can judge alone. Watches and samples of all parts are kept under
// unique host names. Header.Parts has the headers of the parts.
//
// Files that are not all parts of one load, each once, are an error, and so are parts whose steps did not overlap. Steps
// that a part lacks are left out with a note. Merge does not change its arguments.
func Merge(parts []*Run) (*Run, error) {
	ordered, err := inOrder(parts)
	if err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	slo, err := ParseSLO(ordered[0].Header.SLO)
	if err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	merged := &Run{Header: mergeHeaders(ordered), End: End{Reason: Finished}}
	steps := len(ordered[0].Steps)
	for _, run := range ordered {
		merged.addEnd(run)
		steps = min(steps, len(run.Steps))
	}
	for _, run := range ordered {
		if len(run.Steps) > steps {
			merged.Header.Notes = append(merged.Header.Notes,
				fmt.Sprintf("%s has %d steps; only the first %d are in all parts", run.Header.PartName(), len(run.Steps), steps))
		}
	}
	merged.addWatches(ordered)
	for i := range steps {
		step, err := mergeStep(ordered, i, slo)
		if err != nil {
			return nil, fmt.Errorf("merge step %d: %w", i, err)
		}
		step.Start += ordered[0].Header.since(&merged.Header)
		merged.Steps = append(merged.Steps, *step)
	}
	return merged, nil
}

// PartName names a part and its host: "part 2 (load-2)".
func (h *Header) PartName() string { return fmt.Sprintf("part %d (%s)", h.Part.Number, h.Machine.Host) }

// since is how many seconds later than the other run this one started, by the clocks of their hosts.
func (h *Header) since(other *Header) float64 { return h.StartedAt.Sub(other.StartedAt).Seconds() }

func (r *Run) addEnd(o *Run) {
	r.End.Elapsed = max(r.End.Elapsed, o.End.Elapsed)
	if o.End.Reason != Finished && o.CutOff == "" {
		r.End.Reason, r.End.Aborted = o.End.Reason, o.End.Aborted
	}
	if o.CutOff != "" {
		r.CutOff = fmt.Sprintf("%s: %s", o.Header.PartName(), o.CutOff)
	}
}

// mergeHeaders returns the header of the first part, without what is of its host only.
func mergeHeaders(parts []*Run) Header {
	header := parts[0].Header
	header.Part, header.Hosts, header.Notes = nil, nil, nil
	var hosts []string
	for _, part := range parts {
		h := part.Header
		if h.StartedAt.Before(header.StartedAt) {
			header.StartedAt = h.StartedAt
		}
		if !slices.Contains(hosts, h.Machine.Host) {
			hosts = append(hosts, h.Machine.Host)
		}
		for _, note := range h.Notes {
			header.Notes = append(header.Notes, h.PartName()+": "+note)
		}
		header.Parts = append(header.Parts, h)
	}
	header.Machine = Machine{Host: strings.Join(hosts, ", "), TCPTWReuse: -1}
	return header
}

func mergeStep(runs []*Run, i int, slo SLO) (*StepRun, error) {
	merged := &StepRun{Step: runs[0].Steps[i].Step}
	merged.OfferedHz, merged.Connections, merged.Step.Requests, merged.BacklogLimit = 0, 0, 0, 0
	parts := make([]*StepRun, len(runs))
	names := make([]string, len(runs))
	for k, run := range runs {
		part := &run.Steps[i]
		parts[k], names[k] = part, run.Header.PartName()
		if !sameKind(parts[0], part) {
			return nil, fmt.Errorf("%s ran another kind of step than %s", names[k], names[0])
		}
		merged.OfferedHz += part.OfferedHz
		merged.Step.Connections += part.Step.Connections
		merged.Step.Requests += part.Step.Requests
		merged.BacklogLimit += part.BacklogLimit
		merged.Late = max(merged.Late, part.Late)
	}
	together, err := overlap(parts, runs)
	if err != nil {
		return nil, err
	}
	if merged.Slices, err = mergeSlices(parts); err != nil {
		return nil, err
	}
	total, err := mergeTotals(parts, names)
	if err != nil {
		return nil, err
	}
	if total.Validity != Unjudged {
		if total.SLO, err = slo.Judge(total); err != nil {
			return nil, err
		}
	}
	total.noteOffset(together)
	merged.Total = *total
	return merged, nil
}

func mergeSlices(parts []*StepRun) ([]Slice, error) {
	bySecond := make(map[int][]*Slice)
	for _, part := range parts {
		for i := range part.Slices {
			s := &part.Slices[i]
			bySecond[s.Second] = append(bySecond[s.Second], s)
		}
	}
	var merged []Slice
	for second, same := range bySecond {
		m := Slice{Step: parts[0].Index, Second: second}
		latencies := make([]Latency, len(same))
		for i, s := range same {
			m.Length = max(m.Length, s.Length)
			m.Add(&s.Counters)
			m.Connections += s.Connections
			m.InFlight += s.InFlight
			m.Backlog += s.Backlog
			m.CPUUser += s.CPUUser
			m.CPUSystem += s.CPUSystem
			latencies[i] = s.Latency
		}
		var err error
		if m.Latency, err = mergeLatencies(latencies); err != nil {
			return nil, fmt.Errorf("second %d: %w", second, err)
		}
		merged = append(merged, m)
	}
	slices.SortFunc(merged, func(a, b Slice) int { return a.Second - b.Second })
	return merged, nil
}

func mergeTotals(parts []*StepRun, names []string) (*Total, error) {
	m := &Total{Step: parts[0].Index, Validity: Valid}
	latencies := make([]Latency, len(parts))
	var err error
	for i, part := range parts {
		t := &part.Total
		m.Elapsed = max(m.Elapsed, t.Elapsed)
		m.Add(&t.Counters)
		m.Clamped += t.Clamped
		m.Connections = m.Connections.plus(t.Connections)
		m.Little = m.Little.plus(t.Little)
		m.Cost = m.Cost.plus(t.Cost)
		latencies[i] = t.Latency
		if m.Iterations, err = m.Iterations.plus(t.Iterations); err != nil {
			return nil, err
		}
		m.Overloaded = m.Overloaded || t.Overloaded
		if t.Validity.worse(m.Validity) {
			m.Validity = t.Validity
		}
		for _, reason := range t.Reasons {
			if reason.Host != "" {
				reason.Text = reason.Host + ": " + reason.Text
			}
			reason.Host = names[i]
			m.Reasons = append(m.Reasons, reason)
		}
	}
	if m.Latency, err = mergeLatencies(latencies); err != nil {
		return nil, err
	}
	if err := m.noteShortParts(parts, names); err != nil {
		return nil, err
	}
	m.Labels, err = mergeLabels(parts)
	return m, err
}

func (c ConnectionStats) plus(o ConnectionStats) ConnectionStats {
	if c.Slots == 0 {
		o.ParallelMax += c.ParallelMax
		o.ParallelMean += c.ParallelMean
		return o
	}
	n, m := float64(c.Slots), float64(o.Slots)
	sum := ConnectionStats{
		ParallelMax:  c.ParallelMax + o.ParallelMax,
		ParallelMean: c.ParallelMean + o.ParallelMean,
		Slots:        c.Slots + o.Slots,
		RequestsMin:  c.RequestsMin, RequestsMax: max(c.RequestsMax, o.RequestsMax),
	}
	if o.Slots > 0 {
		sum.RequestsMin = min(c.RequestsMin, o.RequestsMin)
	}
	sum.RequestsMean = (n*c.RequestsMean + m*o.RequestsMean) / (n + m)
	return sum
}

// plus adds the iterations of another host; either may be nil.
func (i *Iterations) plus(o *Iterations) (*Iterations, error) {
	switch {
	case i == nil:
		return o, nil
	case o == nil:
		return i, nil
	}
	duration, err := mergeHDR([]HDR{i.Duration, o.Duration})
	return &Iterations{i.Completed + o.Completed, i.Failed + o.Failed, i.Unfinished + o.Unfinished, duration}, err
}

func (l Little) plus(o Little) Little {
	sum := Little{InFlightMean: l.InFlightMean + o.InFlightMean, Rate: l.Rate + o.Rate}
	if sum.Rate > 0 {
		sum.ServiceMean = (l.Rate*l.ServiceMean + o.Rate*o.ServiceMean) / sum.Rate
	}
	if sum.ServiceMean > 0 {
		sum.Ratio = sum.InFlightMean / (sum.Rate * sum.ServiceMean)
	}
	return sum
}

func (c Cost) plus(o Cost) Cost {
	return Cost{
		CPUUser: c.CPUUser + o.CPUUser, CPUSystem: c.CPUSystem + o.CPUSystem,
		Threads: c.Threads + o.Threads, ThreadBusyMax: max(c.ThreadBusyMax, o.ThreadBusyMax),
		RunQueueWait: c.RunQueueWait + o.RunQueueWait, MemoryMax: c.MemoryMax + o.MemoryMax,
	}
}

func mergeLatencies(parts []Latency) (merged Latency, err error) {
	for kind, sum := range merged.Histograms() {
		payloads := make([]HDR, len(parts))
		for i := range parts {
			payloads[i] = *parts[i].Histograms()[kind]
		}
		if *sum, err = mergeHDR(payloads); err != nil {
			return Latency{}, err
		}
	}
	return merged, nil
}

// Histograms returns the histograms in the order of the fields.
func (l *Latency) Histograms() []*HDR {
	return []*HDR{&l.Response, &l.ResponseUnanswered, &l.Service, &l.ServiceUnanswered, &l.Lag, &l.Connect, &l.FirstByte}
}

// mergeLabels adds the named requests of the parts by name, in the order of their first appearance.
func mergeLabels(parts []*StepRun) ([]LabelTotal, error) {
	var merged []LabelTotal
	for _, part := range parts {
		for _, l := range part.Total.Labels {
			i := slices.IndexFunc(merged, func(m LabelTotal) bool { return m.Name == l.Name })
			if i < 0 {
				merged = append(merged, LabelTotal{Name: l.Name})
				i = len(merged) - 1
			}
			merged[i].Add(&l.Counters)
			sum, err := mergeLatencies([]Latency{merged[i].Latency, l.Latency})
			if err != nil {
				return nil, fmt.Errorf("request %q: %w", l.Name, err)
			}
			merged[i].Latency = sum
		}
	}
	return merged, nil
}

func mergeHDR(payloads []HDR) (HDR, error) {
	payloads = slices.DeleteFunc(payloads, func(p HDR) bool { return p == "" })
	if len(payloads) == 0 {
		return "", nil
	}
	sum, err := histogram.Decode(string(payloads[0]))
	if err != nil {
		return "", err
	}
	for _, payload := range payloads[1:] {
		part, err := histogram.Decode(string(payload))
		if err != nil {
			return "", err
		}
		sum.Merge(part)
	}
	encoded, err := sum.Encode()
	return HDR(encoded), err
}

// addWatches adds watches and samples of all parts under unique host names, with times since the start of r.
func (r *Run) addWatches(runs []*Run) {
	taken := make(map[string]bool)
	for _, run := range runs {
		names := run.hostNames(taken)
		for _, watch := range run.Watches {
			watch.Host = names[watch.Host]
			r.Watches = append(r.Watches, watch)
		}
		later := run.Header.since(&r.Header)
		for _, sample := range run.Samples {
			sample.Host = names[sample.Host]
			sample.At += later
			if sample.Gap != nil {
				sample.Gap = &Gap{From: sample.Gap.From + later, Reason: sample.Gap.Reason}
			}
			r.Samples = append(r.Samples, sample)
		}
	}
	slices.SortStableFunc(r.Samples, func(a, b Sample) int { return cmp.Compare(a.At, b.At) })
}

// hostNames returns a unique name for each host of the run and adds it to taken.
func (r *Run) hostNames(taken map[string]bool) map[string]string {
	names := make(map[string]string)
	name := func(host, machine string) {
		if _, seen := names[host]; seen {
			return
		}
		base := cmp.Or(host, machine, "host")
		unique := base
		for n := 2; taken[unique]; n++ {
			unique = fmt.Sprintf("%s (%d)", base, n)
		}
		taken[unique], names[host] = true, unique
	}
	for i := range r.Watches {
		name(r.Watches[i].Host, cmp.Or(r.Watches[i].Machine.Host, r.Header.Machine.Host))
	}
	for i := range r.Samples { // a host may lack its watch record
		name(r.Samples[i].Host, r.Header.Machine.Host)
	}
	return names
}
