package watch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

// TestMain runs the tests, or is one of the processes that they watch (see child).
func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(child(role))
	}
	goleak.VerifyTestMain(apptest.Closing(m, &sharedPostgres))
}

// childRole is the environment variable that turns the test binary into a watched process. That process plays its role, prints
// its own figures as a line of JSON, and ends when its standard input closes.
const childRole = "WATCH_TEST_CHILD"

// child plays a role: "ROLE NUMBER NUMBER".
func child(role string) int {
	name, rest, _ := strings.Cut(role, " ")
	var a, b int
	_, _ = fmt.Sscan(rest, &a, &b)
	roles := map[string]func(a, b int) (map[string]float64, error){
		"burn": burn, "family": family, "hold": hold, "share": shareListener, "serve": serveBurning,
	}
	told, err := roles[name](a, b)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func ownUsage(who int) unix.Rusage {
	var usage unix.Rusage
	_ = unix.Getrusage(who, &usage)
	return usage
}

func cpuOf(usages ...unix.Rusage) map[string]float64 {
	told := map[string]float64{}
	for _, u := range usages {
		told["user"] += float64(u.Utime.Nano()) / 1e9
		told["system"] += float64(u.Stime.Nano()) / 1e9
	}
	return told
}

// burn uses a ms of user and b ms of system time.
func burn(a, b int) (map[string]float64, error) {
	system := time.Duration(b) * time.Millisecond
	for usage := ownUsage(unix.RUSAGE_SELF); time.Duration(usage.Stime.Nano()) < system; usage = ownUsage(unix.RUSAGE_SELF) {
		for range 2000 {
			_, _ = os.Stat("/proc/self/status")
		}
	}
	user := time.Duration(a) * time.Millisecond
	for usage := ownUsage(unix.RUSAGE_SELF); time.Duration(usage.Utime.Nano()) < user; usage = ownUsage(unix.RUSAGE_SELF) {
		spin(1 << 22)
	}
	return cpuOf(ownUsage(unix.RUSAGE_SELF)), nil
}

func spin(n int) {
	x := uint64(n)
	for range n {
		x = x*6364136223846793005 + 1442695040888963407
	}
	runtime.KeepAlive(x)
}

// family runs a children in sequence; each uses b ms of CPU time and ends.
func family(a, b int) (map[string]float64, error) {
	for range a {
		cmd := roleCommand("burn", b, 0)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
	}
	return cpuOf(ownUsage(unix.RUSAGE_SELF), ownUsage(unix.RUSAGE_CHILDREN)), nil
}

// hold opens a files, touches b MiB of memory and starts 20 idle threads.
func hold(a, b int) (map[string]float64, error) {
	for range a {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			return nil, err
		}
	}
	memory, err := unix.Mmap(-1, 0, b<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	ready := make(chan struct{})
	for range 20 {
		go func() {
			runtime.LockOSThread()
			ready <- struct{}{}
			select {}
		}()
		<-ready
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	threads, err := os.ReadDir("/proc/self/task")
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	// The directory itself was open too.
	return map[string]float64{"fds": float64(len(files) - 1), "threads": float64(len(threads)), "limit": float64(limit.Cur)}, err
}

// shareListener listens and passes the socket to a children, as prefork servers do.
func shareListener(a, _ int) (map[string]float64, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	for range a {
		cmd := exec.Command("sleep", "600") // one thread each
		cmd.ExtraFiles = []*os.File{file}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
	}
	return map[string]float64{"port": float64(listener.Addr().(*net.TCPAddr).Port)}, nil
}

func roleCommand(role string, a, b int) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d", childRole, role, a, b),
		"GORACE=atexit_sleep_ms=0") // or every child lives a second longer under the race detector
	return cmd
}

// A watched is a child process.
type watched struct {
	pid     int
	figures map[string]float64 // by its own account
	cmd     *exec.Cmd
	stdin   io.Closer
}

// start starts a child that has the files and waits for its figures.
func start(tb testing.TB, role string, a, b int, files ...*os.File) *watched {
	tb.Helper()
	w, figures := begin(tb, role, a, b, files...)
	figures()
	return w
}

// begin starts a child. figures waits for its figures.
func begin(tb testing.TB, role string, a, b int, files ...*os.File) (w *watched, figures func()) {
	tb.Helper()
	cmd := roleCommand(role, a, b)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, files
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	w = &watched{pid: cmd.Process.Pid, cmd: cmd, stdin: stdin}
	tb.Cleanup(w.end)
	return w, func() {
		tb.Helper()
		text, err := bufio.NewReader(stdout).ReadBytes('\n')
		if err != nil {
			tb.Fatalf("%s printed nothing: %v", role, err)
		}
		if err := json.Unmarshal(text, &w.figures); err != nil {
			tb.Fatal(err)
		}
	}
}

// repeatDisturbed measures until nothing is wrong, 20 times at most: what else runs on the machine can spoil a measurement, and
// cannot make a wrong figure right.
func repeatDisturbed(t *testing.T, measure func() (wrong string)) {
	t.Helper()
	var all []string
	for range 20 {
		wrong := measure()
		if wrong == "" {
			return
		}
		all = append(all, wrong)
	}
	t.Errorf("each of 20 measurements is wrong:\n%s", strings.Join(all, "\n"))
}

// end ends the child and waits for it. A second call does nothing.
func (w *watched) end() {
	_ = w.stdin.Close()
	_ = w.cmd.Wait()
}

// watch returns the sampler of a target.
func watch(tb testing.TB, spec string) *Sampler {
	tb.Helper()
	target, err := ParseProcess("app=" + spec)
	if err != nil {
		tb.Fatal(err)
	}
	s, err := Process(target)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func (w *watched) spec() string { return strconv.Itoa(w.pid) }
