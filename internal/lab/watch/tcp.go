package watch

import (
	"context"
	"errors"
	"math/bits"
	"runtime"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/netstat"
)

// TCP samples the TCP of the calling thread's network namespace: states, opens, drops, retransmits and local ports.
// As they are:
//
//   - established: connections, including those that the other side has closed; time_wait,
//   - ports_range: how many local ports the kernel can give, without reserved ones,
//   - ports_in_use: see portCounter. Not every reading has them, see rarely,
//   - send_queue_bytes, receive_queue_bytes: bytes that wait in all established connections for the other side, and for the
//     program to read them. Not every reading has them.
//
// Since boot:
//
//   - active_opens_total, passive_opens_total: connections that this side, and the other side, asked for;
//     attempt_fails_total: those that failed,
//   - segments_out_total, and of them retransmits_total,
//   - listen_overflows_total: connections rejected by a full accept queue, once per attempt; listen_drops_total: rejected
//     for that or any other reason.
//
// A counter that the kernel does not have is missing.
func TCP() (*Sampler, error) {
	t := &tcp{}
	var err error
	if t.task, err = netstat.CurrentTask("/proc"); err != nil {
		return nil, err
	}
	if t.portRange, t.portsErr = netstat.OpenPortRange(); t.portsErr == nil {
		t.ports.client, t.portsErr = netstat.Open()
	}
	return &Sampler{
		Kind: result.SamplerTCP, Detail: "TCP of the network namespace", Every: FastEvery,
		Read: t.read, Close: t.close,
	}, nil
}

type tcp struct {
	task      netstat.Task
	portRange *netstat.PortRangeFiles
	ports     portCounter
	queues    rarely
	portsErr  error // why ports and queues are not counted
}

func (t *tcp) close() {
	if t.portRange != nil {
		t.portRange.Close()
	}
	if t.ports.client != nil {
		t.ports.client.Close()
	}
}

func (t *tcp) read(context.Context) ([]result.Sample, error) {
	values := make(map[string]float64, 32)
	waiting, known, err := t.task.TimeWait()
	if known {
		values["time_wait"] = float64(waiting)
	}
	err = errors.Join(err, t.readCounters(values), t.readPorts(time.Now(), values))
	return []result.Sample{{Values: values}}, err
}

// readCounters reads net/snmp and net/netstat.
func (t *tcp) readCounters(values map[string]float64) error {
	snmp, err := t.task.Snmp()
	netstat, netstatErr := t.task.Netstat()
	for name, value := range map[string]*float64{
		"active_opens_total":     snmp.ActiveOpens,
		"passive_opens_total":    snmp.PassiveOpens,
		"attempt_fails_total":    snmp.AttemptFails,
		"established":            snmp.CurrEstab,
		"segments_out_total":     snmp.OutSegs,
		"retransmits_total":      snmp.RetransSegs,
		"listen_overflows_total": netstat.ListenOverflows,
		"listen_drops_total":     netstat.ListenDrops,
	} {
		if value != nil {
			values[name] = *value
		}
	}
	return errors.Join(err, netstatErr)
}

func (t *tcp) readPorts(now time.Time, values map[string]float64) error {
	if t.portsErr != nil {
		return t.portsErr
	}
	ports, err := t.portRange.Read()
	if err != nil {
		return err
	}
	values["ports_range"] = float64(ports.Count())
	if t.queues.due(now) {
		var send, receive uint64
		add := func(s *netstat.Socket) { send, receive = send+uint64(s.Backlog), receive+uint64(s.Queued) }
		established := netstat.Query{States: 1 << netstat.Established}
		if err := t.queues.do(now, func() error { return t.ports.client.Sockets(established, add) }); err != nil {
			return err
		}
		values["send_queue_bytes"], values["receive_queue_bytes"] = float64(send), float64(receive)
	}
	if !t.ports.due(now) {
		return nil
	}
	if err := t.ports.do(now, func() error { return t.ports.count(ports) }); err != nil {
		return err
	}
	values["ports_in_use"] = float64(t.ports.used)
	return nil
}

// Limits on counting sockets.
const (
	countsEvery = time.Second // shortest time between two counts
	countsShare = 0.005       // of one core
)

// A rarely is work that costs a lot: it is done at most every countsEvery, and less often if it would cost more than countsShare of a
// core. Readings in between have no count.
type rarely struct{ next time.Time }

func (r *rarely) due(now time.Time) bool { return !now.Before(r.next) }

// do does the work, and waits with the next one for as long as this one costs.
func (r *rarely) do(now time.Time, work func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadCPU()
	err := work()
	r.next = now.Add(pauseAfter(threadCPU() - before))
	return err
}

// pauseAfter is the time between two counts if counting takes that much CPU time.
func pauseAfter(cost time.Duration) time.Duration {
	return max(countsEvery, time.Duration(float64(cost)/countsShare))
}

// portCounter counts the ephemeral ports in use: the distinct local ports of the range that some TCP socket of the
// namespace holds, in any state, including TIME_WAIT and LISTEN. Cheaper figures cannot replace the count:
//
//   - time_wait counts sockets of both ends. The end that closes first holds the TIME_WAIT. If the client closes first, its
//     ephemeral port is taken for a minute. If the server does, the socket has the server's port, and the client's port is
//     free at once.
//   - opens minus closes miss the ports that tcp_tw_reuse gave out again.
//
// The kernel selects the sockets by port. That costs it a walk through its table of connections and some time per selected socket.
//
// A port in use may still serve a connection to another address or port. Sockets that are bound and neither listen nor
// connect are not counted.
type portCounter struct {
	rarely
	client *netstat.Client
	seen   [1 << 16 / 64]uint64
	used   int
}

func (p *portCounter) count(ports netstat.PortRange) error {
	clear(p.seen[:])
	query := netstat.Query{States: netstat.AnyState, PortFirst: uint16(ports.First), PortLast: uint16(ports.Last)}
	err := p.client.Sockets(query, func(s *netstat.Socket) {
		port := s.Local.Port()
		p.seen[port/64] |= 1 << (port % 64)
	})
	p.used = 0
	for _, word := range p.seen {
		p.used += bits.OnesCount64(word)
	}
	return err
}
