package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"spillway/internal/controlgroup"
)

// CPUAccounting says how the CPU time of services is counted, and in which unit.
type CPUAccounting struct {
	Source     string  `json:"source"`             // CPUControlGroup2, CPUControlGroup1 or CPUProcessTree
	Resolution float64 `json:"resolution_seconds"` // unit of the counter
}

// Sources of CPU time. A control group counts every process that ever ran in it. A process tree is read process by
// process from /proc, in clock ticks.
const (
	CPUControlGroup2 = "cgroup v2"
	CPUControlGroup1 = "cgroup v1"
	CPUProcessTree   = "process tree"
)

// accountings are the ways to count CPU time, the preferred one first.
func accountings() []CPUAccounting {
	return []CPUAccounting{{CPUControlGroup2, 1e-6}, {CPUControlGroup1, 1e-9}, {CPUProcessTree, 0.01}}
}

// controller is the controller of version 1 that counts CPU time, "" for version 2.
func (a CPUAccounting) controller() string {
	if a.Source == CPUControlGroup1 {
		return "cpuacct"
	}
	return ""
}

// cgroups makes a control group for each service, below the group of this process: its limits hold for services too.
type cgroups struct {
	accounting CPUAccounting
	dir        string                 // of this process's own group; "" if services get none
	prefix     string                 // of the names of the groups
	hosts      map[string]*hostGroups // of the hosts with a share of CPU
}

// cgroup is the control group of one service. A nil cgroup has no members.
type cgroup struct {
	source string
	dir    string
	joins  []join // further groups that its processes are in
}

// openCgroups finds the best way to count CPU time that works here: it starts a process in a group to try.
func openCgroups(ctx context.Context, prefix string) *cgroups {
	for _, accounting := range accountings() {
		c := &cgroups{accounting: accounting, prefix: prefix, hosts: map[string]*hostGroups{}}
		if accounting.Source == CPUProcessTree {
			return c
		}
		if c.dir = controlgroup.Own(accounting.controller()); c.dir != "" && c.try(ctx) == nil {
			return c
		}
	}
	panic("bug: there is no way to count CPU time")
}

// try starts a process in a group and removes the group.
func (c *cgroups) try(ctx context.Context) error {
	group, err := c.create("probe", "")
	if err != nil {
		return err
	}
	err = run(ctx, startSpec{command: []string{"true"}, directory: "/", log: os.DevNull, signal: syscall.SIGKILL, cgroup: group}, time.Second)
	return errors.Join(err, group.remove())
}

// create makes a group for a process on a host, nil if services get none.
func (c *cgroups) create(name, host string) (*cgroup, error) {
	if c.accounting.Source == CPUProcessTree {
		return nil, nil
	}
	group, parent := &cgroup{source: c.accounting.Source}, c.dir
	if g := c.hosts[host]; g != nil {
		group.joins = g.joins
		if g.parent != "" {
			parent = g.parent
		}
	}
	group.dir = filepath.Join(parent, c.prefix+name)
	if err := os.Mkdir(group.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	if group.source == CPUControlGroup1 {
		group.joins = append(slices.Clone(group.joins), join{group.dir, c.dir})
	}
	return group, nil
}

// members are the processes of the group. Zombies are left out.
func (g *cgroup) members() []identity {
	if g == nil {
		return nil
	}
	pids, _ := controlgroup.Processes(g.dir) // without the group there are none
	var found []identity
	for _, pid := range pids {
		found = append(found, identify(pid))
	}
	return slices.DeleteFunc(found, func(i identity) bool { return !i.alive() })
}

// remove kills the members and removes the group.
func (g *cgroup) remove() error {
	if g == nil {
		return nil
	}
	poll := time.Tick(10 * time.Millisecond)
	for range 200 {
		killAll(g.members())
		err := os.Remove(g.dir)
		if !errors.Is(err, syscall.EBUSY) { // a process leaves its group some time after it has ended
			return err
		}
		<-poll
	}
	return fmt.Errorf("remove control group %s: it still has processes", g.dir)
}

// runGroups returns the groups whose names begin with prefix, in every hierarchy. A group follows those below it.
func runGroups(prefix string) []*cgroup {
	hierarchies := []string{controlgroup.Top()}
	for _, controller := range []string{"", "cpuacct", "cpu", "cpuset"} {
		hierarchies = append(hierarchies, controlgroup.Own(controller))
	}
	slices.Sort(hierarchies)
	var groups []*cgroup
	for _, own := range slices.Compact(hierarchies) {
		if own == "" {
			continue
		}
		for _, pattern := range []string{prefix + "*/" + prefix + "*", prefix + "*"} {
			dirs, _ := filepath.Glob(filepath.Join(own, pattern))
			for _, dir := range dirs {
				groups = append(groups, &cgroup{dir: dir})
			}
		}
	}
	return groups
}
