package result

import (
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// A Machine describes a host and the limits that matter for load.
type Machine struct {
	Host         string `json:"host"`
	OS           string `json:"os"`     // "Debian GNU/Linux 12 (bookworm)"
	Kernel       string `json:"kernel"` // "6.1.0-18-amd64"
	Arch         string `json:"arch"`
	CPU          string `json:"cpu"`          // model name
	Cores        int    `json:"cores"`        // available to this process
	GOMAXPROCS   int    `json:"gomaxprocs"`   //
	Memory       int64  `json:"memory_bytes"` // of the host
	NoFile       uint64 `json:"nofile"`       // soft limit of open files
	NoFileHard   uint64 `json:"nofile_hard"`
	PortLow      int    `json:"port_range_low"` // net.ipv4.ip_local_port_range
	PortHigh     int    `json:"port_range_high"`
	SoMaxConn    int    `json:"somaxconn"`    // net.core.somaxconn
	TCPTWReuse   int    `json:"tcp_tw_reuse"` // net.ipv4.tcp_tw_reuse; -1 if unknown
	MaxTWBuckets int    `json:"tcp_max_tw_buckets"`
}

// ReadMachine describes this host. Unknown values are zero (TCPTWReuse: -1).
func ReadMachine() Machine {
	m := readMachine(os.DirFS("/"))
	m.Host, _ = os.Hostname()
	m.Arch, m.Cores, m.GOMAXPROCS = runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil {
		m.NoFile, m.NoFileHard = limit.Cur, limit.Max
	}
	return m
}

// readMachine reads proc and etc below root.
func readMachine(root fs.FS) Machine {
	m := Machine{
		OS:           quotedField(readText(root, "etc/os-release"), "PRETTY_NAME", "="),
		Kernel:       readText(root, "proc/sys/kernel/osrelease"),
		CPU:          quotedField(readText(root, "proc/cpuinfo"), "model name", ":"),
		SoMaxConn:    readInt(root, "proc/sys/net/core/somaxconn", 0),
		TCPTWReuse:   readInt(root, "proc/sys/net/ipv4/tcp_tw_reuse", -1),
		MaxTWBuckets: readInt(root, "proc/sys/net/ipv4/tcp_max_tw_buckets", 0),
	}
	if fields := strings.Fields(readText(root, "proc/sys/net/ipv4/ip_local_port_range")); len(fields) == 2 {
		m.PortLow, m.PortHigh = parseInt(fields[0], 0), parseInt(fields[1], 0)
	}
	if fields := strings.Fields(quotedField(readText(root, "proc/meminfo"), "MemTotal", ":")); len(fields) == 2 {
		m.Memory = int64(parseInt(fields[0], 0)) << 10 // the file is in kB
	}
	return m
}

func readText(root fs.FS, name string) string {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func readInt(root fs.FS, name string, missing int) int {
	return parseInt(readText(root, name), missing)
}

func parseInt(text string, missing int) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return missing
	}
	return n
}

// quotedField returns the value of the first line "name sep value", without quotes.
func quotedField(text, name, sep string) string {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, sep)
		if ok && strings.TrimSpace(key) == name {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}
