// Package controlgroup reads the control groups of Linux, of version 1 and 2: where they are, what they limit and count, and their
// processes. A group is its directory below a mount. What cannot be read has no limit and no process.
package controlgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Mount is where control groups are mounted: the hierarchy of version 2, or one directory per controller of version 1.
const Mount = "/sys/fs/cgroup"

// Top returns the top of the mounted hierarchy of version 2, "" without one.
func Top() string {
	mounts, err := procfs.GetMounts()
	if err != nil {
		return ""
	}
	for _, mount := range mounts {
		if mount.FSType == "cgroup2" {
			return mount.MountPoint
		}
	}
	return ""
}

// Own returns this process's group with a controller of version 1, or that of version 2 for controller "". It is "" without one.
func Own(controller string) string {
	self, err := procfs.Self()
	if err != nil {
		return ""
	}
	groups, err := self.Cgroups()
	if err != nil {
		return ""
	}
	mounts, err := procfs.GetMounts()
	if err != nil {
		return ""
	}
	return locate(controller, groups, mounts)
}

// locate is Own among the groups of a process and the mounts that it sees.
func locate(controller string, groups []procfs.Cgroup, mounts []*procfs.MountInfo) string {
	for _, group := range groups {
		v2 := group.HierarchyID == 0
		if v2 != (controller == "") || !v2 && !slices.Contains(group.Controllers, controller) {
			continue
		}
		for _, mount := range mounts {
			_, counts := mount.SuperOptions[controller]
			if v2 && mount.FSType != "cgroup2" || !v2 && (mount.FSType != "cgroup" || !counts) {
				continue
			}
			if path, err := filepath.Rel(mount.Root, group.Path); err == nil && filepath.IsLocal(path) {
				return filepath.Join(mount.MountPoint, path)
			}
		}
	}
	return ""
}

// Of returns the groups of a process that limit what a controller ("cpu", "memory") counts, of both versions: its own and all above
// them, the innermost first. proc and mount are the directories of /proc and of Mount.
func Of(proc, mount string, pid int, controller string) []string {
	content, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil
	}
	var dirs []string
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(fields) != 3 {
			continue
		}
		switch {
		case fields[1] == "":
			dirs = appendAbove(dirs, mount, fields[2])
			dirs = appendAbove(dirs, filepath.Join(mount, "unified"), fields[2])
		case slices.Contains(strings.Split(fields[1], ","), controller):
			dirs = appendAbove(dirs, filepath.Join(mount, controller), fields[2])
		}
	}
	return dirs
}

// appendAbove appends a group and those above it up to the root of the hierarchy.
func appendAbove(dirs []string, root, path string) []string {
	for path = filepath.Clean("/" + path); ; path = filepath.Dir(path) {
		dirs = append(dirs, filepath.Join(root, path))
		if path == "/" {
			return dirs
		}
	}
}

// Quota is how many CPUs a group may use, +Inf without a limit.
func Quota(dir string) float64 {
	quota, period, _ := strings.Cut(read(dir, "cpu.max"), " ")
	if quota == "" {
		quota, period = read(dir, "cpu.cfs_quota_us"), read(dir, "cpu.cfs_period_us")
	}
	microseconds := limit(period)
	if math.IsInf(microseconds, 1) {
		return microseconds
	}
	return limit(quota) / microseconds
}

// Memory is how many bytes of memory a group may use, +Inf without a limit. From memory.high on, version 2 slows it down.
func Memory(dir string) float64 {
	return min(limit(read(dir, "memory.max")), limit(read(dir, "memory.high")), limit(read(dir, "memory.limit_in_bytes")))
}

// read returns the text of a file of a group, "" without one.
func read(dir, name string) string {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// unlimited is where version 1 begins to mean no limit of memory: the highest number of whole pages.
const unlimited = 1 << 60

// limit is a positive number, and +Inf for anything else, such as "max" and -1.
func limit(text string) float64 {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n == 0 || n >= unlimited {
		return math.Inf(1)
	}
	return float64(n)
}

// Used is the CPU time of all processes that ever ran in a group.
func Used(dir string) (time.Duration, error) {
	if n, err := strconv.ParseInt(read(dir, "cpuacct.usage"), 10, 64); err == nil {
		return time.Duration(n), nil
	}
	if used, ok := Stat(dir)["usage_usec"]; ok {
		return used, nil
	}
	return 0, fmt.Errorf("%s does not count CPU time", dir)
}

// Throttled is for how long the quota of a group stopped it, summed over CPUs.
func Throttled(dir string) (time.Duration, error) {
	stat := Stat(dir)
	for _, name := range []string{"throttled_usec", "throttled_time"} {
		if stopped, ok := stat[name]; ok {
			return stopped, nil
		}
	}
	return 0, fmt.Errorf("%s does not count how long its quota stopped it", dir)
}

// Stat is the times in the cpu.stat of a group, by name. Those of version 2 end in _usec, those of version 1 in _time.
func Stat(dir string) map[string]time.Duration {
	times := map[string]time.Duration{}
	for line := range strings.Lines(read(dir, "cpu.stat")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil:
		case strings.HasSuffix(name, "_usec"):
			times[name] = time.Duration(n) * time.Microsecond
		case strings.HasSuffix(name, "_time"):
			times[name] = time.Duration(n)
		}
	}
	return times
}

// Processes returns the processes in a group and in the groups below it.
func Processes(dir string) (pids []int, err error) {
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return err
		}
		content, err := os.ReadFile(path)
		for text := range strings.FieldsSeq(string(content)) {
			if pid, err := strconv.ParseUint(text, 10, 31); err == nil && pid > 0 {
				pids = append(pids, int(pid))
			}
		}
		if errors.Is(err, unix.EOPNOTSUPP) { // a threaded group
			return nil
		}
		return err
	})
	return pids, err
}
