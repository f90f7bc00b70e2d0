package watch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"spillway/internal/controlgroup"
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
	stat := controlgroup.Stat(g.dir)
	userTime, hasUser := stat["user_usec"]
	systemTime, hasSystem := stat["system_usec"]
	if hasUser && hasSystem {
		return userTime.Seconds(), systemTime.Seconds(), nil
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
