package watch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// A group reads the CPU time of a control group: of every process that ever ran in it, at the resolution of the kernel's
// counter.
type group struct {
	dir         string
	user, total uint64 // of version 1, as last read
}

// resolution is that of the sum of user and system time.
func (g *group) resolution() time.Duration {
	if g.total > 0 { // of version 1
		return time.Nanosecond
	}
	return time.Microsecond
}

// counter says which counter there is, for people.
func (g *group) counter() string {
	if _, err := os.Stat(filepath.Join(g.dir, "cpuacct.usage")); err == nil {
		return "cpuacct.usage of cgroup v1, in ns"
	}
	return "cpu.stat of cgroup v2, in µs"
}

// read returns the CPU time so far, in seconds. Neither part ever falls.
func (g *group) read() (user, system float64, err error) {
	content, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err == nil {
		if user, system, ok := parseCPUStat(content); ok {
			return float64(user) / 1e6, float64(system) / 1e6, nil
		}
	}
	var figures [3]uint64
	for i, name := range []string{"cpuacct.usage", "cpuacct.usage_user", "cpuacct.usage_sys"} {
		content, err := os.ReadFile(filepath.Join(g.dir, name))
		if err != nil {
			return 0, 0, fmt.Errorf("read control group: %w", err)
		}
		if figures[i], err = strconv.ParseUint(string(bytes.TrimSpace(content)), 10, 64); err != nil {
			return 0, 0, fmt.Errorf("read control group: %s: %w", name, err)
		}
	}
	g.split(figures[0], figures[1], figures[2])
	return float64(g.user) / 1e9, float64(g.total-g.user) / 1e9, nil
}

// split divides the exact total of cgroup v1 in the proportion of its user and system parts, which the kernel only
// samples.
func (g *group) split(total, sampledUser, sampledSystem uint64) {
	share := 0.0
	if sampled := sampledUser + sampledSystem; sampled > 0 {
		share = float64(sampledUser) / float64(sampled)
	}
	total = max(total, g.total)
	user := uint64(share * float64(total))
	g.user, g.total = min(max(user, g.user), g.user+total-g.total), total
}

// parseCPUStat reads cpu.stat of cgroup v2, in microseconds; not ok if a line is missing.
func parseCPUStat(content []byte) (user, system uint64, ok bool) {
	figures := map[string]uint64{}
	for line := range bytes.Lines(content) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if microseconds, err := strconv.ParseUint(string(value), 10, 64); err == nil {
			figures[string(name)] = microseconds
		}
	}
	user, hasUser := figures["user_usec"]
	system, hasSystem := figures["system_usec"]
	return user, system, hasUser && hasSystem
}
