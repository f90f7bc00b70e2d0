package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// absent marks a number that this kernel or machine does not have.
const absent = -1

// Facts is what the checks know about a host, each read once. A number that
// the kernel does not show is -1.
type Facts struct {
	Kernel string `json:"kernel"` // "6.1.0-13-amd64"

	PortFirst      int   `json:"local_port_first"`
	PortLast       int   `json:"local_port_last"`
	PortsReserved  int   `json:"local_ports_reserved"` // within the range
	TWReuse        int64 `json:"tcp_tw_reuse"`
	TWReuseDelay   int64 `json:"tcp_tw_reuse_delay_milliseconds"`
	TWRecycle      int64 `json:"tcp_tw_recycle"`
	MaxTWBuckets   int64 `json:"tcp_max_tw_buckets"`
	Timestamps     int64 `json:"tcp_timestamps"`
	FinTimeout     int64 `json:"tcp_fin_timeout_seconds"`
	Somaxconn      int64 `json:"somaxconn"`
	MaxSynBacklog  int64 `json:"tcp_max_syn_backlog"`
	Syncookies     int64 `json:"tcp_syncookies"`
	TimeWait       int64 `json:"time_wait_sockets"`
	ListenOverflow int64 `json:"listen_overflows"` // since boot

	FilesOf     string `json:"open_files_of"` // the process whose limits these are
	FilesSoft   int64  `json:"open_files_soft"`
	FilesHard   int64  `json:"open_files_hard"`
	FilesInUse  int64  `json:"open_files_host"`
	FileMax     int64  `json:"open_files_host_max"`
	NrOpen      int64  `json:"open_files_process_max"`
	Conntracks  int64  `json:"conntrack_entries"`
	ConntrackMx int64  `json:"conntrack_max"`
	ConntrackTW int64  `json:"conntrack_time_wait_seconds"`

	Cores           int     `json:"cores"`
	CPUQuota        float64 `json:"cpu_quota_cores"` // of the control group; 0: none
	Governor        string  `json:"cpu_governor,omitempty"`
	ClockSource     string  `json:"clock_source,omitempty"`
	Pressure        bool    `json:"pressure_stall_information"`
	CPUPressure     float64 `json:"cpu_pressure_percent"` // some, last 10 s
	MemoryBytes     int64   `json:"memory_bytes"`
	AvailableBytes  int64   `json:"memory_available_bytes"`
	MemoryLimit     int64   `json:"memory_limit_bytes"` // of the control group; 0: none
	SwapBytes       int64   `json:"swap_bytes"`
	SwapUsedBytes   int64   `json:"swap_used_bytes"`
	Swappiness      int64   `json:"swappiness"`
	HugePages       string  `json:"transparent_huge_pages,omitempty"`
	RotationalDisks int     `json:"rotational_disks"`
	Disks           int     `json:"disks"`

	Listener *Listener `json:"listener,omitempty"` // of the target, when it is on this host
}

// ReadFacts reads the facts of a Linux host from its root directory, as
// os.DirFS("/") gives it. Network settings are those of the calling thread's
// network namespace. What is missing is absent; only a root without /proc is
// an error.
func ReadFacts(root fs.FS) (*Facts, error) {
	r := reader{root}
	f := &Facts{Kernel: r.line("proc/sys/kernel/osrelease")}
	if f.Kernel == "" {
		return nil, errors.New("read host facts: /proc/sys/kernel/osrelease is not there; doctor reads Linux hosts")
	}
	r.network(f)
	r.files(f, r.shell())
	r.machine(f)
	return f, nil
}

// reader reads small files below a root; a file that cannot be read is empty.
type reader struct{ root fs.FS }

func (r reader) text(name string) string {
	text, err := fs.ReadFile(r.root, name)
	if err != nil {
		return ""
	}
	return string(text)
}

// line is a file's text without the blanks around it.
func (r reader) line(name string) string { return strings.TrimSpace(r.text(name)) }

// number is the first number of a file, or absent.
func (r reader) number(name string) int64 {
	fields := strings.Fields(r.text(name))
	if len(fields) == 0 {
		return absent
	}
	return parseNumber(fields[0])
}

// network reads the settings and counters of TCP.
func (r reader) network(f *Facts) {
	ipv4 := func(name string) int64 { return r.number("proc/sys/net/ipv4/" + name) }
	f.PortFirst, f.PortLast = parsePortRange(r.text("proc/sys/net/ipv4/ip_local_port_range"))
	f.PortsReserved = countReserved(r.text("proc/sys/net/ipv4/ip_local_reserved_ports"), f.PortFirst, f.PortLast)
	f.TWReuse = ipv4("tcp_tw_reuse")
	f.TWReuseDelay = ipv4("tcp_tw_reuse_delay")
	f.TWRecycle = ipv4("tcp_tw_recycle")
	f.MaxTWBuckets = ipv4("tcp_max_tw_buckets")
	f.Timestamps = ipv4("tcp_timestamps")
	f.FinTimeout = ipv4("tcp_fin_timeout")
	f.MaxSynBacklog = ipv4("tcp_max_syn_backlog")
	f.Syncookies = ipv4("tcp_syncookies")
	f.Somaxconn = r.number("proc/sys/net/core/somaxconn")
	// /proc/net is the first thread's; a thread may be in a namespace of its own.
	f.TimeWait = parseSockstat(r.text("proc/thread-self/net/sockstat"), "tw")
	f.ListenOverflow = parseNetstat(r.text("proc/thread-self/net/netstat"), "ListenOverflows")
	f.Conntracks = r.number("proc/sys/net/netfilter/nf_conntrack_count")
	f.ConntrackMx = r.number("proc/sys/net/netfilter/nf_conntrack_max")
	f.ConntrackTW = r.number("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait")
}

// shell is the process that started this one: a Go program raises its own soft
// limit to the hard one at start, so its own says nothing about others.
func (r reader) shell() string {
	return parseField(r.text("proc/self/status"), "PPid")
}

// files reads the limits of open files, those of process pid among them.
func (r reader) files(f *Facts, pid string) {
	limits := r.text("proc/" + pid + "/limits")
	if pid == "" || pid == "0" || limits == "" {
		pid, limits = "self", r.text("proc/self/limits")
	}
	f.FilesSoft, f.FilesHard = parseFileLimits(limits)
	f.FilesOf = fmt.Sprintf("%s (pid %s)", r.line("proc/"+pid+"/comm"), pid)
	f.FilesInUse = r.number("proc/sys/fs/file-nr")
	f.FileMax = r.number("proc/sys/fs/file-max")
	f.NrOpen = r.number("proc/sys/fs/nr_open")
}

// machine reads processors, memory and disks.
func (r reader) machine(f *Facts) {
	f.Cores = countList(r.line("sys/devices/system/cpu/online"))
	f.Governor = r.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	f.ClockSource = r.line("sys/devices/system/clocksource/clocksource0/current_clocksource")
	pressure := r.text("proc/pressure/cpu")
	f.Pressure = pressure != ""
	f.CPUPressure = parsePressure(pressure)
	meminfo := r.text("proc/meminfo")
	f.MemoryBytes = parseMeminfo(meminfo, "MemTotal")
	f.AvailableBytes = parseMeminfo(meminfo, "MemAvailable")
	f.SwapBytes = parseMeminfo(meminfo, "SwapTotal")
	f.SwapUsedBytes = max(0, f.SwapBytes-max(0, parseMeminfo(meminfo, "SwapFree")))
	f.Swappiness = r.number("proc/sys/vm/swappiness")
	f.HugePages = parseChoice(r.text("sys/kernel/mm/transparent_hugepage/enabled"))
	f.CPUQuota, f.MemoryLimit = r.controlGroup()
	r.disks(f)
}

// disks counts the block devices that are disks.
func (r reader) disks(f *Facts) {
	names, _ := fs.ReadDir(r.root, "sys/block")
	for _, entry := range names {
		name := entry.Name()
		if strings.HasPrefix(name, "loop") || strings.HasPrefix(name, "ram") || strings.HasPrefix(name, "zram") || strings.HasPrefix(name, "dm-") {
			continue
		}
		f.Disks++
		if r.number(path.Join("sys/block", name, "queue/rotational")) == 1 {
			f.RotationalDisks++
		}
	}
}

// controlGroup returns the smallest limits on the way from this process's
// control group up to the root, version 2 or 1; 0 stands for none.
func (r reader) controlGroup() (cores float64, memory int64) {
	for line := range strings.Lines(r.text("proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for dir := path.Clean("/" + fields[2]); ; dir = path.Dir(dir) {
			quota, limit := r.groupLimits(fields[1], dir)
			cores = least(cores, quota)
			memory = least(memory, limit)
			if dir == "/" {
				break
			}
		}
	}
	return cores, memory
}

// groupLimits reads the limits of one control group of the controllers named.
func (r reader) groupLimits(controllers, dir string) (cores float64, memory int64) {
	if controllers == "" {
		base := path.Join("sys/fs/cgroup", dir)
		return parseQuota(r.text(path.Join(base, "cpu.max"))), parseMemoryLimit(r.text(path.Join(base, "memory.max")))
	}
	base := path.Join("sys/fs/cgroup", controllers, dir)
	quota := r.line(path.Join(base, "cpu.cfs_quota_us")) + " " + r.line(path.Join(base, "cpu.cfs_period_us"))
	return parseQuota(quota), parseMemoryLimit(r.text(path.Join(base, "memory.limit_in_bytes")))
}

// least is the smaller of two limits, where 0 is no limit.
func least[T int64 | float64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// kernelAtLeast reports whether the kernel is that version or newer; one that
// cannot be read counts as new.
func (f *Facts) kernelAtLeast(major, minor int) bool {
	a, b, ok := parseKernel(f.Kernel)
	return !ok || a > major || a == major && b >= minor
}

// ports is how many local ports a connection can have: the kernel walks the
// range in steps of two and leaves the last one of an odd number out.
func (f *Facts) ports() int {
	if f.PortLast < f.PortFirst || f.PortFirst <= 0 {
		return 0
	}
	n := f.PortLast - f.PortFirst + 1
	if n > 1 {
		n &^= 1
	}
	return max(0, n-f.PortsReserved)
}

// memory is what this process may use: the machine's or its control group's.
func (f *Facts) memory() int64 {
	if f.MemoryLimit > 0 && f.MemoryLimit < f.MemoryBytes {
		return f.MemoryLimit
	}
	return f.MemoryBytes
}
