package labtest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/result"
)

const agentToken = "0123456789abcdef"

// agentProcess is a running `spillway agent`.
type agentProcess struct {
	address string
	cmd     *exec.Cmd
	log     bytes.Buffer // after logged is done
	logged  sync.WaitGroup
}

// startAgent starts `spillway agent`, as an argument of the words of inside, and ends it with the test.
func startAgent(t *testing.T, inside []string, listen string, flags ...string) *agentProcess {
	t.Helper()
	words := append(append(inside, program.Path(t), "agent", "--listen", listen), flags...)
	a := &agentProcess{cmd: exec.Command(words[0], words[1:]...)}
	a.cmd.Env = append(os.Environ(), "SPILLWAY_AGENT_TOKEN="+agentToken)
	stderr, err := a.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	first, err := lines.ReadString('\n')
	_, rest, found := strings.Cut(first, "address=")
	if err != nil || !found {
		t.Fatalf("agent: %v: %s", err, first)
	}
	a.address, _, _ = strings.Cut(rest, " ")
	a.logged.Go(func() { io.Copy(&a.log, lines) })
	t.Cleanup(func() {
		a.cmd.Process.Signal(syscall.SIGTERM)
		a.logged.Wait()
		a.cmd.Wait()
	})
	return a
}

func addresses(agents []*agentProcess) string {
	var list []string
	for _, a := range agents {
		list = append(list, a.address)
	}
	return strings.Join(list, ",")
}

// TestLoadAgents makes a load with three agents. Then one of them is killed in a step, which names it and does not count it.
func TestLoadAgents(t *testing.T) {
	t.Parallel()
	url, seen := pages(t)
	var agents []*agentProcess
	for range 3 {
		agents = append(agents, startAgent(t, nil, "127.0.0.1:0"))
	}
	out := filepath.Join(t.TempDir(), "run")
	flags := []string{"load", url + "/ok", "--timeout", "1m", "--agents", addresses(agents), "-H", "Authorization: Bearer hush", "-o", out}
	stdout, stderr, code := spillway(t, append(flags, "--agents-token", agentToken, "--rate", "200,400", "-n", "300", "--arrival", "poisson", "--slo", "errors<50%")...)
	kept, err := result.ReadFile(out)
	judged := code == exit.OK || code == exit.NothingValid // on a busy machine
	if !judged || err != nil || len(kept.Steps) != 2 || kept.CutOff != "" || seen.Load() != 600 {
		t.Fatalf("exit %d, %v, %d requests\n%s%s", code, err, seen.Load(), stdout, stderr)
	}
	for i, hz := range []float64{200, 400} {
		if s := &kept.Steps[i]; s.OfferedHz != hz || s.Total.Done != 300 || len(s.Slices) == 0 || len(s.Total.SLO) != 1 {
			t.Errorf("step %d: %+v, %+v", i, s.Step, s.Total.Counters)
		}
	}
	for i, part := range kept.Header.Parts {
		if part.Agent != agents[i].address || part.ClockError <= 0 || part.Header.Machine.Cores == 0 {
			t.Errorf("part %+v", part)
		}
	}
	if _, stderr, code := spillway(t, append(flags, "--agents-token", "fedcba9876543210", "-n", "300")...); code != exit.Usage || !strings.Contains(stderr, "rejects the token") {
		t.Errorf("wrong token: exit %d\n%s", code, stderr)
	}

	before := seen.Load()
	p := command(t, append(flags, "--agents-token", agentToken, "--rate", "200,400", "-d", "1h")...)
	p.start(t)
	apptest.Await(t, "the agents make load", func() bool { return seen.Load() > before+300 })
	agents[1].cmd.Process.Kill()
	code = p.wait(t)
	stdout, stderr = p.stdout.String(), p.stderr.String()
	kept, err = result.ReadFile(out)
	if code != exit.Error || err != nil || len(kept.Steps) != 1 {
		t.Fatalf("a killed agent: exit %d, %v\n%s%s", code, err, stdout, stderr)
	}
	named := "agent " + agents[1].address + " stopped answering"
	total := &kept.Steps[0].Total
	isNamed := func(reason string) bool { return strings.HasPrefix(reason, named) } // after others on a machine with other work
	if total.Validity != result.GeneratorLimited || !slices.ContainsFunc(total.Sentences(), isNamed) || !strings.Contains(stdout, named) || kept.End.Reason != named {
		t.Errorf("%s %q, end %q\n%s", total.Validity, total.Reasons, kept.End.Reason, stdout)
	}
	if total.Done == 0 || total.Done >= seen.Load()-before {
		t.Errorf("%d answered without the share of the killed agent, %d with it", total.Done, seen.Load()-before)
	}
	agents[0].cmd.Process.Signal(syscall.SIGTERM)
	agents[0].logged.Wait()
	if log := agents[0].log.String(); strings.Contains(log, "hush") || strings.Contains(log, agentToken) || strings.Contains(log, "does not answer") || strings.Count(log, "run ended") != 2 {
		t.Errorf("log of an agent:\n%s", log)
	}
}

// TestLoadAgentNamespace makes a load with an agent in another network namespace. Only the agent's own --allow lets it load an
// address that is not private.
func TestLoadAgentNamespace(t *testing.T) {
	apptest.NeedRoot(t)
	t.Parallel()
	// Two addresses of a network that is reserved for benchmarks, others than in another run of the tests.
	prefix := fmt.Sprintf("198.18.%d.", os.Getpid()%256)
	low := os.Getpid() / 256 % 63 * 4
	here, there := fmt.Sprint(prefix, low+1), fmt.Sprint(prefix, low+2)
	ip := func(words ...string) {
		if output, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(words, " "), err, output)
		}
	}
	name := fmt.Sprintf("spillway-agent-%d", os.Getpid())
	wire := fmt.Sprintf("spa%d", os.Getpid()%1_000_000)
	ip("netns", "add", name)
	t.Cleanup(func() { ip("netns", "delete", name) }) // and the wire with it
	ip("link", "add", wire+"h", "type", "veth", "peer", "name", wire+"t", "netns", name)
	ip("address", "add", here+"/30", "dev", wire+"h")
	ip("link", "set", wire+"h", "up")
	ip("-n", name, "address", "add", there+"/30", "dev", wire+"t")
	ip("-n", name, "link", "set", wire+"t", "up")
	listener, err := net.Listen("tcp", here+":0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if host, _, _ := net.SplitHostPort(r.RemoteAddr); host != there {
			t.Errorf("a request came from %s", host)
		}
	})}}
	server.Start()
	defer server.Close()
	inside := []string{"ip", "netns", "exec", name}
	for _, c := range []struct {
		flags []string
		code  int
	}{{nil, exit.Usage}, {[]string{"--allow", here}, exit.OK}} {
		a := startAgent(t, inside, there+":0", c.flags...)
		stdout, stderr, code := spillway(t, "load", server.URL, "--agents", a.address, "--agents-token", agentToken, "-n", "200", "--allow", here)
		if code != c.code || c.code == exit.Usage && !strings.Contains(stderr, "add --allow "+here) {
			t.Errorf("%q: exit %d\n%s%s", c.flags, code, stdout, stderr)
		}
	}
}

func TestAgentMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"agent", "--listen", "0.0.0.0:0"}, "set a token"},
		{[]string{"agent", "--listen", "127.0.0.1:0", "--token", "short"}, "the token has 5 characters"},
		{[]string{"agent", "--tls-cert", "x"}, "give both"},
		{[]string{"agent", "--tls-cert", "/no/such", "--tls-key", "/no/such"}, "no such file"},
		{[]string{"load", "http://127.0.0.1:1/", "--agents", "127.0.0.1"}, "write HOST:PORT"},
		{[]string{"load", "http+unix://%2Frun%2Fx.sock/", "--agents", "127.0.0.1:1"}, "on the network only"},
	} {
		stdout, stderr, code := spillway(t, c.args...)
		if code != exit.Usage || !strings.Contains(stderr, c.want) || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", c.args, code, exit.Usage, c.want, stdout, stderr)
		}
	}
}
