package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// namespaceDir is the directory of iproute2's namespaces.
const namespaceDir = "/run/netns"

// switchName is the namespace whose bridge connects the hosts, so that the network of this host does not change.
const switchName = "switch"

// hostAddress returns the address of the i-th host.
func hostAddress(i int) string { return fmt.Sprintf("10.213.0.%d", i+1) }

// loopback is the address of every service on this host.
const loopback = "127.0.0.1"

// network holds the hosts of a run.
type network struct {
	prefix string // of the namespaces' names
	names  []string
}

// namespace returns the file of a host's namespace, "" for this host and for a host without one.
func (n *network) namespace(host string) string {
	if !slices.Contains(n.names, host) {
		return ""
	}
	return filepath.Join(namespaceDir, n.prefix+host)
}

// createNetwork makes the hosts and describes them. The caller removes them, also after an error.
func (f *File) createNetwork(ctx context.Context, n *network, reserved []int) ([]HostFacts, error) {
	if !f.separate() {
		facts := make([]HostFacts, len(f.Hosts))
		for i := range facts {
			facts[i] = HostFacts{Name: f.Hosts[i].Name, Address: loopback}
		}
		return facts, nil
	}
	if err := addSwitch(ctx, n.prefix+switchName); err != nil {
		return nil, err
	}
	var facts []HostFacts
	for i := range f.Hosts {
		host := &f.Hosts[i]
		if err := addHost(ctx, n.prefix, host.Name, i); err != nil {
			return nil, fmt.Errorf("make host %s: %w", host.Name, err)
		}
		n.names = append(n.names, host.Name)
		about := HostFacts{Name: host.Name, Address: hostAddress(i), Sysctl: host.Sysctl}
		err := inNamespace(n.namespace(host.Name), func() (err error) {
			about.Ports, err = f.tuneHost(host, reserved)
			return err
		})
		if err != nil {
			return nil, err
		}
		facts = append(facts, about)
	}
	return facts, nil
}

func addSwitch(ctx context.Context, name string) error {
	for _, command := range []string{
		"netns add " + name,
		"-n " + name + " link add bridge type bridge",
		"-n " + name + " link set bridge up",
	} {
		if err := ip(ctx, command); err != nil {
			return fmt.Errorf("make the switch between hosts: %w", err)
		}
	}
	return nil
}

func addHost(ctx context.Context, prefix, host string, i int) error {
	name, port := prefix+host, fmt.Sprintf("port%d", i+1)
	for _, command := range []string{
		"netns add " + name,
		"-n " + prefix + switchName + " link add " + port + " type veth peer name eth0 netns " + name,
		"-n " + prefix + switchName + " link set " + port + " master bridge up",
		"-n " + name + " link set lo up",
		"-n " + name + " address add " + hostAddress(i) + "/24 dev eth0",
		"-n " + name + " link set eth0 up",
	} {
		if err := ip(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// ip runs the command of iproute2.
func ip(ctx context.Context, arguments string) error {
	output, err := exec.CommandContext(ctx, "ip", strings.Fields(arguments)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", arguments, err, bytes.TrimSpace(output))
	}
	return nil
}

// tuneHost applies the file's settings to the namespace of the thread and reserves the ports of services, which outgoing
// connections must not use. It returns the range of local ports.
func (f *File) tuneHost(host *Host, reserved []int) (string, error) {
	path := "hosts." + host.Name
	if low, high, ok := parseSpan(host.Ports); ok {
		if err := writeSysctl("net.ipv4.ip_local_port_range", fmt.Sprintf("%d %d", low, high)); err != nil {
			return "", f.mistake(path+".ports", "%v", err)
		}
	}
	texts := make([]string, len(reserved))
	for i, port := range reserved {
		texts[i] = strconv.Itoa(port)
	}
	if err := writeSysctl("net.ipv4.ip_local_reserved_ports", strings.Join(texts, ",")); err != nil {
		return "", fmt.Errorf("reserve ports: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(host.Sysctl)) {
		err := writeSysctl(name, host.Sysctl[name])
		if errors.Is(err, fs.ErrNotExist) {
			return "", f.mistake(path+".sysctl."+name, "this kernel has no such setting in a network namespace")
		}
		if err != nil {
			return "", f.mistake(path+".sysctl."+name, "%v", err)
		}
	}
	span, err := os.ReadFile(sysctlFile("net.ipv4.ip_local_port_range"))
	if err != nil {
		return "", fmt.Errorf("read the range of ports: %w", err)
	}
	return strings.Join(strings.Fields(string(span)), "-"), nil
}

func writeSysctl(name, value string) error {
	return os.WriteFile(sysctlFile(name), []byte(value), 0o644)
}

func sysctlFile(name string) string { return "/proc/sys/" + strings.ReplaceAll(name, ".", "/") }

// inNamespace calls fn on a thread in a network namespace; "" is this host. fn must not start goroutines.
func inNamespace(file string, fn func() error) error {
	if file == "" {
		return fn()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := enter(file); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// removeNamespaces deletes the namespaces whose names begin with prefix.
func removeNamespaces(ctx context.Context, prefix string) error {
	names, err := filepath.Glob(filepath.Join(namespaceDir, prefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, ip(ctx, "netns delete "+filepath.Base(name)))
	}
	return errors.Join(errs...)
}
