package experiment

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
)

// layout holds the paths, addresses and ports that templates are filled in from. A check uses placeholders.
type layout struct {
	source   string // folder of the experiment's file
	spillway string
	programs map[string]string
	hosts    map[string]string         // address by host; empty: this host
	ports    map[string]map[string]int // by service and name
	folders  map[string]string         // by service, for its current start
	data     map[string]string         // by service
	secrets  secrets                   // that templates have used
}

// address returns the address of a host.
func (l *layout) address(host string) string {
	if host == "" {
		return loopback
	}
	return l.hosts[host]
}

// placeholders returns a layout for a check, in which every name has a value and nothing exists.
func (f *File) placeholders(source string) *layout {
	l := &layout{
		source: source, spillway: "spillway", programs: map[string]string{}, hosts: map[string]string{},
		ports: map[string]map[string]int{}, folders: map[string]string{}, data: map[string]string{}, secrets: secrets{},
	}
	for _, n := range f.Needs {
		l.programs[n.Name] = n.Name
	}
	for i, h := range f.Hosts {
		l.hosts[h.Name] = loopback
		if f.separate() {
			l.hosts[h.Name] = hostAddress(i)
		}
	}
	port := portLow
	for _, s := range f.Services {
		l.folders[s.Name], l.data[s.Name] = "folder/"+s.Name, "data/"+s.Name
		l.ports[s.Name] = map[string]int{}
		for _, name := range s.Ports {
			l.ports[s.Name][name] = port
			port++
		}
	}
	return l
}

// templateValues returns what templates may use of a service.
func (l *layout) templateValues(service, host string) map[string]any {
	addr := map[string]string{}
	for name, number := range l.ports[service] {
		addr[name] = l.address(host) + ":" + strconv.Itoa(number)
	}
	return map[string]any{
		"address": l.address(host), "port": l.ports[service], "addr": addr, "folder": l.folders[service], "data": l.data[service],
	}
}

// Range of the services' ports, below the kernel's default range for outgoing connections.
const (
	portLow  = 16384
	portHigh = 32768
)

// findPorts gives each port of each service a free number. On separate hosts the placeholders are free.
func (l *layout) findPorts(f *File) error {
	if f.separate() {
		return nil
	}
	var taken []int
	for _, ports := range l.ports {
		for name := range ports {
			port, err := freePort(taken)
			if err != nil {
				return err
			}
			ports[name], taken = port, append(taken, port)
		}
	}
	return nil
}

// freePort returns a port of this host that is free and outside of the range for outgoing connections.
func freePort(taken []int) (int, error) {
	low, high := portRange()
	var last error
	for range 1000 {
		port := portLow + rand.IntN(portHigh-portLow)
		if slices.Contains(taken, port) || port >= low && port <= high && high-low < portHigh-portLow {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return 0, fmt.Errorf("find a free port: %w", last)
}

// portRange returns this host's range for outgoing connections.
func portRange() (low, high int) {
	text, err := os.ReadFile(sysctlFile("net.ipv4.ip_local_port_range"))
	if err != nil {
		return 0, 0
	}
	low, high, _ = parseSpan(strings.Join(strings.Fields(string(text)), "-"))
	return low, high
}

// numbers returns all ports, sorted.
func numbers(ports map[string]map[string]int) []int {
	var all []int
	for _, names := range ports {
		all = slices.AppendSeq(all, maps.Values(names))
	}
	slices.Sort(all)
	return all
}
