package doctor

import (
	"fmt"
	"math"

	"spillway/internal/lab/sheet"
)

const (
	filesFew       = 4096
	filesGood      = 65536
	nearlyFull     = 0.8
	full           = 0.95
	pressureHigh   = 20.0 // percent of the time that some task waited for a CPU
	memoryTight    = 0.1
	swapNoticeable = 64 << 20
	gibibyte       = 1 << 30
)

func machine(group, name, source string) Finding {
	return Finding{Group: group, Name: name, Status: OK, Source: source}
}

func checkFiles(f *Facts) Finding {
	finding := machine("files", "open files", "/proc/PID/limits")
	finding.Observed = fmt.Sprintf("soft %s, hard %s for %s", limitText(f.FilesSoft), limitText(f.FilesHard), f.FilesOf)
	if f.FilesSoft < math.MaxInt64 {
		finding.Arithmetic = fmt.Sprintf("%s = at most %s, half as many for a proxy, minus other open files",
			sheet.Plural(f.FilesSoft, "file"), sheet.Plural(f.FilesSoft, "connection"))
	}
	finding.Why = "each connection is an open file; Go programs raise the soft limit to the hard one, most other programs do not"
	fix := raiseFiles(filesGood, f.FilesHard)
	switch {
	case f.FilesSoft < filesFew:
		finding.Status, finding.Fix = Warn, fix
	case f.FilesHard < filesGood:
		finding.Status, finding.Fix = Note, fix
	}
	return finding
}

// raiseFiles is how a process gets more open files. No process may go above its hard limit; only root raises that.
func raiseFiles(want int, hard int64) string {
	unit := fmt.Sprintf("LimitNOFILE=%d in a systemd unit", want)
	if hard >= 0 && int64(want) > hard {
		return fmt.Sprintf("ulimit -n %d is the most that the hard limit allows; root raises that: %s, nofile in "+
			"/etc/security/limits.conf, or ulimit -Hn %d", hard, unit, want)
	}
	return fmt.Sprintf("ulimit -n %d in the shell; %s", want, unit)
}

func checkFileMax(f *Facts) Finding {
	finding := machine("files", "open files of the host", "fs.file-max, fs.file-nr")
	share := float64(f.FilesInUse) / float64(f.FileMax)
	finding.Observed = fmt.Sprintf("%s of %s in use", sheet.Integer(f.FilesInUse), sheet.Integer(f.FileMax))
	finding.Arithmetic = fmt.Sprintf("%s / %s = %s", sheet.Integer(f.FilesInUse), sheet.Integer(f.FileMax), sheet.Share(share))
	finding.Why = "the limit for all processes together; above it, open and accept fail with ENFILE"
	finding.fills(share, "fs.file-max", f.FileMax)
	return finding
}

// fills judges the share of a limit that is in use. If there is little left, the fix is twice the limit, the setting of a key.
func (f *Finding) fills(share float64, key string, limit int64) {
	if share < nearlyFull {
		return
	}
	f.Status = Warn
	if share >= full {
		f.Status = Fail
	}
	f.set(key, fmt.Sprint(powerOfTwo(int(min(2*limit, math.MaxInt32)))))
}

func checkConntrack(f *Facts) Finding {
	finding := machine("connections", "connection tracking", "net.netfilter.nf_conntrack_max, nf_conntrack_count")
	share := float64(f.Conntracks) / float64(f.ConntrackMx)
	finding.Observed = fmt.Sprintf("%s of %s entries", sheet.Integer(f.Conntracks), sheet.Integer(f.ConntrackMx))
	if f.ConntrackTW > 0 {
		finding.Arithmetic = fmt.Sprintf("%s entries / %d s (nf_conntrack_tcp_timeout_time_wait) = %s new connections/s",
			sheet.Integer(f.ConntrackMx), f.ConntrackTW, sheet.Number(float64(f.ConntrackMx)/float64(f.ConntrackTW)))
	}
	finding.Why = "a full table drops packets (\"nf_conntrack: table full\" in the kernel log); an entry outlives its connection"
	if f.Conntracks == 0 {
		finding.Why = "loaded but unused, because no rule tracks connections"
	}
	finding.fills(share, "net.netfilter.nf_conntrack_max", f.ConntrackMx)
	return finding
}

func checkGovernor(f *Facts) Finding {
	finding := machine("processors", "CPU governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	finding.Observed = f.Governor
	finding.Why = "a clock frequency that follows the load makes light loads look slow, and runs differ"
	if f.Governor != "performance" {
		finding.Status = Note
		finding.Fix = "cpupower frequency-set -g performance"
	}
	return finding
}

func checkCPU(f *Facts) Finding {
	finding := machine("processors", "cores", "/proc/stat, control group")
	finding.Observed = sheet.Plural(f.Cores, "core")
	finding.Why = "a process may use all of them: there is no quota"
	if f.CPUQuota > 0 && f.CPUQuota < float64(f.Cores) {
		finding.Status = Note
		finding.Observed += ", quota " + sheet.Number(f.CPUQuota)
		finding.Arithmetic = fmt.Sprintf("%s cores x 100 ms = %s ms of CPU per period; then all threads stop until the next period",
			sheet.Number(f.CPUQuota), sheet.Number(f.CPUQuota*100))
		finding.Why = "a quota adds up to 100 ms of latency long before the average use reaches it"
		if f.CPUQuota < 1 {
			finding.Status = Warn
		}
	}
	if f.Cores == 1 {
		if finding.Status == OK {
			finding.Status = Note
		}
		finding.Why = "generator, service and database share one core, so each affects the measurement of the others"
	}
	return finding
}

func checkPressure(f *Facts) Finding {
	finding := machine("processors", "pressure", "/proc/pressure/cpu")
	if !f.Pressure {
		finding.Status = Note
		finding.Observed = "not available"
		finding.Why = "without it a run cannot tell whether tasks waited for CPU, memory or disk; it needs Linux 4.20 with CONFIG_PSI"
		finding.Fix = "boot with psi=1"
		return finding
	}
	finding.Observed = sheet.Text(f.CPUPressure, sheet.UnitPercent) + " of the last 10 s"
	finding.Why = "the share of time in which some task that was ready to run waited for a CPU"
	if f.CPUPressure >= pressureHigh {
		finding.Status = Warn
		finding.Why += "; the host is busy, which would distort a measurement"
	}
	return finding
}

func checkClock(f *Facts) Finding {
	finding := machine("processors", "clock source", "/sys/devices/system/clocksource/clocksource0/current_clocksource")
	finding.Observed = f.ClockSource
	finding.Why = "reading the clock takes about 25 ns, without a system call"
	switch f.ClockSource {
	case "hpet", "acpi_pm", "jiffies", "pit":
		finding.Status = Warn
		finding.Why = "each reading of the clock is a system call and a slow device access, which slows requests and distorts latencies"
		finding.Fix = "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource, if available_clocksource lists it"
	}
	return finding
}

func checkMemory(f *Facts) Finding {
	finding := machine("memory", "memory", "/proc/meminfo, control group")
	finding.Observed = fmt.Sprintf("%s, %s available", sheet.Size(f.MemoryBytes), sheet.Size(max(0, f.AvailableBytes)))
	finding.Why = "unused memory caches files, including the database's"
	if f.MemoryLimit > 0 && f.MemoryLimit < f.MemoryBytes {
		finding.Status = Note
		finding.Observed += fmt.Sprintf("; control group limit %s", sheet.Size(f.MemoryLimit))
		finding.Why = "the limit includes cached files, and a process above it is killed; set GOMEMLIMIT and the database's buffers below it"
	}
	if share := float64(f.AvailableBytes) / float64(f.MemoryBytes); f.AvailableBytes >= 0 && share < memoryTight {
		finding.Status = Warn
		finding.Arithmetic = fmt.Sprintf("%s / %s = %s", sheet.Size(f.AvailableBytes), sheet.Size(f.MemoryBytes), sheet.Share(share))
		finding.Why = "a load that needs more memory will swap, or processes will be killed"
	}
	return finding
}

func checkSwap(f *Facts) Finding {
	finding := machine("memory", "swap", "/proc/meminfo, vm.swappiness")
	finding.Observed = fmt.Sprintf("%s of %s in use, swappiness %d", sheet.Size(f.SwapUsedBytes), sheet.Size(f.SwapBytes), f.Swappiness)
	finding.Why = "almost nothing is swapped out"
	if f.SwapUsedBytes >= swapNoticeable {
		finding.Status = Note
		finding.Why = "a process that needs swapped-out pages reads them from disk, and a request waits for milliseconds"
		if float64(f.SwapUsedBytes) > memoryTight*float64(f.MemoryBytes) {
			finding.Status = Warn
			finding.set("vm.swappiness", "10")
		}
	}
	return finding
}

func checkHugePages(f *Facts) Finding {
	finding := machine("memory", "transparent huge pages", "/sys/kernel/mm/transparent_hugepage/enabled")
	finding.Observed = f.HugePages
	finding.Why = "programs that benefit from huge pages request them"
	if f.HugePages == "always" {
		finding.Status = Note
		finding.Why = "when Redis forks to save, it copies 2 MiB per page written meanwhile, which adds latency; measure other programs " +
			"before changing it"
		finding.Fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
	}
	return finding
}
