package app

import (
	"os"
	"path"
	"strconv"
	"strings"

	"spillway/internal/serve/config"
)

// windowsBytesMost is the memory of all windows for which the configuration says nothing, on a machine with enough of it.
const windowsBytesMost = 128 << 20

// windowsShare returns the default of windows_bytes: an equal share for each feed that may have more than one window.
func windowsShare(feeds []config.Feed) int64 {
	var sharers int64
	for _, f := range feeds {
		if f.WindowsMem == 0 && len(f.Params)+len(f.Filters) > 0 {
			sharers++
		}
	}
	return min(windowsBytesMost, memoryLimit("/")/8) / max(1, sharers)
}

// memoryLimit returns the lowest memory limit of this process's control group and of those above
// it, below a root; a very large number if there is none, or no control group.
func memoryLimit(root string) int64 {
	limit := int64(1) << 62
	groups, _ := os.ReadFile(path.Join(root, "/proc/self/cgroup")) // missing outside of Linux
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		mount, file := path.Join(root, "/sys/fs/cgroup"), "memory.max"
		if parts[1] != "" { // version 1
			mount, file = path.Join(mount, "memory"), "memory.limit_in_bytes"
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			text, _ := os.ReadFile(path.Join(mount, group, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return limit
}
