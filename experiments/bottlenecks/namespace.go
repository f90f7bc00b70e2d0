//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"spillway/experiments/process"
)

// Addresses of the two ends of a link between namespaces.
const (
	clientAddress = "10.99.0.1"
	serverAddress = "10.99.0.2"
)

// isolatedVariable is set in the environment of a program that isolate has started again.
const isolatedVariable = "BOTTLENECKS_ISOLATED"

// isolate starts this program again in a network namespace of its own, in place of the process, so that the sockets of other
// programs are in no figure. It returns only if that has been done before, or with an error.
func isolate() error {
	if os.Getenv(isolatedVariable) != "" {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and control groups need root")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return fmt.Errorf("isolate: %w: apt-get install util-linux", err)
	}
	args := append([]string{unshare, "--net", "sh", "-c", `ip link set lo up && exec "$@"`, "sh", self}, os.Args[1:]...)
	return fmt.Errorf("isolate: %w", syscall.Exec(unshare, args, append(os.Environ(), isolatedVariable+"=1")))
}

// namespace makes a network namespace that exists as long as the process that is returned, which ends with the stage.
func (s *stage) namespace(name string) (*process.Process, error) {
	marker := filepath.Join(s.dir, name+".up")
	return s.start(process.Command{
		Name: name, Args: []string{"unshare", "--net", "sh", "-c", `ip link set lo up && : >"$0" && exec sleep infinity`, marker},
		Ready: exists(marker),
	})
}

// inside runs a command in a network namespace, to its end.
func (s *stage) inside(network *process.Process, args ...string) error {
	return s.run(nil, append([]string{"nsenter", "--net", "--target", strconv.Itoa(network.PID)}, args...)...)
}

// sysctl sets a kernel setting of a network namespace.
func (s *stage) sysctl(network *process.Process, name, value string) error {
	return s.inside(network, "sysctl", "-q", "-w", name+"="+value)
}

// twoNamespaces makes a namespace for the client and one for the server.
func (s *stage) twoNamespaces() (client, server *process.Process, err error) {
	if client, err = s.namespace("client"); err != nil {
		return nil, nil, err
	}
	server, err = s.namespace("server")
	return client, server, err
}

// cable connects two namespaces by a pair of virtual Ethernet devices, which are named eth0 in both.
func (s *stage) cable(client, server *process.Process) error {
	if err := s.inside(client, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
		strconv.Itoa(server.PID)); err != nil {
		return err
	}
	for _, end := range []struct {
		network *process.Process
		address string
	}{{client, clientAddress}, {server, serverAddress}} {
		if err := s.inside(end.network, "ip", "address", "add", end.address+"/24", "dev", "eth0"); err != nil {
			return err
		}
		if err := s.inside(end.network, "ip", "link", "set", "eth0", "up"); err != nil {
			return err
		}
	}
	return nil
}

// farLink connects two namespaces by a link that delays every packet, in both directions.
func (s *stage) farLink(client, server *process.Process, delay time.Duration) error {
	marker := filepath.Join(s.dir, "link.up")
	_, err := s.start(process.Command{
		Name:  "link",
		Args:  []string{s.self, "-link", fmt.Sprintf("%d,%d", client.PID, server.PID), "-work", delay.String(), "-marker", marker},
		Ready: exists(marker),
	})
	if err != nil {
		return err
	}
	for _, end := range []struct {
		network     *process.Process
		local, peer string
	}{{client, clientAddress, serverAddress}, {server, serverAddress, clientAddress}} {
		if err := s.inside(end.network, "ip", "address", "add", end.local, "peer", end.peer, "dev", linkDevice); err != nil {
			return err
		}
		if err := s.inside(end.network, "ip", "link", "set", linkDevice, "up"); err != nil {
			return err
		}
	}
	return nil
}

// exists is a ready function: a file exists.
func exists(path string) func(context.Context) error {
	return func(context.Context) error {
		_, err := os.Stat(path)
		return err
	}
}

// readyInside is a ready function for a server at an address of another network namespace.
func readyInside(network int, address string) func(context.Context) error {
	return func(ctx context.Context) error {
		probe := process.Command{
			Name: "probe", Network: network,
			Args: []string{"curl", "-sf", "-o", "/dev/null", "http://" + address + "/ready"},
		}
		p, err := process.Launch(ctx, probe, os.DevNull)
		if err != nil {
			return err
		}
		if _, code, err := p.Wait(ctx); err != nil || code != 0 {
			return fmt.Errorf("curl: exit code %d: %w", code, err)
		}
		return nil
	}
}

// Periods of a quota of CPU: the kernel's default, and one that stops a process often and for a short time.
const (
	defaultPeriod = 100 * time.Millisecond
	shortPeriod   = 4700 * time.Microsecond // no multiple of a clock tick
)

// slice makes a control group with a quota of CPU, in cores, and returns its directory.
func (s *stage) slice(cores float64, period time.Duration) (string, error) {
	return s.controlGroup("cpu", [2]string{"cpu.cfs_period_us", strconv.FormatInt(period.Microseconds(), 10)},
		[2]string{"cpu.cfs_quota_us", strconv.Itoa(int(cores * float64(period.Microseconds())))})
}

// controlGroup makes a control group of version 1 with settings, name and value, and returns its directory.
func (s *stage) controlGroup(controller string, settings ...[2]string) (string, error) {
	dir, err := os.MkdirTemp(filepath.Join("/sys/fs/cgroup", controller), "bottlenecks-")
	if err != nil {
		return "", fmt.Errorf("make control group (of version 1, with the controller %s): %w", controller, err)
	}
	s.undo = append(s.undo, func() { removeGroup(dir) })
	for _, setting := range settings {
		if err := os.WriteFile(filepath.Join(dir, setting[0]), []byte(setting[1]), 0); err != nil {
			return "", fmt.Errorf("set %s of control group: %w", setting[0], err)
		}
	}
	return dir, nil
}

// removeGroup removes a control group. It repeats that for a second, because the thread that started the process in the group
// leaves it when it ends.
func removeGroup(dir string) {
	for range 100 {
		if err := syscall.Rmdir(dir); !errors.Is(err, syscall.EBUSY) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
