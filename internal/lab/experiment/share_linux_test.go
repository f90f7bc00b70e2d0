package experiment

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/controlgroup"
	"spillway/internal/lab/cores"
)

// sharedSmall gives the small file hosts with shares: two that only generate load.
var sharedSmall = strings.NewReplacer("services:\n", "hosts:\n  app: {cpus: 0.5}\n  plain: {cpus: 1}\n  tuned: {cpus: 1}\nservices:\n", "load: {", "load: {host: plain, ").Replace(engineSmall)

func TestShareMistakes(t *testing.T) {
	for _, c := range []struct{ old, fresh, want string }{
		{"cpus: 0.5", "cpus: 0.1", "hosts.app.cpus: must be from 0.25 to 1024"},
		{"cpus: 0.5", "cpus: -1", "give every host cpus, or none"},
		{"plain: {cpus: 1}", "plain: {}", "small.yaml:5:10: hosts.plain: give every host cpus, or none"},
		{"hosts:", "network: bridge\nhosts:", "network: must be loopback, with cpus for each host"},
		{"hosts:\n  app: {cpus: 0.5}", "network: loopback\nhosts:\n  app: {cpus: 0.5, ports: 2000-3000}", "need a network of its own"},
		{"hosts:\n  app: {cpus: 0.5}\n  plain: {cpus: 1}\n  tuned: {cpus: 1}", "network: loopback\nhosts: {plain: {}}", "must be loopback, with cpus"},
	} {
		if !strings.Contains(sharedSmall, c.old) {
			t.Fatalf("%q is not in the file", c.old)
		}
		_, err := enginePlan(strings.Replace(sharedSmall, c.old, c.fresh, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s -> %s\n got %v\nwant %s", c.old, c.fresh, err, c.want)
		}
	}
	if advice := engineRead(t, engineSmall).advice(); !strings.Contains(advice, "give each host cpus") {
		t.Errorf("advice: %q", advice)
	}
}

// TestDivide wants hosts that only generate load to have the same cores.
func TestDivide(t *testing.T) {
	available := cores.Set{2, 5}
	f := engineRead(t, sharedSmall)
	sets, err := f.divideCores(available)
	if err != nil {
		t.Fatal(err)
	}
	load, rest := available[:1].String(), available[1:].String()
	if sets["plain"].String() != load || sets["tuned"].String() != load || sets["app"].String() != rest || f.advice() != "" {
		t.Errorf("%v, advice %q", sets, f.advice())
	}
	_, err = engineRead(t, strings.ReplaceAll(sharedSmall, "cpus: 1}", "cpus: 1000}")).divide() // the cores of this machine
	if !isMistake(err) || !strings.Contains(err.Error(), "the shares of CPU add up to 1000.5, and this machine has") {
		t.Errorf("too much: %v", err)
	}
}

// TestShare2 wants the settings of version 2 of control groups, which this machine may not have.
func TestShare2(t *testing.T) {
	top := t.TempDir()
	c := &cgroups{accounting: CPUAccounting{Source: CPUControlGroup2}, prefix: "p-", hosts: map[string]*hostGroups{}}
	g := &hostGroups{host: cores.Host{Name: "app", CPUs: 0.5, Cores: cores.Set{1, 3}}}
	// A file of a real group exists as soon as the group does.
	if err := os.WriteFile(filepath.Join(top, "cgroup.subtree_control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := c.share2(top, g, "p-host-app", 2350)
	dir := filepath.Join(top, "p-host-app")
	if os.IsNotExist(err) || g.parent != dir || g.host.Group != dir || g.host.Quota != dir && err == nil || len(g.joins) > 0 {
		t.Errorf("%+v: %v", g, err)
	}
	for name, want := range map[string]string{"../cgroup.subtree_control": "+cpu +cpuset", "cpuset.cpus": "1,3", "cpu.max": "2350 4700"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if string(text) != want {
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	c.hosts["app"] = g
	group, err := c.create("web-1", "app")
	if err != nil || group.dir != filepath.Join(dir, "p-web-1") || len(group.joins) > 0 {
		t.Errorf("%+v: %v", group, err)
	}
}

// TestShare1 makes the groups of version 1, if this machine has them, and wants a service's own group below that of its host if both
// count CPU time in the same hierarchy.
func TestShare1(t *testing.T) {
	if controlgroup.Own("cpu") == "" || controlgroup.Own("cpuset") == "" {
		t.Log("this machine has no control groups of version 1")
		return
	}
	apptest.NeedRoot(t)
	available, err := cores.Available()
	if err != nil {
		t.Fatal(err)
	}
	prefix := prefixOf(identify(os.Getpid())) + "share-"
	c := &cgroups{accounting: CPUAccounting{Source: CPUControlGroup1}, prefix: prefix, dir: controlgroup.Own("cpuacct"), hosts: map[string]*hostGroups{}}
	t.Cleanup(func() {
		for _, group := range runGroups(prefix) {
			if err := group.remove(); err != nil {
				t.Error(err)
			}
		}
	})
	err = c.share("app", 0.5, available)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		t.Logf("this machine lets nobody make control groups, as in many containers: %v", err)
		return
	}
	if err != nil {
		t.Fatalf("make control groups: %v", err)
	}
	g := c.hosts["app"]
	group, err := c.create("web-1", "app")
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(group.dir) != g.host.Group || !slices.Contains(group.joins, join{group.dir, c.dir}) {
		t.Errorf("%+v of %+v", group, g)
	}
	text, err := os.ReadFile(filepath.Join(g.host.Quota, "cpu.cfs_quota_us"))
	if err != nil || string(text) != "2350\n" {
		t.Errorf("quota %q: %v", text, err)
	}
}
