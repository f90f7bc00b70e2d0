package experiment

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Ports for services are taken from this range, below what the kernel gives to outgoing connections by default.
const (
	portLow  = 16384
	portHigh = 32768
)

// allotPorts gives each port of each service a number that nothing uses. On hosts of their own the numbers are always
// the same.
func (f *File) allotPorts() (map[string]map[string]int, error) {
	ports := map[string]map[string]int{}
	var taken []int
	next := portLow
	for i := range f.Services {
		s := &f.Services[i]
		ports[s.Name] = map[string]int{}
		for _, name := range s.Ports {
			port := next
			next++
			if len(f.Hosts) == 0 {
				var err error
				if port, err = freePort(taken); err != nil {
					return nil, err
				}
			}
			taken = append(taken, port)
			ports[s.Name][name] = port
		}
	}
	return ports, nil
}

// freePort returns a port of this host that nothing listens on and no outgoing connection is given.
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

// portRange reads the range for outgoing connections of this host.
func portRange() (low, high int) {
	text, err := os.ReadFile(sysctlFile("net.ipv4.ip_local_port_range"))
	if err != nil {
		return 0, 0
	}
	low, high, _ = parseSpan(strings.Join(strings.Fields(string(text)), "-"))
	return low, high
}

// numbers lists all ports, in order.
func numbers(ports map[string]map[string]int) []int {
	var all []int
	for _, names := range ports {
		for _, port := range names {
			all = append(all, port)
		}
	}
	slices.Sort(all)
	return all
}
