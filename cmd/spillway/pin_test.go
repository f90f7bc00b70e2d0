package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"spillway/internal/exit"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// pinTarget is an nginx with two workers, on a TCP port and a Unix socket, that may use every core.
type pinTarget struct {
	address, socket string
	cmd             *exec.Cmd
}

func startPinTarget(t *testing.T) *pinTarget {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Fatal("pinning needs two cores: run this test on a machine that has them")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir, address := t.TempDir(), l.Addr().String()
	l.Close()
	p := &pinTarget{address: address, socket: filepath.Join(dir, "sock")}
	config := strings.NewReplacer("{{.folder}}", dir, "{{.addr.http}}", address+"; listen unix:"+p.socket, "{{.setting.body}}", "a").Replace(tinyNginx)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command("nginx", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr")
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%v: apt-get install nginx", err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
	})
	eventually(t, "nginx has two workers", func() bool { return len(p.processes()) == 3 })
	return p
}

// processes are the master and its workers.
func (p *pinTarget) processes() []int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.cmd.Process.Pid))
	pids := []int{p.cmd.Process.Pid}
	for field := range strings.FieldsSeq(string(text)) {
		pid, _ := strconv.Atoi(field)
		pids = append(pids, pid)
	}
	return pids
}

// cores returns the numbers of cores that the processes may use, each once.
func (p *pinTarget) cores() []int {
	var counts []int
	for _, pid := range p.processes() {
		var set unix.CPUSet
		if unix.SchedGetaffinity(pid, &set) == nil {
			counts = append(counts, set.Count())
		}
	}
	slices.Sort(counts)
	return slices.Compact(counts)
}

// pinnedLoad starts a load and waits until the target is pinned.
func (p *pinTarget) pinnedLoad(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	load := exec.Command(shared.binary, append([]string{"load", "--pin", "--workers", "1", "-c", "2", "-d", "1m"}, args...)...)
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = load.Process.Kill()
		_ = load.Wait()
	})
	want := []int{runtime.NumCPU() - 1}
	eventually(t, "the target is pinned", func() bool { return slices.Equal(p.cores(), want) })
	return load
}

// TestPinRestores ends a pinned load in several ways, and wants the target to use all cores again, with a worker that nginx started
// meanwhile.
func TestPinRestores(t *testing.T) {
	p := startPinTarget(t)
	all := []int{runtime.NumCPU()}
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGKILL} {
		load := p.pinnedLoad(t, "http://"+p.address+"/")
		before := p.processes()
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil { // replaces the workers
			t.Fatal(err)
		}
		eventually(t, "nginx has new workers", func() bool {
			now := p.processes()
			return len(now) == 3 && now[1] != before[1] && now[2] != before[2]
		})
		if slices.Equal(p.cores(), all) {
			t.Errorf("new workers may use every core")
		}
		if err := load.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = load.Wait()
		eventually(t, fmt.Sprintf("the target uses all cores again after %v", signal), func() bool { return slices.Equal(p.cores(), all) })
	}
}

// occupy keeps a core busy until free is called or the test ends.
func occupy(t *testing.T, core int) (free func()) {
	t.Helper()
	loop := exec.Command("sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	free = sync.OnceFunc(func() {
		_ = loop.Process.Kill()
		_ = loop.Wait()
	})
	t.Cleanup(free)
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(loop.Process.Pid, &set); err != nil {
		t.Fatal(err)
	}
	return free
}

// TestPinJudges measures through a Unix socket while a loop keeps a core busy: first that of the target, then that of the generator.
func TestPinJudges(t *testing.T) {
	p := startPinTarget(t)
	for _, host := range []int{1, 0} { // target, generator
		free := occupy(t, []int{runtime.NumCPU() - 1, 0}[host])
		stdout, stderr, code := spillway(t, "load", "--socket", p.socket, "http://nginx/", "--pin", "--workers", "1", "--rate", "300", "-d", "2s", "--json")
		free()
		var d report.Document
		if err := json.Unmarshal([]byte(stdout), &d); err != nil || code != 0 {
			t.Fatalf("exit %d: %v\n%s%s", code, err, stdout, stderr)
		}
		step := &d.Steps[0]
		if step.Validity != result.HostContended || !strings.Contains(step.Reasons[0], "programs that belong to no host used") {
			t.Errorf("%s: %q", step.Validity, step.Reasons)
		}
		names := []string{step.Hosts[0].Name, step.Hosts[1].Name}
		if !slices.Equal(names, []string{"generator", "target"}) || len(d.Header.Hosts) != 2 || d.Header.Machine.GOMAXPROCS != 1 {
			t.Errorf("hosts: %+v, GOMAXPROCS %d", d.Header.Hosts, d.Header.Machine.GOMAXPROCS)
		}
		if step.Hosts[host].Foreign < 0.05*step.Hosts[host].Elapsed || step.Hosts[1].Used == 0 || step.Hosts[0].Used == 0 {
			t.Errorf("the loop is on the core of %s: %+v", names[host], step.Hosts)
		}
	}
}

func TestPinRefusals(t *testing.T) {
	p := startPinTarget(t)
	url, file := "http://"+p.address+"/", filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		prefix     []string
		args       []string
	}{
		{"one core", "needs two cores", []string{"taskset", "-c", "0"}, []string{url}},
		{"no core left", "leaves no core to the target", nil, []string{url, "--workers", strconv.Itoa(runtime.NumCPU())}},
		{"no process", "an SQLite file has no process", nil, []string{"sqlite:" + file, "--sql", "SELECT 1"}},
		{"another user's", "run as that user or as root", []string{"setpriv", "--reuid=65534", "--clear-groups", "--"}, []string{url}},
	} {
		command := slices.Concat(c.prefix, []string{shared.binary, "load", "--pin", "-n", "10"}, c.args)
		if c.name == "another user's" && os.Geteuid() != 0 {
			command, c.want = []string{shared.binary, "load", "--pin", "-n", "10", url, "--watch", "init=1"}, "run spillway as its user or as root"
		}
		output, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		if code := err.(*exec.ExitError).ExitCode(); code != 2 || !strings.Contains(string(output), c.want) || strings.Count(string(output), "\n") != 1 {
			t.Errorf("%s: exit %d, %s", c.name, code, output)
		}
	}
	eventually(t, "the target uses all cores", func() bool { return slices.Equal(p.cores(), []int{runtime.NumCPU()}) })
	keepers, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range keepers {
		if line, _ := process.CmdLine(); len(line) == 2 && line[1] == "restore-cores" && line[0] == shared.binary {
			t.Errorf("process %d is left", process.PID)
		}
	}
}

// TestAwake reads the longest time that a CPU may take to wake up while a load runs, and afterwards. A host where this process may
// not decide it refuses.
func TestAwake(t *testing.T) {
	limit := func() (microseconds int32, err error) {
		f, err := os.Open("/dev/cpu_dma_latency")
		if err != nil {
			return 0, err
		}
		defer f.Close()
		err = binary.Read(f, binary.NativeEndian, &microseconds)
		return microseconds, err
	}
	var during atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		now, _ := limit()
		during.Store(now)
	}))
	defer server.Close()
	before, err := limit()
	during.Store(before)
	stdout, stderr, code := spillway(t, "load", server.URL, "-n", "100", "--awake")
	if err != nil {
		if code != exit.Usage || !strings.Contains(stderr, "/dev/cpu_dma_latency") {
			t.Errorf("%v: exit %d\n%s%s", err, code, stdout, stderr)
		}
		return
	}
	after, err := limit()
	if code != exit.OK || !strings.Contains(stdout, "kept from sleeping") || during.Load() != 0 || err != nil || after != before {
		t.Errorf("exit %d; limit %d before, %d during, %d after, %v\n%s%s", code, before, during.Load(), after, err, stdout, stderr)
	}
}
