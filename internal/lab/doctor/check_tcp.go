package doctor

import "fmt"

// The range of local ports that is advised: above the ports that services
// commonly listen on, up to the last one.
const (
	portAdvisedFirst = 10240
	portAdvisedLast  = 65535
	portRangeAdvised = "10240 65535"
	portsMany        = 28000 // Linux's own range has 28,232
	portsFew         = 10000
)

const (
	bucketsFew     = 32768
	bucketsAdvised = 262144
	somaxconnFew   = 1024
	somaxconnGood  = 4096 // the kernel's own value since 5.4
	synBacklogFew  = 1024
	synBacklogGood = 4096
)

// CheckHost runs every check of a host.
func CheckHost(f *Facts) []Finding {
	var findings []Finding
	for _, check := range []func(*Facts) Finding{
		checkPorts, checkTimeWait, checkTWReuse, checkTWRecycle, checkTWBuckets,
		checkSomaxconn, checkListener, checkOverflows, checkSynBacklog, checkSyncookies,
		checkFiles, checkFileMax, checkConntrack,
		checkGovernor, checkCPU, checkPressure, checkClock,
		checkMemory, checkSwap, checkHugePages,
	} {
		if finding := check(f); finding.Status != "" {
			findings = append(findings, finding)
		}
	}
	return findings
}

func tcp(name, source string) Finding {
	return Finding{Group: "connections", Name: name, Status: OK, Source: source}
}

func checkPorts(f *Facts) Finding {
	if f.PortLast == 0 {
		return Finding{}
	}
	finding := tcp("local ports", "net.ipv4.ip_local_port_range")
	finding.Observed = fmt.Sprintf("%d ports (%d to %d)", f.ports(), f.PortFirst, f.PortLast)
	finding.Arithmetic = fmt.Sprintf("%d - %d + 1, in steps of two, less %d reserved = %d for each source address, destination address and port", f.PortLast, f.PortFirst, f.PortsReserved, f.ports())
	finding.Why = "a connection needs a port that no other to the same target holds, TIME_WAIT included"
	finding.OldAdvice = "1024-65535 (or 1024-65000) hands the ports of your own services (5432, 6379, 8080) to outgoing connections: start above them, or reserve them in net.ipv4.ip_local_reserved_ports"
	switch {
	case f.PortFirst < portAdvisedFirst && f.PortsReserved == 0:
		finding.Status = Warn
		finding.Why = fmt.Sprintf("the range begins at %d, among the ports that services listen on: a service that restarts can find its port taken by an outgoing connection", f.PortFirst)
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
	if ports == 0 {
		return Finding{}
	}
	finding := tcp("TIME_WAIT", "/proc/net/sockstat")
	finding.Observed = fmt.Sprintf("%d sockets now", max(0, f.TimeWait))
	finding.Arithmetic = fmt.Sprintf("%d ports / %.0f s = %.0f new connections/s that this host can close first, for each source address and target", ports, timeWaitSeconds, float64(ports)/timeWaitSeconds)
	finding.Why = "the side that closes first holds the port for 60 s, a constant of the kernel; open connections once and keep them"
	finding.OldAdvice = "lowering tcp_fin_timeout shortens FIN_WAIT_2, not TIME_WAIT"
	if float64(f.TimeWait) >= 0.8*float64(ports) {
		finding.Status = Warn
		finding.Why = fmt.Sprintf("as many as %.0f %% of the local ports: if they are this host's own towards one target, it is about to run out", 100*float64(f.TimeWait)/float64(ports))
	}
	return finding
}

func checkTWReuse(f *Facts) Finding {
	if f.TWReuse < 0 {
		return Finding{}
	}
	finding := tcp("tcp_tw_reuse", "net.ipv4.tcp_tw_reuse")
	finding.Observed = digits(f.TWReuse)
	_, age := reuse(&Facts{TWReuse: 1, Timestamps: 1, TWReuseDelay: f.TWReuseDelay}, false)
	finding.Arithmetic = fmt.Sprintf("with reuse a port is held for %s s in place of 60: %d ports / %s s = %s new connections/s", figure(age), f.ports(), figure(age), figure(float64(f.ports())/max(age, 0.001)))
	switch {
	case f.Timestamps == 0:
		finding.Status = Note
		finding.Observed += ", without effect: tcp_timestamps is 0"
		finding.Why = "reuse is safe only by timestamps, so the kernel does none without them"
		finding.set("net.ipv4.tcp_timestamps", "1")
	case f.TWReuse == 1:
		finding.Why = "outgoing connections take over a port in TIME_WAIT; safe by timestamps. It changes nothing for a server's own TIME_WAIT"
	case f.TWReuse == 2 && f.kernelAtLeast(4, 19):
		finding.Status = Note
		finding.Observed += " (loopback addresses only)"
		finding.Why = "a load over 127.0.0.1 does not see ports run out, the same load between hosts does. 1 reuses towards every target"
		finding.set("net.ipv4.tcp_tw_reuse", "1")
	default:
		finding.Status = Note
		finding.Why = "a host that opens many short connections runs out of ports; keep connections open, or let it reuse them"
		finding.set("net.ipv4.tcp_tw_reuse", "1")
	}
	return finding
}

func checkTWRecycle(f *Facts) Finding {
	finding := tcp("tcp_tw_recycle", "net.ipv4.tcp_tw_recycle")
	finding.OldAdvice = "setting it to 1: it dropped connections of clients that share an address behind NAT, and is gone since Linux 4.12; nothing replaces it"
	switch {
	case f.TWRecycle < 0:
		finding.Observed = "not in this kernel, " + f.Kernel
		finding.Why = "a sysctl file that still sets it prints an error and does nothing"
	case f.TWRecycle == 0:
		finding.Observed = "0"
		finding.Why = "off, as it must be"
	default:
		finding.Status = Fail
		finding.Observed = digits(f.TWRecycle)
		finding.Why = "clients behind one NAT address have different clocks: those whose timestamps are behind are dropped without an answer"
		finding.set("net.ipv4.tcp_tw_recycle", "0")
	}
	return finding
}

func checkTWBuckets(f *Facts) Finding {
	if f.MaxTWBuckets < 0 {
		return Finding{}
	}
	finding := tcp("tcp_max_tw_buckets", "net.ipv4.tcp_max_tw_buckets")
	finding.Observed = fmt.Sprintf("%d sockets", f.MaxTWBuckets)
	finding.Arithmetic = fmt.Sprintf("%d / %.0f s = %.0f closes/s; what comes above skips TIME_WAIT", f.MaxTWBuckets, timeWaitSeconds, float64(f.MaxTWBuckets)/timeWaitSeconds)
	finding.Why = "a guard of the kernel's memory; each TIME_WAIT costs about 250 bytes"
	finding.OldAdvice = "6000: it hides port exhaustion by killing TIME_WAIT, whose task is to keep old segments out of new connections"
	if f.MaxTWBuckets < bucketsFew {
		finding.Status = Warn
		finding.Why = "so low that TIME_WAIT is ended early under load (counter TCPTimeWaitOverflow): a lost last ACK resets the peer, old segments reach new connections"
		finding.set("net.ipv4.tcp_max_tw_buckets", fmt.Sprint(bucketsAdvised))
	}
	return finding
}

func checkSomaxconn(f *Facts) Finding {
	if f.Somaxconn < 0 {
		return Finding{}
	}
	finding := tcp("somaxconn", "net.core.somaxconn")
	finding.Observed = fmt.Sprintf("%d connections", f.Somaxconn)
	finding.Arithmetic = fmt.Sprintf("%d connections bridge a stall of 1 s at %d new connections/s, of 100 ms at %d", f.Somaxconn, f.Somaxconn, 10*f.Somaxconn)
	finding.Why = "the most that listen() can ask for; a full accept queue costs the client 1 s or more"
	if f.Somaxconn < somaxconnFew {
		finding.Status = Warn
		if !f.kernelAtLeast(5, 4) {
			finding.Why += "; 128 is the value of kernels before 5.4"
		}
		finding.set("net.core.somaxconn", fmt.Sprint(somaxconnGood))
	}
	return finding
}

func checkListener(f *Facts) Finding {
	if f.Listener == nil {
		return Finding{}
	}
	l := f.Listener
	finding := tcp(fmt.Sprintf("listener :%d", l.Port), "sock_diag")
	finding.Observed = fmt.Sprintf("accept backlog %d, %d waiting now", l.Backlog, l.Queued)
	finding.Arithmetic = fmt.Sprintf("the least of what listen() asked for and somaxconn (%d) = %d", f.Somaxconn, l.Backlog)
	finding.Why = "raising somaxconn helps only a service that asks for more and is started again"
	switch {
	case l.Queued > l.Backlog:
		finding.Status = Fail
		finding.Why = "the queue is full: the service does not accept, and new connections are dropped"
	case l.Backlog < somaxconnFew:
		finding.Status = Warn
		finding.Why = "the service asked for that little (nginx: listen … backlog=4096; Go asks for somaxconn)"
	}
	return finding
}

func checkOverflows(f *Facts) Finding {
	if f.ListenOverflow < 0 {
		return Finding{}
	}
	finding := tcp("listen overflows", "/proc/net/netstat, TcpExt ListenOverflows")
	finding.Observed = fmt.Sprintf("%d since boot", f.ListenOverflow)
	finding.Why = "connections dropped because an accept queue was full"
	if f.ListenOverflow > 0 {
		finding.Status = Note
		finding.Why += "; if the number grows under load, raise the backlog or accept faster"
	}
	return finding
}

func checkSynBacklog(f *Facts) Finding {
	if f.MaxSynBacklog < 0 {
		return Finding{}
	}
	finding := tcp("tcp_max_syn_backlog", "net.ipv4.tcp_max_syn_backlog")
	finding.Observed = fmt.Sprintf("%d half-open connections", f.MaxSynBacklog)
	finding.Why = "the accept backlog bounds half-open connections (since Linux 4.4), and with syncookies this setting drops none"
	if f.Syncookies == 0 {
		finding.Arithmetic = fmt.Sprintf("without syncookies, above 3/4 of %d = %d unknown clients are dropped", f.MaxSynBacklog, f.MaxSynBacklog*3/4)
		finding.Why = "syncookies are off, so this setting bounds half-open connections"
		if f.MaxSynBacklog < synBacklogFew {
			finding.Status = Warn
			finding.set("net.ipv4.tcp_max_syn_backlog", fmt.Sprint(synBacklogGood))
		}
	}
	return finding
}

func checkSyncookies(f *Facts) Finding {
	if f.Syncookies < 0 {
		return Finding{}
	}
	finding := tcp("syncookies", "net.ipv4.tcp_syncookies")
	finding.Observed = digits(f.Syncookies)
	finding.Why = "on when the queue of half-open connections overflows: nobody is turned away"
	switch f.Syncookies {
	case 0:
		finding.Status = Warn
		finding.Why = "a flood of SYNs, or a burst of clients, fills the queue and the rest is dropped"
		finding.set("net.ipv4.tcp_syncookies", "1")
	case 1:
	default:
		finding.Status = Note
		finding.Why = "2 sends cookies always, a setting for tests: window scaling and SACK then hang on timestamps"
		finding.set("net.ipv4.tcp_syncookies", "1")
	}
	return finding
}
