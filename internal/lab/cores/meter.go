package cores

import (
	"fmt"
	"time"

	"spillway/internal/controlgroup"
	"spillway/internal/lab/result"
)

// A Host is a share of this machine.
type Host struct {
	Name  string  `json:"name"`
	CPUs  float64 `json:"cpus"`
	Cores Set     `json:"cores"`
	// Group is the control group that counts the CPU time of all its processes, and Quota the one that limits it, which may be
	// the same. Quota is "" without a limit.
	Group string `json:"group,omitempty"`
	Quota string `json:"quota,omitempty"`
	// Used returns the CPU time so far of a host without a control group.
	Used func() (time.Duration, error) `json:"-"`
}

// A Meter reads what the hosts use.
type Meter struct {
	hosts  []Host
	source source
}

// NewMeter returns a meter of hosts, whose sets of cores are equal or have no core in common.
func NewMeter(hosts []Host) (*Meter, error) {
	source, err := openSource()
	if err != nil {
		return nil, fmt.Errorf("measure the use of cores: %w", err)
	}
	return &Meter{hosts: hosts, source: source}, nil
}

// A Reading is what everything had used at one moment.
type Reading struct {
	at        time.Time
	used      []time.Duration       // by host
	throttled []time.Duration       // by host
	busy      map[int]time.Duration // by core
	kernel    map[int]time.Duration // by core
}

// Read reads the counters.
func (m *Meter) Read() (*Reading, error) {
	r := &Reading{at: time.Now(), used: make([]time.Duration, len(m.hosts)), throttled: make([]time.Duration, len(m.hosts))}
	var err error
	if r.busy, r.kernel, err = m.source.read(); err != nil {
		return nil, fmt.Errorf("read the use of cores: %w", err)
	}
	for i := range m.hosts {
		h := &m.hosts[i]
		if r.used[i], err = h.used(); err == nil && h.Quota != "" {
			r.throttled[i], err = controlgroup.Throttled(h.Quota)
		}
		if err != nil {
			return nil, fmt.Errorf("read the CPU time of host %s: %w", h.Name, err)
		}
	}
	return r, nil
}

// Sample follows the kernel's threads from core to core. Call it every second between two readings.
func (m *Meter) Sample() { m.source.kernel.sample() }

// Between returns what each host used from one reading to the next.
func (m *Meter) Between(from, to *Reading) []result.HostShare {
	foreign, kernel := map[string]time.Duration{}, map[string]time.Duration{} // by set of cores
	for i := range m.hosts {
		set := m.hosts[i].Cores.String()
		if _, known := foreign[set]; !known {
			for _, core := range m.hosts[i].Cores {
				kernel[set] += to.kernel[core] - from.kernel[core]
				foreign[set] += to.busy[core] - from.busy[core]
			}
			foreign[set] -= kernel[set]
		}
		foreign[set] -= to.used[i] - from.used[i]
	}
	shares := make([]result.HostShare, len(m.hosts))
	for i := range m.hosts {
		h := &m.hosts[i]
		shares[i] = result.HostShare{
			Name: h.Name, CPUs: h.CPUs, Cores: h.Cores.String(), CoreCount: len(h.Cores), Elapsed: to.at.Sub(from.at).Seconds(),
			Used: (to.used[i] - from.used[i]).Seconds(), Throttled: (to.throttled[i] - from.throttled[i]).Seconds(),
			Foreign: max(foreign[h.Cores.String()], 0).Seconds(), Kernel: kernel[h.Cores.String()].Seconds(),
		}
	}
	return shares
}

func (h *Host) used() (time.Duration, error) {
	if h.Used != nil {
		return h.Used()
	}
	return controlgroup.Used(h.Group)
}
