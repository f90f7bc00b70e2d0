package watch

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"spillway/internal/controlgroup"
	"spillway/internal/lab/cores"
)

// busyCores adds up how busy the CPUs are that a process may use, whoever uses them. The set of CPUs may change.
type busyCores struct {
	last  map[int64]float64 // seconds, by CPU
	total float64
}

// next adds what the allowed CPUs did since the last reading.
func (b *busyCores) next(stat map[int64]procfs.CPUStat, allowed func(cpu int) bool) float64 {
	now := make(map[int64]float64, len(stat))
	for cpu, c := range stat {
		now[cpu] = c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
		if before, ok := b.last[cpu]; ok && allowed(int(cpu)) {
			b.total += max(now[cpu]-before, 0)
		}
	}
	b.last = now
	return b.total
}

// limits finds how much CPU and memory a process may use. It reads the process's affinity and its control groups, of version 1 or
// 2, up to the root that this host shows, and, once per process, the heap limit that its runtime was started with.
type limits struct {
	proc, mount string // where /proc and the control groups are mounted
	pid         int    // whose heap limit is known
	heap        float64
	busy        busyCores
}

// read sets cpu_limit, cpu_allowed, cpu_allowed_busy_seconds_total, throttled_seconds_total and memory_limit_bytes. A figure that does not
// exist is left out.
func (l *limits) read(pid int, values map[string]float64) {
	cpus, memory := math.Inf(1), math.Inf(1)
	if affinity, err := cores.AffinityOf(pid); err == nil {
		cpus = float64(len(affinity))
		values["cpu_allowed"] = cpus
		if proc, err := openProc(); err == nil {
			if stat, err := proc.Stat(); err == nil {
				values["cpu_allowed_busy_seconds_total"] = l.busy.next(stat.CPU, func(cpu int) bool { return slices.Contains(affinity, cpu) })
			}
		}
	}
	for _, dir := range controlgroup.Of(l.proc, l.mount, pid, "cpu") {
		quota := controlgroup.Quota(dir)
		if math.IsInf(quota, 1) {
			continue
		}
		if quota < cpus || values["throttled_seconds_total"] == 0 {
			if throttled, err := controlgroup.Throttled(dir); err == nil {
				values["throttled_seconds_total"] = throttled.Seconds()
			}
		}
		cpus = min(cpus, quota)
	}
	for _, dir := range controlgroup.Of(l.proc, l.mount, pid, "memory") {
		memory = min(memory, controlgroup.Memory(dir))
	}
	if l.pid != pid {
		l.pid, l.heap = pid, l.heapLimit(pid)
	}
	if !math.IsInf(cpus, 1) {
		values["cpu_limit"] = cpus
	}
	if memory = min(memory, l.heap); !math.IsInf(memory, 1) {
		values["memory_limit_bytes"] = memory
	}
}

// heapLimit is what the process's runtime was told to keep its heap below: GOMEMLIMIT of Go, -Xmx of Java and
// --max-old-space-size of Node; infinite without one.
func (l *limits) heapLimit(pid int) float64 {
	least := math.Inf(1)
	dir := filepath.Join(l.proc, strconv.Itoa(pid))
	words := func(name string) []string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil
		}
		return strings.FieldsFunc(string(content), func(r rune) bool { return r == 0 })
	}
	for _, word := range words("environ") {
		if text, ok := strings.CutPrefix(word, "GOMEMLIMIT="); ok {
			least = min(least, byteSize(text, 1))
		}
	}
	for _, word := range words("cmdline") {
		if text, ok := strings.CutPrefix(word, "-Xmx"); ok {
			least = min(least, byteSize(text, 1))
		}
		if text, ok := strings.CutPrefix(word, "--max-old-space-size="); ok {
			least = min(least, byteSize(text, 1<<20))
		}
	}
	return least
}

// byteSize reads a size such as 64MiB, 512m or 64, the last in units; infinite if it is none.
func byteSize(text string, unit float64) float64 {
	digits := strings.TrimRight(text, "kKmMgGtTiIbB")
	value, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || value == 0 {
		return math.Inf(1)
	}
	suffix := strings.ToLower(text[len(digits):])
	if suffix == "" {
		return float64(value) * unit
	}
	power := strings.IndexByte("bkmgt", suffix[0])
	if power < 0 {
		return math.Inf(1)
	}
	return float64(value) * math.Pow(1024, float64(power))
}
