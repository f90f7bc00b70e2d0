package watch

import (
	"fmt"
	"math"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
	"spillway/internal/netstat"
)

// newTCP returns the sampler of the namespace of the calling thread.
func newTCP(tb testing.TB) *Sampler {
	tb.Helper()
	s, err := TCP()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// difference returns the increase of counters between two readings, and the other values of the second.
func difference(before, after map[string]float64) map[string]float64 {
	values := map[string]float64{}
	for name, value := range after {
		values[name] = value
		if result.Counter(name) {
			values[name] -= before[name]
		}
	}
	return values
}

// expectAll fails unless the values are within 5 % of the truth, or one count.
func expectAll(tb testing.TB, values, truth map[string]float64) {
	tb.Helper()
	for name, want := range truth {
		expect(tb, values, name, want)
	}
}

// TestTimeWaitOfClients makes connections that the client closes first. Each leaves a socket in TIME_WAIT with an ephemeral port.
func TestTimeWaitOfClients(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	server := listen(t, 8080, 128)
	sampler := newTCP(t)
	before := readOne(t, sampler)
	server.closed(2000, true)
	var open []int
	for range 100 {
		client, accepted := server.pair()
		open = append(open, client, accepted)
	}
	defer closeFDs(open)

	sampler = newTCP(t) // whose first reading counts the ports
	expectAll(t, difference(before, readOne(t, sampler)), map[string]float64{
		"time_wait":    2000,
		"ports_in_use": 2100, "ports_range": 10000,
		"active_opens_total": 2100, "passive_opens_total": 2100, "attempt_fails_total": 0,
		"established": 200, "retransmits_total": 0, "listen_drops_total": 0,
	})
}

// TestTimeWaitOfServers makes connections that the server closes first. They leave TIME_WAIT, but take no ephemeral port.
func TestTimeWaitOfServers(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	server := listen(t, 8080, 128)
	server.bound = 10000 // a port used again would take over its connection's TIME_WAIT
	server.closed(2000, false)
	expectAll(t, readOne(t, newTCP(t)), map[string]float64{
		"time_wait": 2000, "ports_in_use": 0, "active_opens_total": 2000,
	})
}

// TestPortsUsedUp uses up a range with reserved ports. The next connection fails.
func TestPortsUsedUp(t *testing.T) {
	enterNamespace(t, 20000, 20999)
	setNet(t, "ip_local_reserved_ports", "8081,20100-20199,20998-21100")
	server := listen(t, 8080, 128)
	const ports = 1000 - 100 - 2
	server.closed(ports, true)
	expectAll(t, readOne(t, newTCP(t)), map[string]float64{"ports_range": ports, "ports_in_use": ports, "time_wait": ports})
	fd := socket(t, 0)
	defer unix.Close(fd)
	err := unix.Connect(fd, &unix.SockaddrInet4{Port: server.port, Addr: [4]byte{127, 0, 0, 1}})
	if err != unix.EADDRNOTAVAIL {
		t.Errorf("one more connection: %v, want %v", err, unix.EADDRNOTAVAIL)
	}
}

// TestPortsShared holds one ephemeral port with a listener and the connections that it accepted. The port counts once.
func TestPortsShared(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	server := listen(t, 25000, 128)
	var open []int
	for range 50 {
		client, accepted := server.pair()
		open = append(open, client, accepted)
	}
	defer closeFDs(open)
	expectAll(t, readOne(t, newTCP(t)), map[string]float64{"ports_in_use": 51, "established": 100})
}

// TestTimeWaitOverflow limits TIME_WAIT to fewer sockets than are closed.
func TestTimeWaitOverflow(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	setNet(t, "tcp_max_tw_buckets", "100")
	server := listen(t, 8080, 128)
	server.closed(300, true)
	expectAll(t, readOne(t, newTCP(t)), map[string]float64{"time_wait": 100})
}

// TestNamespaceStays reads a sampler from a thread in another namespace than the one that made it.
func TestNamespaceStays(t *testing.T) {
	enterNamespace(t, 20000, 20999)
	server := listen(t, 8080, 128)
	server.closed(10, true)
	sampler, listeners := newTCP(t), newListeners(t)
	values := make(chan map[string]float64)
	go func() { values <- readOne(t, sampler) }()
	expectAll(t, <-values, map[string]float64{"time_wait": 10, "ports_in_use": 10, "ports_range": 1000})
	go func() { values <- readOne(t, listeners) }()
	expectAll(t, <-values, map[string]float64{"accept_queue_limit": 128})
}

func TestPortsPause(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		0: time.Second, 4 * time.Millisecond: time.Second,
		5 * time.Millisecond: time.Second, 30 * time.Millisecond: 6 * time.Second,
	} {
		if got := pauseAfter(cost); got != want {
			t.Errorf("after a count of %v the next is due in %v, want %v", cost, got, want)
		}
	}
	var p rarely
	now := time.Unix(1000, 0)
	p.next = now.Add(time.Second)
	if p.due(now) || !p.due(now.Add(time.Second)) {
		t.Error("due before its time or not at it")
	}
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func BenchmarkTCP(b *testing.B) {
	for _, sockets := range []int{0, 20_000} {
		b.Run(benchName(sockets, "TIME_WAIT"), func(b *testing.B) {
			enterNamespace(b, 1024, 65535)
			server := listen(b, 999, 1024)
			server.closed(sockets, true)
			sampler := newTCP(b)
			readOne(b, sampler)
			benchmarkRead(b, sampler)
		})
	}
}

// BenchmarkPorts counts the ports alone.
func BenchmarkPorts(b *testing.B) {
	for _, sockets := range []int{0, 20_000} {
		for _, mode := range []string{"client first", "server first"} {
			b.Run(benchName(sockets, mode), func(b *testing.B) {
				enterNamespace(b, 1024, 65535)
				server := listen(b, 999, 1024)
				server.closed(sockets, mode == "client first")
				var p portCounter
				var err error
				if p.client, err = netstat.Open(); err != nil {
					b.Fatal(err)
				}
				defer p.client.Close()
				before := threadCPU()
				for b.Loop() {
					if err := p.count(netstat.PortRange{First: 1024, Last: 65535}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((threadCPU()-before).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// TestSocketQueues sends bytes that nobody reads. They wait at the receiver, and those that do not fit there at the sender.
func TestSocketQueues(t *testing.T) {
	enterNamespace(t, 20000, 29999)
	server := listen(t, 8080, 128)
	client, accepted := server.pair()
	defer closeFDs([]int{client, accepted})
	if err := unix.SetNonblock(client, true); err != nil {
		t.Fatal(err)
	}
	sent, part := 0, make([]byte, 1<<16)
	for {
		n, err := unix.Write(client, part)
		if err != nil {
			break
		}
		sent += n
	}
	sampler := newTCP(t)
	// Until the receiver has acknowledged a byte that it has, both queues count it.
	apptest.AwaitState(t, fmt.Sprintf("%d bytes are in both queues together, within 5 %%", sent), func() (string, bool) {
		values := readOne(t, sampler)
		sends, receives := values["send_queue_bytes"], values["receive_queue_bytes"]
		off := math.Abs(sends + receives - float64(sent))
		return fmt.Sprintf("%g and %g", sends, receives), sends > 0 && receives > 0 && off <= float64(sent)/20
	})
}
