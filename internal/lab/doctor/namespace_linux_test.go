package doctor

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

// drill is a load of short connections in a separate network namespace.
type drill struct {
	name     string
	reuse    string
	delay    string // tcp_tw_reuse_delay in milliseconds; "" leaves the kernel's
	buckets  string // "" leaves the kernel's
	workload string
	address  [4]byte
	sources  [][4]byte // more than one: connections are bound to them in turn
	targets  int       // listeners
	runsOut  bool
	timely   bool // connections that come late find ports that are free again
}

// The kernel runs out of 200 local ports when Predict says so.
func TestPredictionAgainstKernel(t *testing.T) {
	apptest.NeedRoot(t)
	lo, far := [4]byte{127, 0, 0, 1}, [4]byte{10, 99, 0, 1}
	const slow = "rate=80 service=1ms"
	fast := drill{name: "reuse, too fast", reuse: "1", delay: "3000", workload: slow + " loopback", address: lo, runsOut: true, timely: true}
	if _, err := os.Stat("/proc/sys/net/ipv4/tcp_tw_reuse_delay"); err != nil { // Linux before 6.14
		fast.delay, fast.workload = "", "rate=400 service=1ms loopback"
	}
	var running sync.WaitGroup
	for _, d := range []drill{
		{name: "client closes", reuse: "0", workload: slow + " loopback", address: lo, runsOut: true},
		{name: "server closes", reuse: "0", workload: slow + " closes=server loopback", address: lo},
		{name: "reuse", reuse: "1", workload: slow + " loopback", address: lo},
		fast,
		{name: "reuse 2 on loopback", reuse: "2", workload: slow + " loopback", address: lo},
		{name: "reuse 2 elsewhere", reuse: "2", workload: slow + " remote", address: far, runsOut: true},
		{name: "reuse 1 elsewhere", reuse: "1", workload: slow + " remote", address: far},
		{name: "two source addresses", reuse: "0", workload: slow + " addresses=2 loopback", address: lo, sources: [][4]byte{{127, 0, 0, 2}, {127, 0, 0, 3}}, runsOut: true},
		{name: "two targets", reuse: "0", workload: slow + " targets=2 loopback", address: lo, targets: 2, runsOut: true},
		{name: "few buckets", reuse: "0", buckets: "120", workload: slow + " loopback", address: lo},
	} {
		running.Go(func() {
			// The thread ends with its goroutine, and the namespace with the thread.
			runtime.LockOSThread()
			if err := d.run(t); err != nil {
				t.Errorf("%s: %v", d.name, err)
			}
		})
	}
	running.Wait()
}

func (d drill) run(t *testing.T) error {
	if err := d.enter(); err != nil {
		return fmt.Errorf("make a network namespace (needs iproute2): %w", err)
	}
	facts, err := ReadFacts("/")
	if err != nil {
		return err
	}
	w, err := ParseWorkload(d.workload, false)
	if err != nil {
		return err
	}
	p := Predict(facts, w)
	limit := 2 * float64(p.LocalPorts) / p.NewConnectionsHz // well past the first failure
	got, late, err := d.load(w, limit)
	if err != nil {
		return err
	}
	switch {
	case d.timely && late > 0.1*limit:
		t.Logf("%s: no verdict: the machine opened the connections %.2f s late", d.name, late)
	case p.PortsRunOut != d.runsOut:
		return fmt.Errorf("predicted to run out: %t, want %t", p.PortsRunOut, d.runsOut)
	case !d.runsOut && !math.IsInf(got, 1):
		return fmt.Errorf("ran out after %.2f s, predicted never", got)
	case d.runsOut && math.Abs(got-*p.RunOutSeconds) > 0.2**p.RunOutSeconds:
		return fmt.Errorf("ran out after %.2f s, predicted %.2f s", got, *p.RunOutSeconds)
	case d.runsOut:
		t.Logf("%s: ran out after %.2f s, predicted %.2f s", d.name, got, *p.RunOutSeconds)
	default:
		t.Logf("%s: never ran out in %.2f s, as predicted", d.name, limit)
	}
	return nil
}

// enter moves the thread to a namespace with 200 local ports.
func (d drill) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", "10.99.0.1/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	settings := map[string]string{"ip_local_port_range": "20000 20199", "tcp_tw_reuse": d.reuse}
	if d.delay != "" {
		settings["tcp_tw_reuse_delay"] = d.delay
	}
	if d.buckets != "" {
		settings["tcp_max_tw_buckets"] = d.buckets
	}
	for name, value := range settings {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// load opens connections at the workload's rate until one finds no local port, and returns
// the second at which that one was due, or infinity, and how many seconds behind it was. It does not catch up: too many
// connections at a time would use the ports up sooner.
func (d drill) load(w *Workload, limit float64) (due, late float64, err error) {
	var servers sync.WaitGroup
	defer servers.Wait()
	var listeners []int
	defer func() {
		for _, fd := range listeners {
			unix.Shutdown(fd, unix.SHUT_RDWR) // wakes accept
			unix.Close(fd)
		}
	}()
	for i := range max(1, d.targets) {
		fd, err := listen(d.address, 8000+i)
		if err != nil {
			return 0, 0, err
		}
		listeners = append(listeners, fd)
		servers.Go(func() { serve(fd, w.Closes == ServerSide) })
	}
	const behindMax = 0.05
	start := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; {
		elapsed := time.Since(start).Seconds()
		if behind := elapsed - float64(n)/w.Rate; behind > behindMax {
			start = start.Add(time.Duration((behind - behindMax) * float64(time.Second)))
			late += behind - behindMax
			elapsed = time.Since(start).Seconds()
		}
		for ; float64(n) < min(elapsed, limit)*w.Rate; n++ {
			err := d.connect(n, w.Closes == ServerSide)
			due := float64(n) / w.Rate
			if errors.Is(err, unix.EADDRNOTAVAIL) {
				return due, late + time.Since(start).Seconds() - due, nil
			}
			if err != nil {
				return 0, 0, err
			}
		}
		if elapsed > limit {
			return math.Inf(1), late + time.Since(start).Seconds() - limit, nil
		}
		<-tick.C
	}
}

// connect opens the n-th connection and closes it, after the server if that one
// closes first.
func (d drill) connect(n int, serverFirst bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if len(d.sources) > 0 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: d.sources[n%len(d.sources)]}); err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: d.address, Port: 8000 + n%max(1, d.targets)}); err != nil {
		return err
	}
	if serverFirst {
		_, err = unix.Read(fd, make([]byte, 1))
	}
	return err
}

func listen(address [4]byte, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: address, Port: port}); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, unix.Listen(fd, 1024)
}

// serve accepts until the listener is shut down. It closes at once, or waits
// for the client to close first.
func serve(listener int, closesFirst bool) {
	for {
		fd, _, err := unix.Accept(listener)
		if err != nil {
			return
		}
		if !closesFirst {
			_, _ = unix.Read(fd, make([]byte, 1))
		}
		unix.Close(fd)
	}
}

// ReadListener finds a listener of this process, its queue and the limits of this
// process.
func TestReadListener(t *testing.T) {
	fd, err := listen([4]byte{127, 0, 0, 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Listen(fd, 7); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := address.(*unix.SockaddrInet4).Port
	for range 3 {
		conn, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	facts, err := ReadFacts("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := ReadListener(facts, port); err != nil {
		t.Fatal(err)
	}
	if l := facts.Listener; l == nil || *l != (Listener{Port: port, Backlog: 7, Queued: 3}) {
		t.Errorf("listener %+v", facts.Listener)
	}
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(name)) + " (pid " + strconv.Itoa(os.Getpid()) + ")"; facts.FilesOf != want {
		t.Errorf("limits of %s, want those of %s", facts.FilesOf, want)
	}
}
