package watch

import (
	"context"
	"errors"

	"spillway/internal/lab/result"
)

// Host reads the CPUs, the pressure, the load and the memory of the host that the process runs on; in a container too,
// since /proc tells of the host there:
//
//   - cpu_user, cpu_system, cpu_idle, cpu_iowait, cpu_softirq (hard interrupts too) and cpu_steal_seconds_total, of all
//     CPUs together; a clock tick of 10 ms is what the kernel counts in,
//   - cores: CPUs online; load1; processes_running: tasks that run or wait for a CPU now; context_switches_total,
//   - psi_cpu_some, psi_io_some, psi_io_full and psi_memory_some_seconds_total: the time during which some tasks (full:
//     all that had work) stood still for want of it. Left out by a kernel without pressure stall information,
//   - memory_available_bytes: what programs can still get without swapping.
func Host() *Sampler {
	h := &host{}
	return &Sampler{Kind: result.SamplerHost, Detail: "CPU, pressure, load and memory of the host", Every: FastEvery, Read: h.read, Close: h.close}
}

type host struct {
	stat, load, memory *procFile
	pressure           [3]*procFile // cpu, io, memory; nil without PSI
	last               map[string]float64
}

// open opens what is to be read, once. A kernel without a file is a host without its figures.
func (h *host) open() error {
	if h.stat != nil {
		return nil
	}
	stat, err := openProc("/proc/stat")
	if err != nil {
		return err
	}
	h.stat = stat
	h.load, _ = openProc("/proc/loadavg")
	h.memory, _ = openProc("/proc/meminfo")
	for i, name := range [...]string{"cpu", "io", "memory"} {
		h.pressure[i], _ = openProc("/proc/pressure/" + name)
	}
	h.last = map[string]float64{}
	return nil
}

func (h *host) close() {
	closeAll(h.stat, h.load, h.memory)
	closeAll(h.pressure[:]...)
}

func (h *host) read(context.Context) ([]result.Sample, error) {
	if err := h.open(); err != nil {
		return nil, err
	}
	values := make(map[string]float64, 16)
	err := errors.Join(h.readStat(values), h.readLoad(values), h.readPressure(values), h.readMemory(values))
	h.keepRising(values)
	return []result.Sample{{Values: values}}, err
}

func (h *host) readStat(values map[string]float64) error {
	content, err := h.stat.read()
	if err != nil {
		return err
	}
	s, err := parseHostStat(content)
	if err != nil {
		return err
	}
	values["cpu_user_seconds_total"] = float64(s.user) / ticksPerSecond
	values["cpu_system_seconds_total"] = float64(s.system) / ticksPerSecond
	values["cpu_idle_seconds_total"] = float64(s.idle) / ticksPerSecond
	values["cpu_iowait_seconds_total"] = float64(s.iowait) / ticksPerSecond
	values["cpu_softirq_seconds_total"] = float64(s.softirq) / ticksPerSecond
	values["cpu_steal_seconds_total"] = float64(s.steal) / ticksPerSecond
	values["cores"] = float64(s.cores)
	if s.runningOK {
		values["processes_running"] = float64(s.running)
		values["context_switches_total"] = float64(s.switches)
	}
	return nil
}

func (h *host) readLoad(values map[string]float64) error {
	if h.load == nil {
		return nil
	}
	content, err := h.load.read()
	if err != nil {
		return err
	}
	load1, err := parseLoad(content)
	if err == nil {
		values["load1"] = load1
	}
	return err
}

// readPressure leaves out what the kernel does not tell. With PSI built in and switched off at boot, the files are
// there and reading them says so.
func (h *host) readPressure(values map[string]float64) error {
	names := [...][2]string{
		{"psi_cpu_some_seconds_total", ""},
		{"psi_io_some_seconds_total", "psi_io_full_seconds_total"},
		{"psi_memory_some_seconds_total", ""},
	}
	for i, f := range h.pressure {
		if f == nil {
			continue
		}
		content, err := f.read()
		if err != nil {
			f.close()
			h.pressure[i] = nil
			continue
		}
		some, full, err := parsePressure(content)
		if err != nil {
			return err
		}
		values[names[i][0]] = float64(some) / 1e6
		if names[i][1] != "" {
			values[names[i][1]] = float64(full) / 1e6
		}
	}
	return nil
}

func (h *host) readMemory(values map[string]float64) error {
	if h.memory == nil {
		return nil
	}
	content, err := h.memory.read()
	if err != nil {
		return err
	}
	if available, ok := parseAvailable(content); ok {
		values["memory_available_bytes"] = float64(available)
	}
	return nil
}

// keepRising holds a counter at its highest: the kernel takes idle and iowait time back when a CPU wakes up elsewhere
// than where the task slept.
func (h *host) keepRising(values map[string]float64) {
	for name, value := range values {
		if !result.Counter(name) {
			continue
		}
		if value < h.last[name] {
			values[name] = h.last[name]
		} else {
			h.last[name] = value
		}
	}
}
