package result

// Counters count what happened in a slice or a step.
type Counters struct {
	Due        int64         `json:"due"`  // intended starts that fell here; closed loop: the same as Sent
	Sent       int64         `json:"sent"` // requests written
	Done       int64         `json:"done"` // answered in full, whatever the status
	Errors     Errors        `json:"errors"`
	Statuses   map[int]int64 `json:"statuses,omitempty"` // HTTP: answers by status code
	BytesIn    int64         `json:"bytes_in"`
	BytesOut   int64         `json:"bytes_out"`
	Connects   int64         `json:"connects"`         // connections opened
	Reconnects int64         `json:"reconnects"`       // of these, to replace one that broke
	Reads      int64         `json:"reads,omitempty"`  // SQL, Redis: statements that read
	Writes     int64         `json:"writes,omitempty"` // that write
	Others     int64         `json:"others,omitempty"` // that do neither
}

// Add adds o to c.
func (c *Counters) Add(o *Counters) {
	c.Due += o.Due
	c.Sent += o.Sent
	c.Done += o.Done
	for class, n := range o.Errors {
		c.Errors[class] += n
	}
	for status, n := range o.Statuses {
		if c.Statuses == nil {
			c.Statuses = make(map[int]int64, len(o.Statuses))
		}
		c.Statuses[status] += n
	}
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Connects += o.Connects
	c.Reconnects += o.Reconnects
	c.Reads += o.Reads
	c.Writes += o.Writes
	c.Others += o.Others
}

// Requests is the number that came to an end, well or badly: answered, failed on the way, or never sent.
func (c *Counters) Requests() int64 { return c.Done + c.Errors.Unanswered() }

// Good is the number answered as they should be: no bad status, no failed check.
func (c *Counters) Good() int64 { return c.Done - c.Errors[StatusError] - c.Errors[CheckError] }

// ErrorShare is the fraction of requests that ended badly, 0 to 1.
func (c *Counters) ErrorShare() float64 {
	if c.Requests() == 0 {
		return 0
	}
	return float64(c.Errors.Total()) / float64(c.Requests())
}
