package experiment

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"time"

	"github.com/prometheus/procfs"

	"spillway/internal/lab/watch"
	"spillway/internal/netstat"
)

// cooldownPoll is the interval at which sockets are counted during a cool-down.
const cooldownPoll = 250 * time.Millisecond

// sockets counts what earlier load left behind in the kernel.
type sockets struct {
	timeWait map[string]int // by host
	queued   int            // connections in accept queues, all hosts
}

// countSockets counts the sockets of every host.
func (e *engine) countSockets(ctx context.Context) (sockets, error) {
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
			queued, err := acceptQueues(ctx)
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
	task, err := netstat.CurrentTask(procfs.DefaultMountPoint)
	if err != nil {
		return 0, err
	}
	waiting, _, err := task.TimeWait()
	return waiting, err
}

// acceptQueues counts the connections in the accept queues of the thread's namespace.
func acceptQueues(ctx context.Context) (int, error) {
	listeners, err := watch.Listeners()
	if err != nil {
		return 0, err
	}
	defer listeners.Close()
	samples, err := listeners.Read(ctx)
	total := 0
	for _, sample := range samples {
		total += int(sample.Values["accept_queue"])
	}
	return total, err
}

// settled reports whether the sockets are back to the base.
func (c Cooldown) settled(now, base sockets) bool {
	for host, waiting := range now.timeWait {
		if waiting > base.timeWait[host]+c.TimeWait {
			return false
		}
	}
	return now.queued <= base.queued
}

// dropTimeWait makes the kernel drop the sockets in TIME_WAIT of the experiment's own hosts. There is no traffic between two
// levels, so no late segment can reach a new connection. If the kernel lacks CONFIG_INET_DIAG_DESTROY, or ss is missing,
// the sockets expire by themselves. Sockets of this host are left alone.
func (e *engine) dropTimeWait(ctx context.Context) {
	for _, host := range e.network.names {
		_ = inNamespace(e.network.namespace(host), func() error {
			return exec.CommandContext(ctx, "ss", "--kill", "--no-header", "--tcp", "state", "time-wait").Run()
		})
	}
}

// coolDown waits until the sockets of every host have settled, at most for the file's timeout.
func (e *engine) coolDown(ctx context.Context) (CooldownRun, error) {
	begin := time.Now()
	e.dropTimeWait(ctx)
	limit := time.After(e.file.Cooldown.Timeout)
	poll := time.Tick(cooldownPoll)
	for over := false; ; {
		now, err := e.countSockets(ctx)
		if err != nil {
			return CooldownRun{}, err
		}
		calm := e.file.Cooldown.settled(now, e.base)
		if calm || over {
			return CooldownRun{
				Seconds: time.Since(begin).Seconds(), Reached: calm, TimeWait: now.timeWait, Base: maps.Clone(e.base.timeWait), Queued: now.queued,
			}, nil
		}
		select {
		case <-ctx.Done():
			return CooldownRun{}, ctx.Err()
		case <-limit:
			over = true
		case <-poll:
		}
	}
}
