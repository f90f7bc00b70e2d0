package load

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/exit"
	"spillway/internal/lab/cores"
	"spillway/internal/lab/result"
)

// Sharing says how the load generator and the target share this machine. Without it, they share all of it.
type Sharing struct {
	Pin   bool   `group:"One machine" help:"Run the generator on cores of its own, and the target's processes (those that listen, and those of --watch) on the others, until the end. Needs the right to move them."`
	Awake bool   `group:"One machine" help:"Keep idle CPUs of this machine from sleeping until the end: for a virtual machine whose hypervisor takes CPU time (HOST_CONTENDED). Needs root."`
	Hosts string `hidden:"" env:"SPILLWAY_LOAD_HOSTS"` // of an experiment: JSON of []cores.Host; this process is already on its cores
}

// A Process is a process of the target with its descendants.
type Process interface {
	Members() ([]int, error)                         // their ids now
	CPUTime() (func() (time.Duration, error), error) // a function that reads what they have used so far
}

// awakeNote is in the header of a run with Awake.
const awakeNote = "Idle CPUs of the load generator's host were kept from sleeping (--awake)."

// take takes what Sharing says of this machine, and completes the header. The caller calls release at the end.
func (o *Options) take(config *Config, hooks Hooks, header *result.Header) (release func() error, err error) {
	restore, err := o.divide(config, hooks, header)
	if err != nil || !o.Awake {
		return restore, err
	}
	sleep, err := cores.KeepAwake()
	if err != nil {
		return nil, errors.Join(exit.UsageError(fmt.Errorf("load --awake: %w", err)), restore())
	}
	config.Awake = true
	header.Notes = append(header.Notes, awakeNote)
	return func() error { return errors.Join(sleep(), restore()) }, nil
}

// divide moves the generator and the target to cores of their own, or learns which they have, and has Run measure who uses
// them. The header describes the hosts. The caller calls release at the end.
func (o *Options) divide(config *Config, hooks Hooks, header *result.Header) (release func() error, err error) {
	release = func() error { return nil }
	var hosts []cores.Host
	switch {
	case o.Pin && o.Hosts != "":
		return nil, exit.UsageError(errors.New("load --pin: an experiment has divided the cores; remove --pin"))
	case o.Pin:
		hosts, release, err = o.pin(config, hooks)
	case o.Hosts != "":
		err = json.Unmarshal([]byte(o.Hosts), &hosts)
	default:
		return release, nil
	}
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("load: %w", err))
	}
	config.Workers = cmp.Or(config.Workers, min(runtime.GOMAXPROCS(0), workersMax))
	header.Machine.GOMAXPROCS = runtime.GOMAXPROCS(0)
	for _, h := range hosts {
		header.Hosts = append(header.Hosts, result.HostShare{Name: h.Name, CPUs: h.CPUs, Cores: h.Cores.String(), CoreCount: len(h.Cores)})
	}
	if config.Hosts, err = cores.NewMeter(hosts); err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// pin moves this process to as many cores as it has workers, and the target to the others.
func (o *Options) pin(config *Config, hooks Hooks) ([]cores.Host, func() error, error) {
	available, err := cores.Available()
	if err != nil {
		return nil, nil, fmt.Errorf("--pin: %w", err)
	}
	own, others, err := cores.Split(available, cmp.Or(o.Workers, DefaultWorkers()))
	if err != nil {
		return nil, nil, fmt.Errorf("--pin: %w", err)
	}
	found, err := o.targetProcesses(config, hooks.Find)
	if err != nil {
		return nil, nil, fmt.Errorf("--pin: %w", err)
	}
	used, err := cpuTime(found)
	if err != nil {
		return nil, nil, fmt.Errorf("--pin: %w", err)
	}
	pin, err := cores.Start(hooks.Keeper, own, others, func() ([]int, error) { return membersOf(found) })
	if err != nil {
		return nil, nil, err
	}
	return []cores.Host{
		{
			Name: "generator", CPUs: float64(len(own)), Cores: own,
			Used: func() (time.Duration, error) { return readUsage(unix.RUSAGE_SELF).cpu(), nil },
		},
		{Name: "target", CPUs: float64(len(others)), Cores: others, Used: used},
	}, pin.Release, nil
}

// targetProcesses returns the processes of the target on this machine: those that listen, and those that the user watches.
func (o *Options) targetProcesses(config *Config, find func(spec string) (Process, error)) ([]Process, error) {
	var found []Process
	network, address := config.Target.Address()
	spec := "unix:" + address
	if network == "tcp" {
		spec = address
	}
	if network == "unix" || onThisMachine(address) {
		t, err := find("target=" + spec)
		if err == nil {
			_, err = t.Members()
		}
		if err != nil {
			return nil, err
		}
		found = append(found, t)
	}
	for _, text := range o.Watched {
		t, err := find(text)
		if err != nil {
			return nil, err
		}
		found = append(found, t)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no process of this machine listens on %s; remove --pin, or name the target's processes with --watch", address)
	}
	return found, nil
}

// onThisMachine reports whether "address:port" is an address of this network namespace.
func onThisMachine(address string) bool {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	if at.Addr().IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == at.Addr()
	})
}

func membersOf(targets []Process) (pids []int, err error) {
	for _, t := range targets {
		members, err := t.Members()
		if err != nil {
			return nil, err
		}
		pids = append(pids, members...)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// cpuTime returns a function that reads the CPU time of the targets. A target whose processes belong to others counts once.
func cpuTime(targets []Process) (func() (time.Duration, error), error) {
	members := make([][]int, len(targets))
	for i, t := range targets {
		var err error
		if members[i], err = t.Members(); err != nil {
			return nil, err
		}
	}
	var read []func() (time.Duration, error)
	for i, t := range targets {
		counted := false
		for k := range targets {
			if k != i && (len(members[k]) > len(members[i]) || k < i) && slices.Contains(members[k], members[i][0]) {
				counted = true
			}
		}
		if counted {
			continue
		}
		one, err := t.CPUTime()
		if err != nil {
			return nil, err
		}
		read = append(read, one)
	}
	return func() (sum time.Duration, err error) {
		for _, one := range read {
			used, err := one()
			if err != nil {
				return 0, err
			}
			sum += used
		}
		return sum, nil
	}, nil
}

// hostReading is what the hosts of this machine used in the step.
type hostReading struct {
	shares []result.HostShare
	err    error
}

// meterHosts measures from the end of the warm-up to the end of the step, or until stop is called.
func (s *stepRun) meterHosts() (stop func()) {
	meter := s.config.Hosts
	if meter == nil {
		return func() {}
	}
	over := make(chan struct{})
	var metering sync.WaitGroup
	wait := func(until int64) {
		every := time.Tick(time.Second)
		left := time.After(time.Duration(until - s.config.Clock.Now()))
		for {
			select {
			case <-every:
				meter.Sample()
			case <-left:
				return
			case <-over:
				return
			}
		}
	}
	metering.Go(func() {
		wait(s.phase.from)
		from, err := meter.Read()
		wait(s.phase.until)
		to, errTo := meter.Read()
		if s.hosts.err = errors.Join(err, errTo); s.hosts.err == nil {
			s.hosts.shares = meter.Between(from, to)
		}
	})
	return func() {
		close(over)
		metering.Wait()
	}
}
