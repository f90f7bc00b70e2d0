package doctor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"spillway/internal/controlgroup"
	"spillway/internal/netstat"
)

const (
	// absent marks a number that this kernel or machine does not have.
	absent  = -1
	portMax = 65535
)

// Facts are the inputs of the checks of a host. A number that the kernel does not
// show is -1.
type Facts struct {
	Kernel string `json:"kernel"` // such as "6.1.0-13-amd64"

	PortFirst      int   `json:"local_port_first"`
	PortLast       int   `json:"local_port_last"`
	PortsReserved  int   `json:"local_ports_reserved"` // within the range
	TWReuse        int64 `json:"tcp_tw_reuse" sysctl:"net.ipv4.tcp_tw_reuse"`
	TWReuseDelay   int64 `json:"tcp_tw_reuse_delay_milliseconds" sysctl:"net.ipv4.tcp_tw_reuse_delay"`
	TWRecycle      int64 `json:"tcp_tw_recycle" sysctl:"net.ipv4.tcp_tw_recycle"`
	MaxTWBuckets   int64 `json:"tcp_max_tw_buckets" sysctl:"net.ipv4.tcp_max_tw_buckets"`
	Timestamps     int64 `json:"tcp_timestamps" sysctl:"net.ipv4.tcp_timestamps"`
	FinTimeout     int64 `json:"tcp_fin_timeout_seconds" sysctl:"net.ipv4.tcp_fin_timeout"`
	Somaxconn      int64 `json:"somaxconn" sysctl:"net.core.somaxconn"`
	MaxSynBacklog  int64 `json:"tcp_max_syn_backlog" sysctl:"net.ipv4.tcp_max_syn_backlog"`
	Syncookies     int64 `json:"tcp_syncookies" sysctl:"net.ipv4.tcp_syncookies"`
	TimeWait       int64 `json:"time_wait_sockets"`
	ListenOverflow int64 `json:"listen_overflows"` // since boot

	FilesOf     string `json:"open_files_of"` // the process whose limits these are
	FilesSoft   int64  `json:"open_files_soft"`
	FilesHard   int64  `json:"open_files_hard"`
	FilesOfLoad int64  `json:"open_files_of_load"` // that a load started here may have: its hard limit, which it takes as its soft one
	FilesInUse  int64  `json:"open_files_host" sysctl:"fs.file-nr"`
	FileMax     int64  `json:"open_files_host_max" sysctl:"fs.file-max"`
	NrOpen      int64  `json:"open_files_process_max" sysctl:"fs.nr_open"`
	Conntracks  int64  `json:"conntrack_entries" sysctl:"net.netfilter.nf_conntrack_count"`
	ConntrackMx int64  `json:"conntrack_max" sysctl:"net.netfilter.nf_conntrack_max"`
	ConntrackTW int64  `json:"conntrack_time_wait_seconds" sysctl:"net.netfilter.nf_conntrack_tcp_timeout_time_wait"`

	Cores           int     `json:"cores"`
	CPUQuota        float64 `json:"cpu_quota_cores"` // of the control group; 0 if none
	Governor        string  `json:"cpu_governor,omitempty"`
	ClockSource     string  `json:"clock_source,omitempty"`
	Pressure        bool    `json:"pressure_stall_information"`
	CPUPressure     float64 `json:"cpu_pressure_percent"` // some, last 10 s
	MemoryBytes     int64   `json:"memory_bytes"`
	AvailableBytes  int64   `json:"memory_available_bytes"`
	MemoryLimit     int64   `json:"memory_limit_bytes"` // of the control group; 0 if none
	SwapBytes       int64   `json:"swap_bytes"`
	SwapUsedBytes   int64   `json:"swap_used_bytes"`
	Swappiness      int64   `json:"swappiness" sysctl:"vm.swappiness"`
	HugePages       string  `json:"transparent_huge_pages,omitempty"`
	RotationalDisks int     `json:"rotational_disks"`
	Disks           int     `json:"disks"`

	Listener *Listener `json:"listener,omitempty"` // of the target, if it is on this host
}

// ReadFacts reads the facts of the Linux host whose root directory is root, "/" for this one. Network settings are those of
// the calling thread's network namespace. What the host does not have is absent; only a root without /proc is an error.
func ReadFacts(root string) (*Facts, error) {
	r, err := newReader(root)
	if err != nil {
		return nil, fmt.Errorf("read host facts from /proc, which needs Linux: %w", err)
	}
	f := &Facts{Kernel: r.sysctlText("kernel.osrelease")}
	r.settings(f)
	r.network(f)
	// The limits of the process that started this one: a Go program raises its own soft limit of open files at start, which says
	// nothing about other programs.
	stat, _ := r.self.Stat()
	r.files(f, stat.PPID)
	r.machine(f)
	return f, nil
}

// reader reads what is below the root directory of a host.
type reader struct {
	root string
	proc procfs.FS
	self procfs.Proc
}

func newReader(root string) (*reader, error) {
	proc, err := procfs.NewFS(filepath.Join(root, "proc"))
	if err != nil {
		return nil, err
	}
	self, err := proc.Self()
	if err != nil {
		return nil, err
	}
	return &reader{root, proc, self}, nil
}

// text returns a file's text without the blanks around it, "" if it cannot be read.
func (r *reader) text(name ...string) string {
	text, err := os.ReadFile(filepath.Join(r.root, filepath.Join(name...)))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// sysctlText returns a kernel setting, "" if there is none.
func (r *reader) sysctlText(name string) string {
	return r.text("proc/sys", strings.ReplaceAll(name, ".", "/"))
}

// sysctl returns the first number of a kernel setting, or absent.
func (r *reader) sysctl(name string) int64 {
	values, err := r.proc.SysctlInts(name)
	if err != nil || len(values) == 0 || values[0] < 0 {
		return absent
	}
	return int64(values[0])
}

// settings reads the numbers that are kernel settings, by the tags of their fields.
func (r *reader) settings(f *Facts) {
	facts := reflect.ValueOf(f).Elem()
	for field, value := range facts.Fields() {
		if name := field.Tag.Get("sysctl"); name != "" {
			value.SetInt(r.sysctl(name))
		}
	}
}

// network reads the ports and counters of TCP.
func (r *reader) network(f *Facts) {
	// A wrong list of reserved ports leaves the range valid.
	ports, _ := netstat.ParsePortRange(r.sysctlText("net.ipv4.ip_local_port_range"), r.sysctlText("net.ipv4.ip_local_reserved_ports"))
	f.PortFirst, f.PortLast, f.PortsReserved = ports.First, ports.Last, ports.Reserved
	f.TimeWait, f.ListenOverflow = absent, absent
	task, err := netstat.CurrentTask(filepath.Join(r.root, "proc"))
	if err != nil {
		return
	}
	if n, known, _ := task.TimeWait(); known {
		f.TimeWait = int64(n)
	}
	if counters, err := task.Netstat(); err == nil && counters.ListenOverflows != nil {
		f.ListenOverflow = int64(min(*counters.ListenOverflows, 1<<62))
	}
}

// files reads the limits of open files: those of a process, or else this one's, and the host's.
func (r *reader) files(f *Facts, pid int) {
	p, err := r.proc.Proc(pid)
	if err != nil || pid == 0 {
		p = r.self
	}
	f.FilesSoft, f.FilesHard = parseFileLimits(r.text("proc", strconv.Itoa(p.PID), "limits"))
	_, f.FilesOfLoad = parseFileLimits(r.text("proc", strconv.Itoa(r.self.PID), "limits"))
	name, _ := p.Comm()
	f.FilesOf = fmt.Sprintf("%s (pid %d)", name, p.PID)
}

// machine reads processors, memory and disks.
func (r *reader) machine(f *Facts) {
	if stat, err := r.proc.Stat(); err == nil {
		f.Cores = len(stat.CPU)
	}
	f.Governor = r.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	f.ClockSource = r.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
	if pressure, err := r.proc.PSIStatsForResource("cpu"); err == nil && pressure.Some != nil {
		f.Pressure, f.CPUPressure = true, pressure.Some.Avg10
	}
	memory, _ := r.proc.Meminfo() // fields that could not be read are nil
	f.MemoryBytes = orAbsent(memory.MemTotalBytes)
	f.AvailableBytes = orAbsent(memory.MemAvailableBytes)
	f.SwapBytes = orAbsent(memory.SwapTotalBytes)
	f.SwapUsedBytes = max(0, f.SwapBytes-max(0, orAbsent(memory.SwapFreeBytes)))
	f.HugePages = parseChoice(r.text("sys/kernel/mm/transparent_hugepage/enabled"))
	f.CPUQuota, f.MemoryLimit = r.controlGroup()
	r.disks(f)
}

func orAbsent(n *uint64) int64 {
	if n == nil || *n > math.MaxInt64 {
		return absent
	}
	return int64(*n)
}

// disks counts the block devices that are disks.
func (r *reader) disks(f *Facts) {
	devices, _ := os.ReadDir(filepath.Join(r.root, "sys/block"))
	for _, device := range devices {
		name := device.Name()
		if strings.HasPrefix(name, "loop") || strings.HasPrefix(name, "ram") || strings.HasPrefix(name, "zram") ||
			strings.HasPrefix(name, "dm-") {
			continue
		}
		f.Disks++
		if r.text("sys/block", name, "queue/rotational") == "1" {
			f.RotationalDisks++
		}
	}
}

// controlGroup returns the smallest limits between this process's control group and the root, version 2 or 1; 0 stands for
// none.
func (r *reader) controlGroup() (cores float64, memory int64) {
	least := func(controller string, limit func(dir string) float64) float64 {
		lowest := math.Inf(1)
		for _, dir := range controlgroup.Of(filepath.Join(r.root, "proc"), filepath.Join(r.root, controlgroup.Mount), r.self.PID, controller) {
			lowest = min(lowest, limit(dir))
		}
		if math.IsInf(lowest, 1) {
			return 0
		}
		return lowest
	}
	return least("cpu", controlgroup.Quota), int64(least("memory", controlgroup.Memory))
}

// KernelAtLeast reports whether the kernel has at least that version. An
// unreadable version counts as new.
func (f *Facts) KernelAtLeast(major, minor int) bool {
	a, b, ok := parseKernel(f.Kernel)
	return !ok || a > major || a == major && b >= minor
}

// Ports is the number of local ports for connections to one target. The kernel
// searches the range in steps of two and omits the last port of an odd number.
func (f *Facts) Ports() int {
	if f.PortLast < f.PortFirst || f.PortFirst <= 0 {
		return 0
	}
	n := f.PortLast - f.PortFirst + 1
	if n > 1 {
		n &^= 1
	}
	return max(0, n-f.PortsReserved)
}

// Memory is the limit for this process: the machine's or its control group's.
func (f *Facts) Memory() int64 {
	if f.MemoryLimit > 0 && f.MemoryLimit < f.MemoryBytes {
		return f.MemoryLimit
	}
	return f.MemoryBytes
}

// parseNumber reads a number; absent if it is negative or invalid.
func parseNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return absent
	}
	return n
}

// parseFileLimits reads the soft and the hard limit of open files from
// /proc/PID/limits. procfs returns the soft one only.
func parseFileLimits(text string) (soft, hard int64) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max open files")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		return parseLimit(fields[0]), parseLimit(fields[1])
	}
	return absent, absent
}

func parseLimit(text string) int64 {
	if text == "unlimited" {
		return math.MaxInt64
	}
	return parseNumber(text)
}

// parseChoice reads the chosen word of "always [madvise] never".
func parseChoice(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, found := strings.Cut(rest, "]")
	if !found {
		return ""
	}
	return word
}

// parseKernel reads major and minor of "6.1.0-13-amd64".
func parseKernel(text string) (major, minor int, ok bool) {
	_, err := fmt.Sscanf(text, "%d.%d", &major, &minor)
	return major, minor, err == nil
}
