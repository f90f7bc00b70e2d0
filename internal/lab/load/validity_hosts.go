package load

import (
	"fmt"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Limits of what programs of no host may use of a host's cores.
const (
	foreignMax      = 0.05 // as a share of them
	foreignCoresMax = 0.25 // in cores; a busy loop is little of many
)

// judgeForeign checks that nobody else used the cores of the hosts. A host that waits for its own threads, or because it has used
// up its share, is at its capacity, and not contended.
func (s *stepRun) judgeForeign() *problem {
	if s.config.Hosts == nil {
		return nil
	}
	if s.hosts.err != nil {
		return &problem{result.HostContended, fmt.Sprintf("it is unknown who used the cores: %v", s.hosts.err)}
	}
	for i := range s.hosts.shares {
		h := &s.hosts.shares[i]
		if share := h.ForeignShare(); share >= min(foreignMax, foreignCoresMax/float64(h.CoreCount)) {
			return &problem{result.HostContended, fmt.Sprintf(
				"programs that belong to no host used %s of the cores of host %s (%s); "+
					"stop them, or name those of the target with --watch", sheet.Share(share), h.Name, h.Cores)}
		}
	}
	return nil
}

// ownWait is the verdict on a generator that waited for a CPU though it has cores of its own: its share is too small.
func (s *stepRun) ownWait(share float64) *problem {
	return &problem{result.GeneratorLimited, fmt.Sprintf("the generator waited %s of the time for its own share of CPU; give it "+
		"more cores", sheet.Share(share))}
}
