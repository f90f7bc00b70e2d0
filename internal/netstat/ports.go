package netstat

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PortRange is the range from which the kernel takes the local ports of connections that ask for none.
type PortRange struct {
	First, Last int
	Reserved    int // ports within the range that ip_local_reserved_ports withholds
}

// Count is the number of ports that the kernel can give.
func (r PortRange) Count() int { return max(0, r.Last-r.First+1-r.Reserved) }

// ParsePortRange reads ip_local_port_range, "32768\t60999", and ip_local_reserved_ports, "8080,9000-9100". procfs has
// neither. The range is valid also if only the reserved ports are not.
func ParsePortRange(span, reserved string) (PortRange, error) {
	var r PortRange
	if fields := strings.Fields(span); len(fields) == 2 {
		first, err := strconv.ParseUint(fields[0], 10, 16)
		last, errLast := strconv.ParseUint(fields[1], 10, 16)
		if err == nil && errLast == nil && 0 < first && first <= last {
			r.First, r.Last = int(first), int(last)
		}
	}
	if r.Last == 0 {
		return r, fmt.Errorf("ip_local_port_range %q: want the first and the last port", strings.TrimSpace(span))
	}
	for part := range strings.SplitSeq(strings.TrimSpace(reserved), ",") {
		if part == "" {
			continue
		}
		from, to, isSpan := strings.Cut(part, "-")
		if !isSpan {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, errLast := strconv.ParseUint(to, 10, 16)
		if err != nil || errLast != nil || first > last {
			return r, fmt.Errorf("ip_local_reserved_ports: %q is neither a port nor a range of ports", part)
		}
		r.Reserved += max(0, min(int(last), r.Last)-max(int(first), r.First)+1)
	}
	return r, nil
}

// PortRangeFiles are the two settings as open files. They stay with the network namespace of the thread that opened them.
type PortRangeFiles struct {
	span, reserved *os.File // reserved is nil on a kernel that has no such setting
	buf            [16 << 10]byte
}

// OpenPortRange opens the settings of the calling thread's network namespace. The caller closes them.
func OpenPortRange() (*PortRangeFiles, error) {
	const settings = "/proc/sys/net/ipv4"
	span, err := os.Open(filepath.Join(settings, "ip_local_port_range"))
	if err != nil {
		return nil, err
	}
	f := &PortRangeFiles{span: span}
	f.reserved, _ = os.Open(filepath.Join(settings, "ip_local_reserved_ports"))
	return f, nil
}

// Close closes the files.
func (f *PortRangeFiles) Close() {
	f.span.Close()
	if f.reserved != nil {
		f.reserved.Close()
	}
}

// Read returns the present range.
func (f *PortRangeFiles) Read() (PortRange, error) {
	span, err := f.readSetting(f.span)
	if err != nil {
		return PortRange{}, err
	}
	reserved := ""
	if f.reserved != nil {
		if reserved, err = f.readSetting(f.reserved); err != nil {
			return PortRange{}, err
		}
	}
	return ParsePortRange(span, reserved)
}

// readSetting reads the file from its start, which makes the kernel write it anew.
func (f *PortRangeFiles) readSetting(file *os.File) (string, error) {
	n, err := file.ReadAt(f.buf[:], 0)
	switch {
	case n == len(f.buf):
		return "", fmt.Errorf("%s is longer than %d bytes", file.Name(), n)
	case errors.Is(err, io.EOF):
		err = nil
	}
	return string(f.buf[:n]), err
}
