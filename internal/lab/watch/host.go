package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"spillway/internal/lab/result"
)

// Host samples the CPUs, the pressure, the load and the memory of the host. In a container these are the host's too,
// because /proc shows them there:
//
//   - cpu_user, cpu_system, cpu_idle, cpu_iowait, cpu_softirq (with hard interrupts) and cpu_steal_seconds_total: the sum
//     over all CPUs, counted in ticks of 10 ms,
//   - cores: CPUs online; load1,
//   - psi_cpu_some, psi_io_some, psi_io_full and psi_memory_some_seconds_total: the time during which some tasks (full:
//     all tasks that had work) waited for the resource. Missing if the kernel has no pressure stall information,
//   - memory_available_bytes: memory that programs can get without swapping,
//   - oom_kills_total: programs that the kernel killed because their group or the host had no memory left.
func Host() *Sampler {
	h := &host{last: map[string]float64{}}
	return &Sampler{Kind: result.SamplerHost, Detail: "CPU, pressure, load and memory of the host", Every: FastEvery, Read: h.read}
}

type host struct {
	last map[string]float64 // highest value of each counter
}

// openProc opens /proc.
func openProc() (procfs.FS, error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return proc, fmt.Errorf("watch this host, which needs Linux: %w", err)
	}
	return proc, nil
}

func (h *host) read(context.Context) ([]result.Sample, error) {
	proc, err := openProc()
	if err != nil {
		return nil, err
	}
	values := make(map[string]float64, 16)
	stat, err := proc.Stat()
	if err == nil {
		cpu := stat.CPUTotal
		values["cpu_user_seconds_total"] = cpu.User + cpu.Nice
		values["cpu_system_seconds_total"] = cpu.System
		values["cpu_idle_seconds_total"] = cpu.Idle
		values["cpu_iowait_seconds_total"] = cpu.Iowait
		values["cpu_softirq_seconds_total"] = cpu.IRQ + cpu.SoftIRQ
		values["cpu_steal_seconds_total"] = cpu.Steal
		values["cores"] = float64(len(stat.CPU))
	}
	load, loadErr := proc.LoadAvg()
	if loadErr == nil {
		values["load1"] = load.Load1
	}
	memory, memoryErr := proc.Meminfo()
	if memory.MemAvailableBytes != nil {
		values["memory_available_bytes"] = float64(*memory.MemAvailableBytes)
	}
	readPressure(proc, values)
	if content, err := os.ReadFile("/proc/vmstat"); err == nil {
		_, kills, _ := strings.Cut(string(content), "\noom_kill ")
		kills, _, _ = strings.Cut(kills, "\n")
		if n, err := strconv.ParseFloat(kills, 64); err == nil {
			values["oom_kills_total"] = n
		}
	}
	h.keepRising(values)
	return []result.Sample{{Values: values}}, errors.Join(err, loadErr, memoryErr)
}

// readPressure omits what the kernel does not report. The files can exist and be unreadable: pressure stall information
// may be disabled at boot.
func readPressure(proc procfs.FS, values map[string]float64) {
	for _, name := range [...]string{"cpu", "io", "memory"} {
		pressure, err := proc.PSIStatsForResource(name)
		if err != nil {
			continue
		}
		if pressure.Some != nil {
			values["psi_"+name+"_some_seconds_total"] = float64(pressure.Some.Total) / 1e6
		}
		if pressure.Full != nil && name == "io" {
			values["psi_io_full_seconds_total"] = float64(pressure.Full.Total) / 1e6
		}
	}
}

// keepRising replaces a counter that fell by its highest value. The kernel lowers idle and iowait time when a task wakes
// up on another CPU than it slept on.
func (h *host) keepRising(values map[string]float64) {
	for name, value := range values {
		if result.Counter(name) {
			h.last[name] = max(h.last[name], value)
			values[name] = h.last[name]
		}
	}
}
