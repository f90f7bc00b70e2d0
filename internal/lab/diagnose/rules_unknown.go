package diagnose

import (
	"fmt"
	"strings"

	"spillway/internal/lab/result"
)

// unknown: what was watched shows nothing that is full. It says what to watch.
func (c *comparison) unknown() Verdict {
	s := c.failing
	var missing []string
	applications, servers := 0, 0
	for i := range s.processes {
		if s.processes[i].role == result.RoleApplication {
			applications++
		} else {
			servers++
		}
	}
	if applications == 0 {
		missing = append(missing, "the process of the service (--watch app=:PORT)")
	}
	if len(s.databases) == 0 {
		missing = append(missing, "what it calls, such as its database (--watch-db URL)")
	} else if servers == 0 {
		missing = append(missing, "the process of the database (--watch db=:5432)")
	}
	v := Verdict{Name: Unknown, Evidence: append(c.processesUsed(), c.loadFigures()...)}
	v.Sentence = fmt.Sprintf("Not enough evidence: nothing that was watched is full %s.", c.at())
	if len(s.usage.Of(result.SamplerHost)) == 0 && len(s.processes) == 0 && len(s.databases) == 0 {
		v.Sentence = "Not enough evidence: nothing was watched."
	}
	v.Advice = "Compare steps that differ more in their load, and are at least 5 s long."
	if c.lightest == nil && s.load != nil {
		v.Advice = "Add a step with a light load, which shows what a request takes alone."
	}
	if len(missing) > 0 {
		v.Advice = "Also watch " + strings.Join(missing, ", and ") + "."
	}
	return v
}
