package plan

import (
	"fmt"
	"math"
	"slices"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// alike returns the steps that were measured under the conditions of the basis: with its kind of connections, and with as many cores
// for each process of the application. It notes which are left out, and runs of other addresses, which the user vouches for.
func (p *Plan) alike(every []*observation, basis *observation) []*observation {
	var kept []*observation
	for _, o := range every {
		why := p.unlike(o, basis)
		if why == "" {
			kept = append(kept, o)
			if one, other := o.source, basis.source; one.Run.Header.Target != other.Run.Header.Target {
				why = fmt.Sprintf("%s loads %s and %s loads %s: the plan takes them as the same service.", one.File, one.Run.Header.Target,
					other.File, other.Run.Header.Target)
			}
		}
		if why != "" && !slices.Contains(p.Notes, why) {
			p.Notes = append(p.Notes, why)
		}
	}
	return kept
}

// unlike tells why a step does not count besides the basis, "" if it does.
func (p *Plan) unlike(o, basis *observation) string {
	if connectionsOf(o.step) != connectionsOf(basis.step) {
		return fmt.Sprintf("Steps of %s with %s connections are left out, because the plan is for %s ones: choose with --connections.",
			o.source.File, connectionsOf(o.step), connectionsOf(basis.step))
	}
	for _, c := range o.of(ProcessCPU) {
		role := o.source.Run.Role(c.Host, c.Subject)
		if role != result.RoleApplication || slices.Contains(p.settings.Shared, c.Subject) {
			continue
		}
		for _, other := range basis.of(ProcessCPU) {
			if other.Subject == c.Subject && math.Abs(c.allowed-other.allowed) > 0.01*other.allowed {
				return fmt.Sprintf("Steps of %s are left out, because %s had %s there and %s in %s: plan for each kind of host alone.",
					o.source.File, c.Subject, sheet.Plural(c.allowed, "core"), sheet.Plural(other.allowed, "core"), basis.source.File)
			}
		}
	}
	return ""
}

// watchedOf returns the steps with the CPU time of a process, all if none has it.
func watchedOf(every []*observation) []*observation {
	watched := slices.DeleteFunc(slices.Clone(every), func(o *observation) bool { return len(o.of(ProcessCPU)) == 0 })
	if len(watched) == 0 {
		return every
	}
	return watched
}
