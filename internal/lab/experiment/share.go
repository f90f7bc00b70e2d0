package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/controlgroup"
	"spillway/internal/lab/cores"
)

// quotaPeriod is the time in which a host may use its share, in microseconds. It is no multiple of a clock tick, because
// /proc/stat would otherwise look at the same part of each period.
const quotaPeriod = 4700

// sharesVariable passes the hosts to `spillway load`.
const sharesVariable = "SPILLWAY_LOAD_HOSTS"

// divided reports whether each host has a share of CPU.
func (f *File) divided() bool { return len(f.Hosts) > 0 && f.Hosts[0].CPUs > 0 }

// separate reports whether each host is a network namespace.
func (f *File) separate() bool { return len(f.Hosts) > 0 && f.Network != NetworkLoopback }

// checkShares checks the shares of hosts. That they fit this machine is checked by divide.
func (f *File) checkShares(wrong reporter) {
	if f.Network != "" && (f.Network != NetworkLoopback || !f.divided()) {
		wrong("network", "must be %s, with cpus for each host, or be left out", NetworkLoopback)
	}
	for _, h := range f.Hosts {
		path := "hosts." + h.Name + ".cpus"
		if f.Network == NetworkLoopback && (h.Ports != "" || h.Sysctl != nil) {
			wrong("hosts."+h.Name, "ports and sysctl need a network of its own; remove network: %s", NetworkLoopback)
		}
		switch {
		case !hasKey(f.places, path) && !f.divided():
		case (h.CPUs > 0) != f.divided():
			wrong("hosts."+h.Name, "give every host cpus, or none")
		case math.IsNaN(h.CPUs) || h.CPUs < cores.CPUsMin || h.CPUs > 1024:
			wrong(path, "must be from %g to 1024", cores.CPUsMin)
		}
	}
}

// divide gives each host its cores. Hosts that only generate load get the same ones, because one of them runs at a time.
func (f *File) divide() (map[string]cores.Set, error) {
	if !f.divided() {
		return nil, nil
	}
	available, err := cores.Available()
	if err != nil {
		return nil, f.mistake("hosts", "cpus: %v", err)
	}
	return f.divideCores(available)
}

// divideCores is divide among these cores.
func (f *File) divideCores(available cores.Set) (map[string]cores.Set, error) {
	var names []string
	var shares []float64
	most := -1 // index of the largest share of a host that only generates load
	for _, h := range f.Hosts {
		switch {
		case f.mayServe(h.Name):
		case most < 0:
			most = len(names)
		default:
			shares[most] = max(shares[most], h.CPUs)
			continue
		}
		names, shares = append(names, h.Name), append(shares, h.CPUs)
	}
	sets, err := cores.Allot(available, shares)
	if err != nil {
		return nil, f.mistake("hosts", "%v", err)
	}
	divided := map[string]cores.Set{}
	for _, h := range f.Hosts {
		i := slices.Index(names, h.Name)
		if i < 0 {
			i = most
		}
		divided[h.Name] = sets[i]
	}
	return divided, nil
}

// mayServe reports whether a service may run on the host.
func (f *File) mayServe(host string) bool {
	return slices.ContainsFunc(f.Services, func(s Service) bool {
		return s.Host == host || strings.Contains(s.Host, "{{") || s.Host == "" && host == f.Hosts[0].Name
	})
}

// advice returns a line for a file whose load and services disturb each other, "" for none.
func (f *File) advice() string {
	if f.divided() {
		return ""
	}
	return "advice: the load and the services share all cores of this machine, so a run at saturation is HOST_CONTENDED; give each host " +
		"cpus, as in hosts: {load: {cpus: 1}, app: {cpus: 1}}"
}

// join is a control group of version 1 that a thread enters to start a process in it, and the one that it returns to.
type join struct{ dir, back string }

// hostGroups are the control groups of a host with a share of CPU.
type hostGroups struct {
	host   cores.Host
	parent string // of the services' groups, "" for that of this process
	joins  []join // of version 1, for every process of the host
}

// errShares says what a share of CPU needs.
var errShares = errors.New("cpus: needs control groups with the controllers cpu and cpuset that spillway may write to; in a " +
	"container, mount them writable, or remove cpus")

// share makes the groups of a host.
func (c *cgroups) share(name string, cpus float64, set cores.Set) error {
	if c.accounting.Source == CPUProcessTree {
		return errShares
	}
	g := &hostGroups{host: cores.Host{Name: name, CPUs: cpus, Cores: set}}
	quota := 0
	if cpus < float64(len(set)) {
		quota = int(math.Round(cpus * quotaPeriod))
	}
	file := c.prefix + "host-" + name
	var err error
	if controlgroup.Own("cpu") != "" && controlgroup.Own("cpuset") != "" {
		err = c.share1(g, file, quota)
	} else {
		err = c.share2(controlgroup.Top(), g, file, quota)
	}
	if err != nil {
		return fmt.Errorf("%w (%w)", errShares, err)
	}
	c.hosts[name] = g
	return nil
}

// share1 uses version 1. Controllers can have a hierarchy each, or share one.
func (c *cgroups) share1(g *hostGroups, file string, quota int) error {
	for _, controller := range []string{"cpuacct", "cpu", "cpuset"} {
		own := controlgroup.Own(controller)
		dir := filepath.Join(own, file)
		if !slices.Contains(g.joins, join{dir, own}) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			g.joins = append(g.joins, join{dir, own})
		}
		settings := [][2]string{}
		switch controller {
		case "cpuacct":
			g.host.Group = dir
		case "cpu":
			if quota > 0 {
				g.host.Quota = dir
				settings = [][2]string{{"cpu.cfs_period_us", strconv.Itoa(quotaPeriod)}, {"cpu.cfs_quota_us", strconv.Itoa(quota)}}
			}
		case "cpuset":
			memory, err := os.ReadFile(filepath.Join(own, "cpuset.mems"))
			if err != nil {
				return err
			}
			settings = [][2]string{{"cpuset.mems", strings.TrimSpace(string(memory))}, {"cpuset.cpus", g.host.Cores.String()}}
		}
		if err := writeSettings(dir, settings); err != nil {
			return err
		}
	}
	if c.accounting.Source == CPUControlGroup1 { // a service's group counts its time, and is below that of the host
		g.parent = g.host.Group
		g.joins = slices.DeleteFunc(g.joins, func(j join) bool { return j.dir == g.parent })
	}
	return nil
}

// share2 uses version 2, at the top of the mounted hierarchy: a group that has processes, such as that of this process, cannot
// limit groups below it.
func (c *cgroups) share2(top string, g *hostGroups, file string, quota int) error {
	if top == "" || c.accounting.Source != CPUControlGroup2 {
		return errors.New("there are none")
	}
	dir := filepath.Join(top, file)
	if err := writeSettings(top, [][2]string{{"cgroup.subtree_control", "+cpu +cpuset"}}); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	g.parent, g.host.Group = dir, dir
	settings := [][2]string{{"cpuset.cpus", g.host.Cores.String()}}
	if quota > 0 {
		g.host.Quota = dir
		settings = append(settings, [2]string{"cpu.max", fmt.Sprintf("%d %d", quota, quotaPeriod)})
	}
	return writeSettings(dir, settings)
}

func writeSettings(dir string, settings [][2]string) error {
	for _, s := range settings {
		if err := os.WriteFile(filepath.Join(dir, s[0]), []byte(s[1]), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// shareHosts makes the groups of the hosts, if they have shares, and describes them.
func (e *engine) shareHosts(facts []HostFacts) error {
	sets, err := e.file.divide()
	if err != nil {
		return err
	}
	for i := range facts {
		set, divided := sets[facts[i].Name]
		if !divided {
			continue
		}
		facts[i].CPUs, facts[i].Cores = e.file.Hosts[i].CPUs, set.String()
		if err := e.cgroups.share(facts[i].Name, facts[i].CPUs, set); err != nil {
			return err
		}
	}
	return nil
}

// visitor returns a group for a process that is no service: the load, or the watch of a host. It is nil unless the host has a
// share of CPU.
func (e *engine) visitor(name, host string) (*cgroup, error) {
	if e.cgroups.hosts[host] == nil {
		return nil, nil
	}
	e.starts++
	return e.cgroups.create(fmt.Sprintf("%s-%d", name, e.starts), host)
}

// shareEnv describes the hosts to the load on one of them, nil if they have no shares. Other hosts that only generate load do
// nothing meanwhile.
func (e *engine) shareEnv(load string) ([]string, error) {
	var hosts []cores.Host
	for _, h := range e.file.Hosts {
		if g := e.cgroups.hosts[h.Name]; g != nil && (h.Name == load || e.file.mayServe(h.Name)) {
			hosts = append(hosts, g.host)
		}
	}
	if hosts == nil {
		return nil, nil
	}
	text, err := json.Marshal(hosts)
	return []string{sharesVariable + "=" + string(text)}, err
}

// visit runs the load on a host.
func (e *engine) visit(ctx context.Context, host string, spec startSpec) error {
	env, err := e.shareEnv(host)
	if err != nil {
		return err
	}
	if spec.cgroup, err = e.visitor("load", host); err != nil {
		return err
	}
	spec.env = append(spec.env, env...)
	err = run(ctx, spec, loadGrace)
	_ = spec.cgroup.remove() // the guard tries again
	return err
}
