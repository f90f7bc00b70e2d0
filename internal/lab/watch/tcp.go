package watch

import (
	"context"
	"errors"
	"time"

	"spillway/internal/lab/result"
)

// TCP reads the TCP of the network namespace of the calling thread: states, opens, drops, retransmits and local ports.
// As they stood:
//
//   - established: connections (also those that the other side has closed); time_wait; in_use: sockets that listen,
//     connect or are connected; allocated, orphans: sockets of all namespaces, and those of them that no process owns,
//   - ports_low, ports_high: the ephemeral range, which the kernel takes local ports from; ports_range: how many it has,
//     reserved ones left out,
//   - ports_in_use, time_wait_ephemeral: see tcpPorts; told by the readings that counted, not by all.
//
// From boot:
//
//   - active_opens_total: connections asked for by this side; passive_opens_total: by the other; attempt_fails_total:
//     those that came to nothing; established_resets_total: connections that ended by a reset; resets_sent_total,
//   - segments_out_total, and of them retransmits_total; syn_retransmits_total: handshakes that had to be repeated,
//   - listen_overflows_total: connections refused by a full accept queue, once for each attempt of the other side;
//     listen_drops_total: by that or for any other reason; backlog_drops_total: segments dropped because the socket's
//     owner was too busy; request_queue_drops_total: handshakes dropped by a full SYN queue; syn_cookies_sent_total,
//   - time_waits_total: sockets that entered TIME_WAIT; time_wait_overflow_total: that could not, past
//     tcp_max_tw_buckets; time_wait_reused_total: that gave their port to a new connection (tcp_tw_reuse);
//     aborts_on_timeout_total: connections given up because the other side was silent.
//
// A column that the kernel does not have is left out.
func TCP() (*Sampler, error) {
	t := &tcp{}
	if err := t.open(); err != nil {
		t.close()
		return nil, err
	}
	return &Sampler{
		Kind: result.SamplerTCP, Detail: "TCP of the network namespace", Every: FastEvery,
		Read: t.read, Close: t.close,
	}, nil
}

type tcp struct {
	sockstat, sockstat6, snmp, netstat *procFile
	portRange, reserved                *procFile
	ports                              tcpPorts
	portsErr                           error // why ports are not counted
}

// open opens every file now, so that all readings are of the namespace of this thread; /proc/net would be that of the
// process's first thread.
func (t *tcp) open() error {
	const net, sys = "/proc/thread-self/net/", "/proc/sys/net/ipv4/"
	var err error
	for _, f := range [...]struct {
		file **procFile
		path string
	}{{&t.sockstat, net + "sockstat"}, {&t.snmp, net + "snmp"}, {&t.netstat, net + "netstat"}} {
		if *f.file, err = openProc(f.path); err != nil {
			return err
		}
	}
	t.sockstat6, _ = openProc(net + "sockstat6") // no IPv6, no file
	t.reserved, _ = openProc(sys + "ip_local_reserved_ports")
	if t.portRange, t.portsErr = openProc(sys + "ip_local_port_range"); t.portsErr != nil {
		return nil
	}
	t.ports.diag, t.portsErr = openDiag()
	return nil
}

func (t *tcp) close() {
	closeAll(t.sockstat, t.sockstat6, t.snmp, t.netstat, t.portRange, t.reserved)
	t.ports.diag.close()
}

func (t *tcp) read(context.Context) ([]result.Sample, error) {
	values := make(map[string]float64, 32)
	err := errors.Join(
		t.readSockstat(values),
		readMIB(t.snmp, "Tcp", snmpNames, values),
		readMIB(t.netstat, "TcpExt", netstatNames, values),
		t.readPorts(time.Now(), values))
	return []result.Sample{{Values: values}}, err
}

// snmpNames are the columns of Tcp in /proc/net/snmp that are told, under our names.
var snmpNames = map[string]string{
	"ActiveOpens":  "active_opens_total",
	"PassiveOpens": "passive_opens_total",
	"AttemptFails": "attempt_fails_total",
	"EstabResets":  "established_resets_total",
	"CurrEstab":    "established",
	"OutSegs":      "segments_out_total",
	"RetransSegs":  "retransmits_total",
	"OutRsts":      "resets_sent_total",
}

// netstatNames are those of TcpExt in /proc/net/netstat. TW is documented as what finished TIME_WAIT; today's kernels
// count what enters it (the tests see that), early ones counted what left it.
var netstatNames = map[string]string{
	"ListenOverflows":     "listen_overflows_total",
	"ListenDrops":         "listen_drops_total",
	"TCPBacklogDrop":      "backlog_drops_total",
	"TCPReqQFullDrop":     "request_queue_drops_total",
	"SyncookiesSent":      "syn_cookies_sent_total",
	"TW":                  "time_waits_total",
	"TWRecycled":          "time_wait_reused_total",
	"TCPTimeWaitOverflow": "time_wait_overflow_total",
	"TCPAbortOnTimeout":   "aborts_on_timeout_total",
	"TCPSynRetrans":       "syn_retransmits_total",
}

// sockstatNames are the figures of TCP in /proc/net/sockstat.
var sockstatNames = map[string]string{
	"inuse":  "in_use",
	"orphan": "orphans",
	"tw":     "time_wait",
	"alloc":  "allocated",
}

func readMIB(f *procFile, protocol string, names map[string]string, values map[string]float64) error {
	content, err := f.read()
	if err != nil {
		return err
	}
	return parseMIB(content, protocol, func(name []byte, value float64) {
		if ours, ok := names[string(name)]; ok {
			values[ours] = value
		}
	})
}

func (t *tcp) readSockstat(values map[string]float64) error {
	content, err := t.sockstat.read()
	if err != nil {
		return err
	}
	err = parseSockstat(content, "TCP", func(name []byte, value float64) {
		if ours, ok := sockstatNames[string(name)]; ok {
			values[ours] = value
		}
	})
	if err != nil || t.sockstat6 == nil {
		return err
	}
	if content, err = t.sockstat6.read(); err != nil {
		return err
	}
	return parseSockstat(content, "TCP6", func(name []byte, value float64) {
		if string(name) == "inuse" {
			values["in_use"] += value
		}
	})
}

func (t *tcp) readPorts(now time.Time, values map[string]float64) error {
	if t.portsErr != nil {
		return t.portsErr
	}
	content, err := t.portRange.read()
	if err != nil {
		return err
	}
	ports, err := parsePortRange(content)
	if err != nil {
		return err
	}
	if t.reserved != nil {
		if content, err = t.reserved.read(); err != nil {
			return err
		}
		if err := ports.reserve(content); err != nil {
			return err
		}
	}
	values["ports_low"], values["ports_high"] = float64(ports.low), float64(ports.high)
	values["ports_range"] = float64(ports.count())
	if !t.ports.due(now) {
		return nil
	}
	if err := t.ports.count(now, ports); err != nil {
		return err
	}
	values["ports_in_use"], values["time_wait_ephemeral"] = float64(t.ports.used), float64(t.ports.timeWait)
	return nil
}
