package cores

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Quota is the limit of CPU time of a service's control group, of version 1 or 2. It is not safe for concurrent use.
type Quota struct {
	dir      string
	names    []string // files that set it, the quota last
	original []string // their contents
	now      []string // the same after the last Set
	period   float64  // microseconds
	cpus     float64  // originally; +Inf: no limit
	most     float64  // what the service can have without it
	changed  bool
}

// quotaLeast is the least quota that the kernel accepts, in microseconds.
const quotaLeast = 1000

// QuotaOf finds the quota of the control group of a service's processes, at least one. The group must be of its own: all of these are
// in it, and no other. It may be written to.
func QuotaOf(pids []int) (*Quota, error) {
	if len(pids) == 0 {
		return nil, errors.New("the process of the service has ended")
	}
	q, err := quotaOf("/proc", "/sys/fs/cgroup", pids, os.Getpid())
	if err != nil {
		return nil, err
	}
	if cores, err := AffinityOf(pids[0]); err == nil {
		q.most = min(q.most, float64(len(cores)))
	}
	return q, nil
}

// ownGroup is how to give a service a control group of its own.
const ownGroup = "start it in one of its own, as with systemd-run -p CPUQuota=200%, or in a container, or write a command, as in " +
	"'cpus=1,2: docker update --cpus \"$VALUE\" app'"

func quotaOf(proc, mount string, pids []int, self int) (*Quota, error) {
	path, root, err := cpuGroup(proc, mount, pids[0])
	if err != nil {
		return nil, err
	}
	own, _, err := cpuGroup(proc, mount, self)
	if err != nil {
		return nil, err
	}
	q := &Quota{dir: filepath.Join(root, path), cpus: math.Inf(1), most: math.Inf(1)}
	switch {
	case path == "/":
		return nil, fmt.Errorf("process %d is in no control group for CPU time: %s", pids[0], ownGroup)
	case own == path || strings.HasPrefix(own, path+"/"):
		return nil, fmt.Errorf("process %d is in the control group of the load generator: %s", pids[0], ownGroup)
	}
	if err := q.find(); err != nil {
		return nil, fmt.Errorf("limit the CPU time of process %d: %w", pids[0], err)
	}
	if err := q.alone(proc, pids); err != nil {
		return nil, err
	}
	for dir := filepath.Dir(q.dir); strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
		if cpus, ok := QuotaIn(dir); ok {
			q.most = min(q.most, cpus)
		}
	}
	return q, nil
}

// find finds the files of the quota and reads them.
func (q *Quota) find() error {
	q.names = []string{"cpu.max"}
	if _, err := os.Stat(filepath.Join(q.dir, "cpu.cfs_quota_us")); err == nil {
		q.names = []string{"cpu.cfs_period_us", "cpu.cfs_quota_us"}
	}
	var err error
	q.original, err = q.read()
	if q.now = q.original; errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("its control group %s has no limit of CPU time: turn the controller on, as with systemctl set-property UNIT "+
			"CPUQuota=200%%", q.dir)
	}
	if err != nil {
		return err
	}
	period := q.original[0]
	if len(q.names) == 1 {
		_, period, _ = strings.Cut(period, " ")
	}
	if q.period, err = strconv.ParseFloat(period, 64); err != nil || !(q.period > 0) {
		return fmt.Errorf("its control group %s has the period %q, which is not a number", q.dir, period)
	}
	if cpus, ok := QuotaIn(q.dir); ok {
		q.cpus = cpus
	}
	f, err := os.OpenFile(filepath.Join(q.dir, q.names[len(q.names)-1]), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("%w: run as root", err)
	}
	return f.Close()
}

// alone checks that the processes are in the group or below it, and no others.
func (q *Quota) alone(proc string, pids []int) error {
	var inside []int
	err := filepath.WalkDir(q.dir, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		for text := range strings.FieldsSeq(string(content)) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			inside = append(inside, pid)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the processes of the control group %s: %w", q.dir, err)
	}
	alive := func(pid int) bool {
		_, err := os.Stat(filepath.Join(proc, strconv.Itoa(pid)))
		return err == nil
	}
	for _, pid := range inside {
		if !slices.Contains(pids, pid) && alive(pid) {
			return fmt.Errorf("process %d is in the control group %s of process %d, and does not belong to it: %s", pid, q.dir, pids[0], ownGroup)
		}
	}
	for _, pid := range pids {
		if !slices.Contains(inside, pid) && alive(pid) {
			return fmt.Errorf("process %d belongs to process %d, and is not in its control group %s: %s", pid, pids[0], q.dir, ownGroup)
		}
	}
	return nil
}

// read reads the files of the quota.
func (q *Quota) read() (contents []string, err error) {
	for _, name := range q.names {
		text, err := os.ReadFile(filepath.Join(q.dir, name))
		if err != nil {
			return nil, err
		}
		contents = append(contents, strings.TrimSpace(string(text)))
	}
	return contents, nil
}

// cpuGroup returns the path of a process's control group for CPU time, and where its hierarchy is mounted.
func cpuGroup(proc, mount string, pid int) (path, root string, err error) {
	content, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", "", fmt.Errorf("find the control group of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(fields) != 3 {
			continue
		}
		switch {
		case slices.Contains(strings.Split(fields[1], ","), "cpu"):
			return filepath.Clean(fields[2]), filepath.Join(mount, "cpu"), nil
		case fields[1] == "":
			path, root = filepath.Clean(fields[2]), mount
		}
	}
	if root == "" {
		return "", "", errors.New("this host has no control groups for CPU time")
	}
	return path, root, nil
}

// QuotaIn is how many CPUs the control group in a directory may use; not ok without a quota.
func QuotaIn(dir string) (cpus float64, ok bool) {
	if content, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil {
		fields := strings.Fields(string(content))
		if len(fields) != 2 {
			return 0, false
		}
		return quotient(fields[0], fields[1])
	}
	quota, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us"))
	period, periodErr := os.ReadFile(filepath.Join(dir, "cpu.cfs_period_us"))
	if err != nil || periodErr != nil {
		return 0, false
	}
	return quotient(strings.TrimSpace(string(quota)), strings.TrimSpace(string(period)))
}

// quotient divides two positive numbers; not ok for anything else, such as "max" and -1.
func quotient(a, b string) (float64, bool) {
	x, err := strconv.ParseUint(a, 10, 63)
	y, errY := strconv.ParseUint(b, 10, 63)
	if err != nil || errY != nil || x == 0 || y == 0 {
		return 0, false
	}
	return float64(x) / float64(y), true
}

// CPUs is the limit that was found, +Inf for none.
func (q *Quota) CPUs() float64 { return q.cpus }

// Most is how many CPUs the service can have: those of its affinity, within the limits of the groups above.
func (q *Quota) Most() float64 { return q.most }

// Least is the least number of CPUs that the kernel accepts as a limit.
func (q *Quota) Least() float64 { return quotaLeast / q.period }

// Set limits the group to so many CPUs. It is an error if something else has changed the limit since it was found or set.
func (q *Quota) Set(cpus float64) error {
	quota := math.Round(cpus * q.period)
	if quota < quotaLeast {
		return fmt.Errorf("%g CPUs are less than the kernel accepts: at least %g", cpus, q.Least())
	}
	now, err := q.read()
	if err != nil {
		return fmt.Errorf("read the limit of CPU time: %w", err)
	}
	if !slices.Equal(now, q.now) {
		return fmt.Errorf("something else has changed the limit of CPU time in %s", q.dir)
	}
	text := strconv.FormatFloat(quota, 'f', 0, 64)
	if len(q.names) == 1 {
		text += " " + strconv.FormatFloat(q.period, 'f', 0, 64)
	}
	if err := q.write(text); err != nil {
		return err
	}
	q.changed = true
	if q.now, err = q.read(); err != nil {
		return fmt.Errorf("read the limit of CPU time: %w", err)
	}
	return nil
}

// Restore sets what was found, if Set has changed it.
func (q *Quota) Restore() error {
	if !q.changed {
		return nil
	}
	return q.write(q.original[len(q.original)-1])
}

// RestoreCommand is what a user types to do what Restore does.
func (q *Quota) RestoreCommand() string {
	last := len(q.names) - 1
	return fmt.Sprintf("echo %s > '%s'", q.original[last], strings.ReplaceAll(filepath.Join(q.dir, q.names[last]), "'", `'\''`))
}

func (q *Quota) write(text string) error {
	if err := os.WriteFile(filepath.Join(q.dir, q.names[len(q.names)-1]), []byte(text), 0); err != nil {
		return fmt.Errorf("limit CPU time: %w", err)
	}
	return nil
}
