package result

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"
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
	m := readMachine("/")
	m.Host, _ = os.Hostname()
	m.Arch, m.Cores, m.GOMAXPROCS = runtime.GOARCH, runtime.NumCPU(), runtime.GOMAXPROCS(0)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil {
		m.NoFile, m.NoFileHard = limit.Cur, limit.Max
	}
	return m
}

// readMachine reads proc and etc below the directory root.
func readMachine(root string) Machine {
	m := Machine{OS: quotedField(readText(root, "etc/os-release"), "PRETTY_NAME", "="), TCPTWReuse: -1}
	proc, err := procfs.NewFS(filepath.Join(root, "proc"))
	if err != nil {
		return m
	}
	// procfs reads cpuinfo differently on each architecture, and on Linux only.
	m.CPU = quotedField(readText(root, "proc/cpuinfo"), "model name", ":")
	if release, err := proc.SysctlStrings("kernel.osrelease"); err == nil {
		m.Kernel = strings.Join(release, " ")
	}
	if memory, err := proc.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		m.Memory = int64(*memory.MemTotalBytes)
	}
	for name, values := range map[string][]*int{
		"net.ipv4.ip_local_port_range": {&m.PortLow, &m.PortHigh},
		"net.core.somaxconn":           {&m.SoMaxConn},
		"net.ipv4.tcp_tw_reuse":        {&m.TCPTWReuse},
		"net.ipv4.tcp_max_tw_buckets":  {&m.MaxTWBuckets},
	} {
		setting, err := proc.SysctlInts(name)
		if err != nil || len(setting) != len(values) {
			continue
		}
		for i, value := range values {
			*value = setting[i]
		}
	}
	return m
}

func readText(root, name string) string {
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return ""
	}
	return string(text)
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
