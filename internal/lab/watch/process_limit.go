package watch

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

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
	cpuDirs, memoryDirs := l.groups(pid)
	for _, dir := range cpuDirs {
		quota, ok := cores.QuotaIn(dir)
		if !ok {
			continue
		}
		if quota < cpus || values["throttled_seconds_total"] == 0 {
			if throttled, ok := throttledSeconds(dir); ok {
				values["throttled_seconds_total"] = throttled
			}
		}
		cpus = min(cpus, quota)
	}
	for _, dir := range memoryDirs {
		memory = min(memory, memoryLimit(dir))
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

// groups returns the directories of the process's control groups and of all groups above them, the innermost first.
func (l *limits) groups(pid int) (cpu, memory []string) {
	content, err := os.ReadFile(filepath.Join(l.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, nil
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(fields) != 3 {
			continue
		}
		controllers := strings.Split(fields[1], ",")
		for _, controller := range controllers {
			switch controller {
			case "":
				for _, root := range []string{l.mount, filepath.Join(l.mount, "unified")} {
					cpu, memory = appendGroups(cpu, root, fields[2]), appendGroups(memory, root, fields[2])
				}
			case "cpu":
				cpu = appendGroups(cpu, filepath.Join(l.mount, controller), fields[2])
			case "memory":
				memory = appendGroups(memory, filepath.Join(l.mount, controller), fields[2])
			}
		}
	}
	return cpu, memory
}

// appendGroups appends the directory of a group and those above it up to the root of the hierarchy.
func appendGroups(dirs []string, root, path string) []string {
	for path = filepath.Clean("/" + path); ; path = filepath.Dir(path) {
		dirs = append(dirs, filepath.Join(root, path))
		if path == "/" {
			return dirs
		}
	}
}

// throttledSeconds is how long the group's quota stopped it, summed over CPUs.
func throttledSeconds(dir string) (float64, bool) {
	content, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(content) {
		name, text, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		value, err := strconv.ParseUint(text, 10, 63)
		switch {
		case err != nil:
		case name == "throttled_usec": // version 2
			return float64(value) / 1e6, true
		case name == "throttled_time": // version 1
			return float64(value) / 1e9, true
		}
	}
	return 0, false
}

// unlimitedMemory is where version 1 begins to mean no limit: the highest number of whole pages.
const unlimitedMemory = 1 << 60

// memoryLimit is the most memory that the group may use, in bytes. From memory.high on, version 2 slows the group down.
func memoryLimit(dir string) float64 {
	least := math.Inf(1)
	for _, name := range []string{"memory.max", "memory.high", "memory.limit_in_bytes"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if value, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 63); err == nil && value < unlimitedMemory {
			least = min(least, float64(value))
		}
	}
	return least
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
