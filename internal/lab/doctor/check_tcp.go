package doctor

import (
	"fmt"
	"strconv"

	"spillway/internal/lab/sheet"
)

// The recommended range of local ports lies above the ports that services
// commonly listen on.
const (
	portAdvisedFirst = 10240
	portAdvisedLast  = 65535
	portRangeAdvised = "10240 65535"
	portsMany        = 28000 // the default range of Linux has 28,232
	portsFew         = 10000
)

const (
	bucketsFew     = 32768
	bucketsAdvised = 262144
	somaxconnFew   = 1024
	somaxconnGood  = 4096 // the kernel's default since 5.4
	synBacklogFew  = 1024
	synBacklogGood = 4096
)

// CheckHost runs all checks of a host whose facts are known.
func CheckHost(f *Facts) []Finding {
	var findings []Finding
	for _, c := range []struct {
		known bool
		check func(*Facts) Finding
	}{
		{f.PortLast != 0, checkPorts},
		{f.ports() != 0, checkTimeWait},
		{f.TWReuse >= 0, checkTWReuse},
		{true, checkTWRecycle},
		{f.MaxTWBuckets >= 0, checkTWBuckets},
		{f.Somaxconn >= 0, checkSomaxconn},
		{f.Listener != nil, checkListener},
		{f.ListenOverflow >= 0, checkOverflows},
		{f.MaxSynBacklog >= 0, checkSynBacklog},
		{f.Syncookies >= 0, checkSyncookies},
		{f.FilesSoft >= 0, checkFiles},
		{f.FileMax > 0 && f.FilesInUse >= 0, checkFileMax},
		{f.ConntrackMx > 0 && f.Conntracks >= 0, checkConntrack}, // else it is not loaded
		{f.Governor != "", checkGovernor},                        // a virtual machine has none
		{f.Cores > 0, checkCPU},
		{true, checkPressure},
		{f.ClockSource != "", checkClock},
		{f.MemoryBytes > 0, checkMemory},
		{f.SwapBytes >= 0 && f.MemoryBytes > 0, checkSwap},
		{f.HugePages != "", checkHugePages},
	} {
		if c.known {
			findings = append(findings, c.check(f))
		}
	}
	return findings
}

func tcp(name, source string) Finding {
	return Finding{Group: "connections", Name: name, Status: OK, Source: source}
}

func checkPorts(f *Facts) Finding {
	finding := tcp("local ports", "net.ipv4.ip_local_port_range")
	finding.Observed = fmt.Sprintf("%s (%d to %d)", sheet.Plural(f.ports(), "port"), f.PortFirst, f.PortLast)
	finding.Arithmetic = fmt.Sprintf("%d - %d + 1, in steps of two, minus %d reserved = %s per source address, destination address and "+
		"destination port", f.PortLast, f.PortFirst, f.PortsReserved, sheet.Integer(f.ports()))
	finding.Why = "a connection needs a local port that no other connection to the same target holds, including those in TIME_WAIT"
	finding.OldAdvice = "1024-65535 (or 1024-65000): gives the ports of your own services (5432, 6379, 8080) to outgoing connections. " +
		"Start above them, or reserve them in net.ipv4.ip_local_reserved_ports"
	switch {
	case f.PortFirst < portAdvisedFirst && f.PortsReserved == 0:
		finding.Status = Warn
		finding.Why = fmt.Sprintf("the range begins at %d, among the ports of services: an outgoing connection can take the port of a "+
			"service that restarts", f.PortFirst)
		finding.set("net.ipv4.ip_local_port_range", portRangeAdvised)
	case f.ports() < portsFew:
		finding.Status = Warn
		finding.set("net.ipv4.ip_local_port_range", portRangeAdvised)
	case f.ports() < portsMany:
		finding.Status = Note
		finding.set("net.ipv4.ip_local_port_range", portRangeAdvised)
	}
	return finding
}

func checkTimeWait(f *Facts) Finding {
	ports := f.ports()
	finding := tcp("TIME_WAIT", "/proc/net/sockstat")
	finding.Observed = sheet.Plural(max(0, f.TimeWait), "socket") + " now"
	finding.Arithmetic = fmt.Sprintf("%s / %s = %s new connections/s that this host can close first, per source address and target",
		sheet.Plural(ports, "port"), sheet.Duration(timeWaitSeconds), sheet.Number(float64(ports)/timeWaitSeconds))
	finding.Why = "the side that closes first holds the port for 60 s, a constant of the kernel; keep connections open instead"
	finding.OldAdvice = "lower tcp_fin_timeout: it shortens FIN_WAIT_2, not TIME_WAIT"
	if float64(f.TimeWait) >= 0.8*float64(ports) {
		finding.Status = Warn
		finding.Why = fmt.Sprintf("they are %s of the local ports: if this host opened them to one target, it is about to run out",
			sheet.Share(float64(f.TimeWait)/float64(ports)))
	}
	return finding
}

func checkTWReuse(f *Facts) Finding {
	finding := tcp("tcp_tw_reuse", "net.ipv4.tcp_tw_reuse")
	finding.Observed = strconv.FormatInt(f.TWReuse, 10)
	_, age := reuse(&Facts{TWReuse: 1, Timestamps: 1, TWReuseDelay: f.TWReuseDelay}, false)
	finding.Arithmetic = fmt.Sprintf("with reuse a port is held for %s instead of 60 s: %s / %s = %s new connections/s", sheet.Duration(age),
		sheet.Plural(f.ports(), "port"), sheet.Duration(age), sheet.Number(float64(f.ports())/max(age, 0.001)))
	switch {
	case f.Timestamps == 0:
		finding.Status = Note
		finding.Observed += ", without effect: tcp_timestamps is 0"
		finding.Why = "the kernel reuses ports only with timestamps, which make reuse safe"
		finding.set("net.ipv4.tcp_timestamps", "1")
	case f.TWReuse == 1:
		finding.Why = "an outgoing connection can take a port in TIME_WAIT, which timestamps make safe; a server's own TIME_WAIT is unaffected"
	case f.TWReuse == 2 && f.kernelAtLeast(4, 19):
		finding.Status = Note
		finding.Observed += " (loopback addresses only)"
		finding.Why = "ports last for a load over 127.0.0.1, but run out for the same load between hosts; 1 reuses ports for every target"
		finding.set("net.ipv4.tcp_tw_reuse", "1")
	default:
		finding.Status = Note
		finding.Why = "a host that opens many short connections runs out of ports: keep connections open, or let the kernel reuse ports"
		finding.set("net.ipv4.tcp_tw_reuse", "1")
	}
	return finding
}

func checkTWRecycle(f *Facts) Finding {
	finding := tcp("tcp_tw_recycle", "net.ipv4.tcp_tw_recycle")
	finding.OldAdvice = "set it to 1: it dropped connections of clients behind one NAT address, and is gone since Linux 4.12 without a " +
		"replacement"
	switch {
	case f.TWRecycle < 0:
		finding.Observed = "not in this kernel, " + f.Kernel
		finding.Why = "a sysctl file that sets it prints an error and has no effect"
	case f.TWRecycle == 0:
		finding.Observed = "0"
		finding.Why = "it must be off, and is"
	default:
		finding.Status = Fail
		finding.Observed = strconv.FormatInt(f.TWRecycle, 10)
		finding.Why = "clients behind one NAT address have different clocks: the kernel silently drops those with older timestamps"
		finding.set("net.ipv4.tcp_tw_recycle", "0")
	}
	return finding
}

func checkTWBuckets(f *Facts) Finding {
	finding := tcp("tcp_max_tw_buckets", "net.ipv4.tcp_max_tw_buckets")
	finding.Observed = sheet.Plural(f.MaxTWBuckets, "socket")
	finding.Arithmetic = fmt.Sprintf("%s / %s = %s closes/s; further connections skip TIME_WAIT", sheet.Integer(f.MaxTWBuckets),
		sheet.Duration(timeWaitSeconds), sheet.Number(float64(f.MaxTWBuckets)/timeWaitSeconds))
	finding.Why = "limits the kernel's memory; a socket in TIME_WAIT takes about 250 bytes"
	finding.OldAdvice = "6000: it hides port exhaustion by ending TIME_WAIT early, which lets old segments into new connections"
	if f.MaxTWBuckets < bucketsFew {
		finding.Status = Warn
		finding.Why = "TIME_WAIT ends early under load (counter TCPTimeWaitOverflow): a lost last ACK resets the peer, and old segments " +
			"reach new connections"
		finding.set("net.ipv4.tcp_max_tw_buckets", fmt.Sprint(bucketsAdvised))
	}
	return finding
}

func checkSomaxconn(f *Facts) Finding {
	finding := tcp("somaxconn", "net.core.somaxconn")
	finding.Observed = sheet.Plural(f.Somaxconn, "connection")
	finding.Arithmetic = fmt.Sprintf("%s cover a stall of 1 s at %s new connections/s, or of 100 ms at %s",
		sheet.Plural(f.Somaxconn, "connection"), sheet.Integer(f.Somaxconn), sheet.Integer(10*f.Somaxconn))
	finding.Why = "the largest backlog that listen() can request; a full accept queue delays the client by at least 1 s"
	if f.Somaxconn < somaxconnFew {
		finding.Status = Warn
		if !f.kernelAtLeast(5, 4) {
			finding.Why += "; 128 is the default of kernels before 5.4"
		}
		finding.set("net.core.somaxconn", fmt.Sprint(somaxconnGood))
	}
	return finding
}

func checkListener(f *Facts) Finding {
	l := f.Listener
	finding := tcp(fmt.Sprintf("listener :%d", l.Port), "sock_diag")
	finding.Observed = fmt.Sprintf("accept backlog %s, %s waiting", sheet.Integer(l.Backlog), sheet.Integer(l.Queued))
	finding.Arithmetic = fmt.Sprintf("min(backlog requested by listen(), somaxconn %s) = %s", sheet.Integer(f.Somaxconn),
		sheet.Integer(l.Backlog))
	finding.Why = "raising somaxconn helps only a service that requests more and is restarted"
	switch {
	case l.Queued > l.Backlog:
		finding.Status = Fail
		finding.Why = "the queue is full: the service does not accept, and new connections are dropped"
	case l.Backlog < somaxconnFew:
		finding.Status = Warn
		finding.Why = "the service requested no more (nginx: listen … backlog=4096; Go requests somaxconn)"
	}
	return finding
}

func checkOverflows(f *Facts) Finding {
	finding := tcp("listen overflows", "/proc/net/netstat, TcpExt ListenOverflows")
	finding.Observed = sheet.Integer(f.ListenOverflow) + " since boot"
	finding.Why = "connections that were dropped because an accept queue was full"
	if f.ListenOverflow > 0 {
		finding.Status = Note
		finding.Why += "; if the number grows under load, raise the backlog or accept faster"
	}
	return finding
}

func checkSynBacklog(f *Facts) Finding {
	finding := tcp("tcp_max_syn_backlog", "net.ipv4.tcp_max_syn_backlog")
	finding.Observed = sheet.Plural(f.MaxSynBacklog, "half-open connection")
	finding.Why = "the accept backlog limits half-open connections since Linux 4.4; with syncookies this setting drops none"
	if f.Syncookies == 0 {
		finding.Arithmetic = fmt.Sprintf("without syncookies, clients beyond 3/4 of %s = %s are dropped",
			sheet.Integer(f.MaxSynBacklog), sheet.Integer(f.MaxSynBacklog*3/4))
		finding.Why = "syncookies are off, so this setting limits half-open connections"
		if f.MaxSynBacklog < synBacklogFew {
			finding.Status = Warn
			finding.set("net.ipv4.tcp_max_syn_backlog", fmt.Sprint(synBacklogGood))
		}
	}
	return finding
}

func checkSyncookies(f *Facts) Finding {
	finding := tcp("syncookies", "net.ipv4.tcp_syncookies")
	finding.Observed = strconv.FormatInt(f.Syncookies, 10)
	finding.Why = "used when the queue of half-open connections is full, so that no client is rejected"
	switch f.Syncookies {
	case 0:
		finding.Status = Warn
		finding.Why = "a SYN flood or a burst of clients fills the queue, and further clients are dropped"
		finding.set("net.ipv4.tcp_syncookies", "1")
	case 1:
	default:
		finding.Status = Note
		finding.Why = "2 always sends cookies, which is for tests: window scaling and SACK then depend on timestamps"
		finding.set("net.ipv4.tcp_syncookies", "1")
	}
	return finding
}
