package labtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/exit"
	"spillway/internal/lab/cores"
	"spillway/internal/lab/report"
	"spillway/internal/lab/result"
)

// cpus returns the cores that this process may use.
func cpus(t *testing.T) cores.Set {
	t.Helper()
	list, err := cores.Available()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// refusedOnOneCore reports whether this machine has one core only. Then it checks that --pin is refused, which is all that a test of
// it can do here.
func refusedOnOneCore(t *testing.T) bool {
	t.Helper()
	if len(cpus(t)) > 1 {
		return false
	}
	url, _ := pages(t)
	if _, stderr, code := spillway(t, "load", url, "--pin", "-n", "10"); code != exit.Usage || !strings.Contains(stderr, "needs two cores") {
		t.Errorf("exit %d, want %d and that it needs two cores: %s", code, exit.Usage, stderr)
	}
	return true
}

// pinTarget is an nginx with two workers, on a TCP port and a Unix socket, that may use every core.
type pinTarget struct {
	address, socket string
	cmd             *exec.Cmd
}

const pinNginx = `daemon off;
worker_processes 2;
pid "DIR/pid";
events {}
http {
	access_log off;
	client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
	server { listen ADDRESS; listen unix:SOCKET; location / { return 200 a; } }
}
`

func startPinTarget(t *testing.T) *pinTarget {
	t.Helper()
	address, err := apptest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sockets, err := os.MkdirTemp("/tmp", "spillway-pin-") // without blanks, which end a path in the kernel's list of sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	p := &pinTarget{address: address, socket: filepath.Join(sockets, "sock")}
	config := strings.NewReplacer("DIR", dir, "ADDRESS", address, "SOCKET", p.socket).Replace(pinNginx)
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var errs output
	p.cmd = exec.Command("nginx", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr")
	p.cmd.Stderr = &errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the end of a load restores what began in its target's session
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%v: apt-get install nginx", err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
	})
	apptest.AwaitState(t, "nginx has two workers", func() (string, bool) { return errs.String(), len(p.processes()) == 3 })
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
	load := exec.Command(program.Path(t), append([]string{"load", "--pin", "--workers", "1", "-c", "2", "--rate", "100", "-d", "1h"}, args...)...)
	var errs output
	load.Stderr = &errs
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = load.Process.Kill()
		_ = load.Wait()
	})
	want := []int{len(cpus(t)) - 1}
	apptest.AwaitState(t, "the target is pinned", func() (string, bool) {
		return fmt.Sprint(p.cores(), " cores; ", errs.String()), slices.Equal(p.cores(), want)
	})
	return load
}

// TestPinRestores ends a pinned load in several ways, and wants the target to use all cores again, with a worker that nginx started
// meanwhile.
func TestPinRestores(t *testing.T) {
	t.Parallel()
	if refusedOnOneCore(t) {
		return
	}
	p := startPinTarget(t)
	all := []int{len(cpus(t))}
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGKILL} {
		load := p.pinnedLoad(t, "http://"+p.address+"/")
		before := p.processes()
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil { // replaces the workers
			t.Fatal(err)
		}
		apptest.Await(t, "nginx has new workers", func() bool {
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
		apptest.Await(t, fmt.Sprintf("the target uses all cores again after %v", signal), func() bool { return slices.Equal(p.cores(), all) })
	}
}

// occupy keeps a core busy until free is called or the test ends. free returns the CPU time that this took.
func occupy(t *testing.T, core int) (free func() time.Duration) {
	t.Helper()
	loop := exec.Command("sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	free = sync.OnceValue(func() time.Duration {
		_ = loop.Process.Kill()
		_ = loop.Wait()
		return loop.ProcessState.UserTime() + loop.ProcessState.SystemTime()
	})
	t.Cleanup(func() { free() })
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(loop.Process.Pid, &set); err != nil {
		t.Fatal(err)
	}
	return free
}

// TestPinJudges measures through a Unix socket while a loop keeps a core busy: first that of the target, then that of the generator.
func TestPinJudges(t *testing.T) {
	apptest.Long(t)
	t.Parallel()
	if refusedOnOneCore(t) {
		return
	}
	p, cores := startPinTarget(t), cpus(t)
	for _, host := range []int{1, 0} { // target, generator
		step := p.disturbed(t, []int{cores[0], cores[len(cores)-1]}[host])
		if step.Validity != result.HostContended || !strings.Contains(step.Reasons[0], "programs that belong to no host used") {
			t.Errorf("with a loop on core of host %d: %s because of %q, want %s because of programs of no host", host, step.Validity, step.Reasons, result.HostContended)
		}
		names := []string{step.Hosts[0].Name, step.Hosts[1].Name}
		if !slices.Equal(names, []string{"generator", "target"}) {
			t.Errorf("hosts: %+v", step.Hosts)
		}
		if step.Hosts[host].Foreign == 0 || step.Hosts[1].Used == 0 || step.Hosts[0].Used == 0 {
			t.Errorf("the loop is on the core of %s: %+v", names[host], step.Hosts)
		}
	}
}

// disturbed returns the step of a pinned load while a loop keeps a core busy. It loads again if the loop hardly ran, as on a
// machine whose CPUs others take away: then there is nothing to find.
func (p *pinTarget) disturbed(t *testing.T, core int) (step *report.DocumentStep) {
	t.Helper()
	apptest.AwaitState(t, "a loop runs while a load runs", func() (string, bool) {
		free, began := occupy(t, core), time.Now()
		stdout, stderr, code := spillway(t, "load", "--socket", p.socket, "http://nginx/", "--pin", "--workers", "1", "--rate", "300", "-d", "1s", "--json")
		used, took := free(), time.Since(began)
		d := document(t, stdout, stderr)
		if code != exit.OK || len(d.Steps) != 1 || len(d.Header.Hosts) != 2 || d.Header.Machine.GOMAXPROCS != 1 {
			t.Fatalf("exit %d, %+v\n%s", code, d.Header, stderr)
		}
		step = &d.Steps[0]
		return fmt.Sprintf("it used %s in %s", used, took), used > took/50
	})
	return step
}

func TestPinRefusals(t *testing.T) {
	t.Parallel()
	if refusedOnOneCore(t) {
		return
	}
	p, own := startPinTarget(t), ownProgram(t)
	url, cores := "http://"+p.address+"/", cpus(t)
	othersProcess := []string{url}
	if os.Geteuid() != 0 {
		othersProcess = []string{url, "--watch", "init=1"}
	}
	for _, c := range []struct {
		name, want string
		prefix     []string
		args       []string
	}{
		{"one core", "needs two cores", []string{"taskset", "-c", strconv.Itoa(cores[0])}, []string{url}},
		{"no core left", "leaves no core to the target", nil, []string{url, "--workers", strconv.Itoa(len(cores))}},
		{"another user's", "run spillway as its user or as root", nil, append(othersProcess, "--workers", "1")},
	} {
		if c.name == "another user's" && os.Geteuid() == 0 {
			c.want, c.prefix = "run as that user or as root", []string{"setpriv", "--reuid=65534", "--clear-groups", "--"}
		}
		command := slices.Concat(c.prefix, []string{own, "load", "--pin", "-n", "10"}, c.args)
		cmd := exec.Command(command[0], command[1:]...)
		output, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != exit.Usage || !strings.Contains(string(output), c.want) || strings.Count(string(output), "\n") != 1 {
			t.Errorf("%s: exit %d, want %d and %q: %s", c.name, code, exit.Usage, c.want, output)
		}
	}
	apptest.Await(t, "the target uses all cores", func() bool { return slices.Equal(p.cores(), []int{len(cores)}) })
	keepers, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range keepers {
		if line, _ := process.CmdLine(); len(line) == 2 && line[1] == "restore-cores" && line[0] == own {
			t.Errorf("process %d is left", process.PID)
		}
	}
}

// ownProgram returns a copy of the program, which no other test runs and every user may.
func ownProgram(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "spillway-pin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "spillway")
	if output, err := exec.Command("cp", program.Path(t), file).CombinedOutput(); err != nil { // a file that we write ourselves may be busy
		t.Fatalf("%v: %s", err, output)
	}
	if err := errors.Join(os.Chmod(file, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestAwake reads the longest time that a CPU may take to wake up while a load runs. A host where this process may not decide it
// refuses.
func TestAwake(t *testing.T) {
	t.Parallel()
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
	if code != exit.OK || !strings.Contains(stdout, "kept from sleeping") || during.Load() != 0 {
		t.Errorf("exit %d; limit %d before, %d during\n%s%s", code, before, during.Load(), stdout, stderr)
	}
}
