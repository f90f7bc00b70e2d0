package experiment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os/exec"
	"slices"
	"time"

	"github.com/prometheus/procfs"
)

// cooldownPoll is the time between two looks at a host's sockets.
const cooldownPoll = 250 * time.Millisecond

// sockets is what a host still has to digest.
type sockets struct {
	timeWait map[string]int // by host
	queued   int            // connections in accept queues, all hosts
}

// countSockets looks at every host.
func (e *engine) countSockets() (sockets, error) {
	hosts := e.network.names
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	s := sockets{timeWait: map[string]int{}}
	for _, host := range hosts {
		err := inNamespace(e.network.namespace(host), func() error {
			waiting, err := timeWait()
			if err != nil {
				return err
			}
			s.timeWait[host] = waiting
			queued, err := acceptQueues()
			s.queued += queued
			return err
		})
		if err != nil {
			return s, fmt.Errorf("count sockets: %w", err)
		}
	}
	return s, nil
}

// timeWait reads how many sockets of the thread's namespace are in TIME_WAIT.
func timeWait() (int, error) {
	proc, err := procfs.NewFS("/proc/thread-self")
	if err != nil {
		return 0, err
	}
	stat, err := proc.NetSockstat()
	if err != nil {
		return 0, err
	}
	for _, protocol := range stat.Protocols {
		if protocol.Protocol == "TCP" && protocol.TW != nil {
			return *protocol.TW, nil
		}
	}
	return 0, nil
}

// acceptQueues adds up the connections that listening sockets of the thread's namespace have not accepted.
func acceptQueues() (int, error) {
	const listen = 10 // TCP_LISTEN
	proc, err := procfs.NewFS("/proc/thread-self")
	if err != nil {
		return 0, err
	}
	sockets, err := proc.NetTCP()
	if err != nil {
		return 0, err
	}
	sockets6, err := proc.NetTCP6()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no IPv6
		return 0, err
	}
	total := 0
	for _, socket := range slices.Concat(sockets, sockets6) {
		if socket.St == listen {
			total += int(socket.RxQueue) // of a listening socket: its accept queue
		}
	}
	return total, nil
}

// calm says whether sockets are back to the base.
func (c Cooldown) calm(now, base sockets) bool {
	for host, waiting := range now.timeWait {
		if waiting > base.timeWait[host]+c.TimeWait {
			return false
		}
	}
	return now.queued <= base.queued
}

// forget has the kernel drop the sockets in TIME_WAIT of the experiment's own hosts: nothing speaks there between two
// levels, so no late segment can meet a new connection, and a level need not wait a minute for the ports of the one
// before. Where the kernel cannot (CONFIG_INET_DIAG_DESTROY), or ss is missing, they end by themselves. This host's
// own sockets are never touched.
func (e *engine) forget(ctx context.Context) {
	for _, host := range e.network.names {
		_ = inNamespace(e.network.namespace(host), func() error {
			return exec.CommandContext(ctx, "ss", "--kill", "--no-header", "--tcp", "state", "time-wait").Run()
		})
	}
}

// cool waits until every host is calm, or the file's limit.
func (e *engine) cool(ctx context.Context) (CooldownRun, error) {
	begin := time.Now()
	e.forget(ctx)
	limit := time.NewTimer(e.file.Cooldown.Timeout)
	defer limit.Stop()
	poll := time.NewTicker(cooldownPoll)
	defer poll.Stop()
	for over := false; ; {
		now, err := e.countSockets()
		if err != nil {
			return CooldownRun{}, err
		}
		calm := e.file.Cooldown.calm(now, e.base)
		if calm || over {
			return CooldownRun{
				Seconds: time.Since(begin).Seconds(), Reached: calm, TimeWait: now.timeWait, Base: maps.Clone(e.base.timeWait), Queued: now.queued,
			}, nil
		}
		select {
		case <-ctx.Done():
			return CooldownRun{}, ctx.Err()
		case <-limit.C:
			over = true
		case <-poll.C:
		}
	}
}
