package result

// A HostShare is one host of several on the same machine: the load generator, the target, or a host of an experiment. Hosts
// with the same Cores have them in common. A header has the first fields only, a total all of them.
type HostShare struct {
	Name      string  `json:"name"`
	CPUs      float64 `json:"cpus"`                        // its share
	Cores     string  `json:"cores"`                       // that it may use: "0-1,4"
	CoreCount int     `json:"core_count"`                  // the number of Cores
	Elapsed   float64 `json:"elapsed_seconds,omitempty"`   // that the figures below cover
	Used      float64 `json:"used_seconds,omitempty"`      // CPU time of its processes
	Throttled float64 `json:"throttled_seconds,omitempty"` // in which its quota stopped it, summed over its cores
	Foreign   float64 `json:"foreign_seconds,omitempty"`   // CPU time on its cores of programs that belong to no host
	Kernel    float64 `json:"kernel_seconds,omitempty"`    // CPU time on its cores of the kernel's threads, which work for everyone
}

// UsedShare is how much of its CPUs the host used, 0 to 1.
func (h *HostShare) UsedShare() float64 { return h.share(h.Used, h.CPUs) }

// ThrottledShare is the part of the time in which the quota stopped the host, 0 to 1.
func (h *HostShare) ThrottledShare() float64 { return h.share(h.Throttled, float64(h.CoreCount)) }

// ForeignShare is the part of the host's cores that programs used which belong to no host, 0 to 1.
func (h *HostShare) ForeignShare() float64 { return h.share(h.Foreign, float64(h.CoreCount)) }

// KernelShare is the part of the host's cores that the kernel's threads used, 0 to 1.
func (h *HostShare) KernelShare() float64 { return h.share(h.Kernel, float64(h.CoreCount)) }

func (h *HostShare) share(used, of float64) float64 {
	if h.Elapsed <= 0 || of <= 0 {
		return 0
	}
	return used / (h.Elapsed * of)
}
