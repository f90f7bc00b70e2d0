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

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// namespaceAddresses returns addresses for this host and for the namespace of this process, in a network reserved for
// benchmarks.
func namespaceAddresses() (here, there string) {
	n := os.Getpid() % (1 << 14) << 2 // networks of four addresses
	return fmt.Sprintf("198.18.%d.%d", n>>8, n&255+1), fmt.Sprintf("198.18.%d.%d", n>>8, n&255+2)
}

// namespaceChild is the environment variable of the process that serves in the namespace, with its address.
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
	apptest.NeedRoot(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Fatal("ip is not installed: apt-get install iproute2")
	}
	name := fmt.Sprintf("spillway-%d", os.Getpid())
	addressHere, addressThere := namespaceAddresses()
	here, there := fmt.Sprintf("spw%dh", os.Getpid()%100_000), fmt.Sprintf("spw%dt", os.Getpid()%100_000)
	ipCommand(t, "netns", "add", name)
	t.Cleanup(func() { ipCommand(t, "netns", "delete", name) }) // and the wire with it
	ipCommand(t, "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
	ipCommand(t, "address", "add", addressHere+"/30", "dev", here)
	ipCommand(t, "link", "set", here, "up")
	ipCommand(t, "-n", name, "address", "add", addressThere+"/30", "dev", there)
	ipCommand(t, "-n", name, "link", "set", there, "up")
	ipCommand(t, "-n", name, "link", "set", "lo", "up")
	return name
}

// TestRemoteNamespace joins a watch of another process in another network namespace. Its figures are those of that network.
func TestRemoteNamespace(t *testing.T) {
	if address := os.Getenv(namespaceChild); address != "" {
		serveInNamespace(t, address)
		return
	}
	name := newNamespace(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	links, err := exec.Command("ip", "-n", name, "-oneline", "link").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, address := namespaceAddresses()
	child := exec.Command("ip", "netns", "exec", name, program, "-test.run=^TestRemoteNamespace$", "-test.v")
	child.Env = append(os.Environ(), namespaceChild+"="+address)
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
	if s.Host != strings.TrimPrefix(url, "http://") || w.Host != s.Host || s.Values["interfaces"] != float64(bytes.Count(links, []byte("\n"))) {
		t.Errorf("%+v, want the interfaces of the namespace, and no more:\n%s", s, links)
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
func serveInNamespace(t *testing.T, address string) {
	w := New(time.Now(), &Sampler{Kind: result.SamplerTCP, Subject: "interfaces", Every: FastEvery, Read: func(context.Context) ([]result.Sample, error) {
		table, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return nil, err
		}
		return []result.Sample{{Values: map[string]float64{"interfaces": float64(bytes.Count(table, []byte(":")))}}}, nil
	}})
	listener := listenWatch(t, net.JoinHostPort(address, "0"), serveToken)
	serveWatch(t, listener, ServeConfig{Watcher: w, Token: serveToken})
	fmt.Printf("listens at http://%s\n", listener.Addr())
	bufio.NewScanner(os.Stdin).Scan()
}
