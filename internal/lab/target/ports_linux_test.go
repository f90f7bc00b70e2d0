package target

import (
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// TestNoLocalPort runs short connections in a network namespace with 1,000
// local ports, to a server that lets the client close first: each connection
// leaves its port in TIME_WAIT, and when all are used up the generator is to
// blame, not the server.
func TestNoLocalPort(t *testing.T) {
	apptest.NeedRoot(t)
	done := make(chan struct{})
	go func() { // its thread ends with it, and the namespace with the thread
		defer close(done)
		runtime.LockOSThread()
		if err := enterNamespace(); err != nil {
			t.Errorf("make a network namespace (needs iproute2): %v", err)
			return
		}
		usePortsUp(t)
	}()
	<-done
}

func enterNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 20999"), 0),
		os.WriteFile("/proc/sys/net/ipv4/tcp_tw_reuse", []byte("0"), 0),
	)
}

func usePortsUp(t *testing.T) {
	address := hostile(t, func(_ int, conn net.Conn) {
		answering(func(*http.Request) []byte { return []byte(okAnswer) })(0, conn)
	})
	const requests, ports = 1500, 1000
	outcomes, counters := drive(t, open(t, Config{URL: "http://" + address, PerConnection: 1}), 10, requests)
	var errs result.Errors
	for _, o := range outcomes {
		if o.Err != nil {
			errs[Classify(o.Err)]++
		}
	}
	// The listener may hold one of the ports.
	if n := errs[result.NoLocalPort]; n < requests-ports || n > requests-ports+1 || n != errs.Total() || n != errs.Own() {
		t.Errorf("errors: %s; want no_local_port %d", errs.String(), requests-ports)
	}
	if counters.Connects > ports {
		t.Errorf("%d connections from %d ports", counters.Connects, ports)
	}
}
