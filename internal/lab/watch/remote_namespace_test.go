package watch

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/result"
)

// The addresses of this host and of the namespace, in a network reserved for benchmarks.
const (
	namespaceHere  = "198.18.91.1"
	namespaceThere = "198.18.91.2"
)

// namespaceChild is set in the environment of the process that serves in the namespace.
const namespaceChild = "SPILLWAY_TEST_NAMESPACE_CHILD"

// ipCommand runs ip(8).
func ipCommand(t testing.TB, args ...string) {
	t.Helper()
	if output, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, output)
	}
}

// newNamespace creates a network namespace that is connected to this one, until the test ends.
func newNamespace(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes a network namespace, which only root may: run it as root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Fatal("ip is not installed: apt-get install iproute2")
	}
	name := fmt.Sprintf("spillway-%d", os.Getpid())
	here, there := fmt.Sprintf("spw%dh", os.Getpid()%100_000), fmt.Sprintf("spw%dt", os.Getpid()%100_000)
	ipCommand(t, "netns", "add", name)
	t.Cleanup(func() { ipCommand(t, "netns", "delete", name) }) // and the wire with it
	ipCommand(t, "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
	ipCommand(t, "address", "add", namespaceHere+"/30", "dev", here)
	ipCommand(t, "link", "set", here, "up")
	ipCommand(t, "-n", name, "address", "add", namespaceThere+"/30", "dev", there)
	ipCommand(t, "-n", name, "link", "set", there, "up")
	ipCommand(t, "-n", name, "link", "set", "lo", "up")
	return name
}

// TestRemoteNamespace joins a watch of another process in another network namespace. Its figures are those of that network.
func TestRemoteNamespace(t *testing.T) {
	if os.Getenv(namespaceChild) != "" {
		serveInNamespace(t)
		return
	}
	name := newNamespace(t)
	child := exec.Command("ip", "netns", "exec", name, os.Args[0], "-test.run=^TestRemoteNamespace$", "-test.v")
	child.Env = append(os.Environ(), namespaceChild+"=1")
	child.Stderr = os.Stderr
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		input.Close() // which ends it
		if err := child.Wait(); err != nil {
			t.Errorf("the watch in the namespace: %v", err)
		}
	}()
	url := awaitURL(t, bufio.NewScanner(output))
	start := time.Now()
	r, err := Remote(t.Context(), url, serveToken, start)
	if err != nil {
		t.Fatal(err)
	}
	run := runRemote(t, r)
	defer run.stop()
	w := r.Watch()
	s := run.await(t, "a sample", func(s result.Sample) bool { return s.Subject == "interfaces" })
	if s.Host != strings.TrimPrefix(url, "http://") || w.Host != s.Host || s.Values["interfaces"] != 2 {
		t.Errorf("%+v, want lo and one end of the wire, and no more", s)
	}
	t.Logf("%s: %+v; its clock is %.6f s ahead, give or take %.6f", w.Host, s, w.ClockOffset, w.ClockError)
	if w.ClockError <= 0 || w.ClockOffset > w.ClockError || w.ClockOffset < -w.ClockError {
		t.Errorf("the clock, which is one, is %g ± %g s ahead", w.ClockOffset, w.ClockError)
	}
}

// awaitURL reads the line that the child prints once it listens.
func awaitURL(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	for lines.Scan() {
		if _, url, found := strings.Cut(lines.Text(), "listens at "); found {
			return url
		}
	}
	t.Fatal("the watch in the namespace ended before it listened")
	return ""
}

// serveInNamespace is the other process. It serves until its input closes.
func serveInNamespace(t *testing.T) {
	w := New(time.Now(), &Sampler{Kind: result.SamplerTCP, Subject: "interfaces", Every: FastEvery, Read: func(context.Context) ([]result.Sample, error) {
		table, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return nil, err
		}
		return []result.Sample{{Values: map[string]float64{"interfaces": float64(bytes.Count(table, []byte(":")))}}}, nil
	}})
	listener := listenWatch(t, net.JoinHostPort(namespaceThere, "0"), serveToken)
	serveWatch(t, listener, ServeConfig{Watcher: w, Token: serveToken})
	fmt.Printf("listens at http://%s\n", listener.Addr())
	bufio.NewScanner(os.Stdin).Scan()
}
