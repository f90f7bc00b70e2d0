package watch

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// parseSockstat calls each with the figures of one protocol's line, "TCP: inuse 2 orphan 0 …" of /proc/net/sockstat.
func parseSockstat(b []byte, protocol string, each func(name []byte, value float64)) error {
	for len(b) > 0 {
		var text []byte
		text, b = line(b)
		key, rest := word(text)
		if len(key) != len(protocol)+1 || string(key[:len(protocol)]) != protocol {
			continue
		}
		for len(rest) > 0 {
			var name []byte
			name, rest = word(rest)
			n, after, ok := wordNumber(rest)
			if len(name) == 0 || !ok {
				break
			}
			each(name, float64(n))
			rest = after
		}
		return nil
	}
	return fmt.Errorf("sockstat: no line of %s", protocol)
}

// parseMIB calls each with the columns of one protocol's two lines, names and values, as /proc/net/snmp and
// /proc/net/netstat have them. Kernels differ in the columns; a negative value is told as such.
func parseMIB(b []byte, protocol string, each func(name []byte, value float64)) error {
	names, values, err := linesOf(b, protocol)
	if err != nil {
		return err
	}
	for {
		var name, text []byte
		name, names = word(names)
		text, values = word(values)
		if len(name) == 0 {
			return nil
		}
		digits, negative := bytes.CutPrefix(text, []byte{'-'})
		n, ok := number(digits)
		if !ok {
			return fmt.Errorf("%s: no value of %.40q", protocol, name)
		}
		if negative {
			each(name, -float64(n))
		} else {
			each(name, float64(n))
		}
	}
}

// linesOf finds the line of names and the line of values.
func linesOf(b []byte, protocol string) (names, values []byte, err error) {
	for len(b) > 0 {
		var text []byte
		text, b = line(b)
		key, rest := word(text)
		if len(key) != len(protocol)+1 || string(key[:len(protocol)]) != protocol {
			continue
		}
		if names != nil {
			return names, rest, nil
		}
		names = rest
	}
	return nil, nil, fmt.Errorf("%s: no lines of names and values", protocol)
}

// A portRange are the local ports that the kernel gives to connections that ask for none.
type portRange struct {
	low, high int
	reserved  int // of them, held back by ip_local_reserved_ports
}

// count is how many ports the kernel can give.
func (r portRange) count() int { return max(0, r.high-r.low+1-r.reserved) }

// parsePortRange reads ip_local_port_range, "32768\t60999".
func parsePortRange(b []byte) (portRange, error) {
	low, rest, lowOK := wordNumber(b)
	high, _, highOK := wordNumber(rest)
	if !lowOK || !highOK || low == 0 || low > high || high > 65535 {
		return portRange{}, errors.New("ip_local_port_range: absurd")
	}
	return portRange{low: int(low), high: int(high)}, nil
}

// reserve counts the ports of ip_local_reserved_ports, "8080,9000-9100", that lie in the range.
func (r *portRange) reserve(b []byte) error {
	r.reserved = 0
	for text := range bytes.SplitSeq(bytes.TrimSpace(b), []byte{','}) {
		if len(text) == 0 {
			continue
		}
		from, to, ok := bytes.Cut(text, []byte{'-'})
		if !ok {
			to = from
		}
		low, err := strconv.ParseUint(string(from), 10, 16)
		high, errHigh := strconv.ParseUint(string(to), 10, 16)
		if err != nil || errHigh != nil || low > high {
			return errors.New("ip_local_reserved_ports: absurd")
		}
		r.reserved += max(0, min(int(high), r.high)-max(int(low), r.low)+1)
	}
	return nil
}
