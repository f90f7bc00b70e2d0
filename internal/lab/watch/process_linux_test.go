package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
	"spillway/internal/lab/result"
)

// TestProcessCPU uses known amounts of user and system time.
func TestProcessCPU(t *testing.T) {
	t.Parallel()
	w := start(t, "burn", 600, 300)
	values := readOne(t, watch(t, w.spec()))
	expectAll(t, values, map[string]float64{
		"cpu_user_seconds_total": w.figures["user"], "cpu_system_seconds_total": w.figures["system"], "processes": 1,
	})
}

// TestProcessBelowTick has a process use less than a clock tick. The figures must follow its CPU clock.
func TestProcessBelowTick(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = in.Close(), cmd.Process.Kill(), cmd.Wait() })
	line := []byte("x\n")
	echo := func() {
		if _, err := in.Write(line); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len(line))); err != nil {
			t.Fatal(err)
		}
	}
	echo()
	sampler := watch(t, strconv.Itoa(cmd.Process.Pid))
	read := func() (sum, earliest, latest float64) {
		earliest = processCPU(cmd.Process.Pid).Seconds()
		values := readOne(t, sampler)
		return values["cpu_user_seconds_total"] + values["cpu_system_seconds_total"], earliest, processCPU(cmd.Process.Pid).Seconds()
	}
	before, beforeEarliest, beforeLatest := read()
	for processCPU(cmd.Process.Pid).Seconds() < beforeLatest+0.002 {
		echo()
	}
	after, afterEarliest, afterLatest := read()
	const rounding = 1e-6
	if used := after - before; used < afterEarliest-beforeLatest-rounding || used > afterLatest-beforeEarliest+rounding {
		t.Errorf("%g s of CPU time, want %g to %g", used, afterEarliest-beforeLatest, afterLatest-beforeEarliest)
	}
}

// TestProcessShortLivedChildren runs 40 children with 20 ms of CPU time each. Almost none is alive during a reading.
func TestProcessShortLivedChildren(t *testing.T) {
	t.Parallel()
	w := start(t, "family", 40, 20)
	values := readOne(t, watch(t, w.spec()))
	sum := values["cpu_user_seconds_total"] + values["cpu_system_seconds_total"]
	expect(t, map[string]float64{"sum_total": sum}, "sum_total", w.figures["user"]+w.figures["system"])
	if sum < 0.8 {
		t.Errorf("%g s, and the children alone burnt 0.8 s", sum)
	}
}

// TestProcessChildrenWhileRead reads continuously while children start and end. The total never falls, and is right at the end.
func TestProcessChildrenWhileRead(t *testing.T) {
	t.Parallel()
	w, figures := begin(t, "family", 30, 10)
	sampler := watch(t, w.spec())
	stop, readings := make(chan struct{}), make(chan int)
	go func() {
		last, n := map[string]float64{}, 0
		pause := time.NewTicker(time.Millisecond)
		defer pause.Stop()
		for {
			samples, err := sampler.Read(context.Background())
			if len(samples) != 1 { // with an error if the files of a child that just ends or starts may not be counted
				t.Errorf("want one sample, got %v, %v", samples, err)
			}
			for _, s := range samples {
				for name, value := range s.Values {
					if result.Counter(name) && value < last[name] {
						t.Errorf("%s fell from %g to %g", name, last[name], value)
					}
				}
				last = s.Values
			}
			n++
			select {
			case <-stop:
				readings <- n
				return
			case <-pause.C:
			}
		}
	}()
	figures()
	close(stop)
	n := <-readings
	values := readOne(t, sampler)
	expect(t, map[string]float64{"sum_total": values["cpu_user_seconds_total"] + values["cpu_system_seconds_total"]},
		"sum_total", w.figures["user"]+w.figures["system"])
	t.Logf("%d readings", n)
}

// TestProcessResources compares with the process's own figures, and with what the kernel says before and after a reading.
func TestProcessResources(t *testing.T) {
	t.Parallel()
	const memory, page = 64 << 20, 1 << 20 // the kernel counts in batches of pages
	w := start(t, "hold", 500, memory>>20)
	sampler := watch(t, w.spec())
	threadsBefore, rssBefore := kernelResources(t, w.pid)
	values := readOne(t, sampler)
	threadsAfter, rssAfter := kernelResources(t, w.pid)
	expectAll(t, values, map[string]float64{"fds": w.figures["fds"], "fds_limit": w.figures["limit"], "processes": 1})
	if n := values["threads"]; n < w.figures["threads"] || n < threadsBefore || n > threadsAfter {
		t.Errorf("want %g to %g threads, and at least %g, got %g", threadsBefore, threadsAfter, w.figures["threads"], n)
	}
	if n := values["rss_bytes"]; n < memory || n < min(rssBefore, rssAfter)-page || n > max(rssBefore, rssAfter)+page {
		t.Errorf("want %g to %g bytes of memory, and at least %d, got %g", rssBefore, rssAfter, memory, n)
	}
}

// kernelResources is what /proc says of a process: its threads, and its memory without the files that it maps.
func kernelResources(t *testing.T, pid int) (threads, memory float64) {
	t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(status)) {
		if name, text, ok := strings.Cut(line, ":"); ok {
			var value float64
			_, _ = fmt.Sscan(text, &value) // 0 for words
			values[name] = value
		}
	}
	memory = values["RssAnon"] + values["RssShmem"]
	if memory == 0 { // before Linux 4.5
		memory = values["VmRSS"]
	}
	return values["Threads"], memory * 1024
}

// TestProcessRunQueue keeps three shells ready to run on one CPU. Between SIGCONT and SIGSTOP, a shell waits whenever it does not
// run.
func TestProcessRunQueue(t *testing.T) {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := range 64 * len(all) {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	var pids []int
	for range 3 {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, cmd.Process.Pid)
	}
	sampler := watch(t, strconv.Itoa(pids[0]))
	repeatDisturbed(t, func() string { return waitOf(t, sampler, pids[0]) })
}

// waitOf compares the run-queue wait of a process that is always ready with the time in which it did not run.
func waitOf(t *testing.T, sampler *Sampler, pid int) (wrong string) {
	t.Helper()
	stop := func() (values map[string]float64, ran time.Duration) {
		apptest.Await(t, "the shell is stopped", func() bool {
			sendSignal(t, pid, unix.SIGSTOP) // again: somebody else may have stopped and continued it
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err == nil && strings.Contains(string(text), ") T ")
		})
		return readOne(t, sampler), processCPU(pid)
	}
	before, ranBefore := stop()
	earliest := time.Now()
	sendSignal(t, pid, unix.SIGCONT)
	latest := time.Now()
	<-time.After(time.Second)
	shortest := time.Since(latest)
	after, ran := stop()
	longest := time.Since(earliest)
	ran -= ranBefore
	got := difference(before, after)["run_queue_wait_seconds_total"]
	if low, high := (shortest - ran).Seconds(), (longest - ran).Seconds(); low < 0.3 || got < 0.95*low || got > 1.05*high {
		return fmt.Sprintf("run_queue_wait_seconds_total is %g, want %g to %g, and at least 0.3", got, low, high)
	}
	return ""
}

func sendSignal(t *testing.T, pid int, signal unix.Signal) {
	t.Helper()
	if err := unix.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

// TestProcessByPort watches a prefork server. The root is the parent, though the children own the socket too.
func TestProcessByPort(t *testing.T) {
	t.Parallel()
	w := start(t, "share", 3, 0)
	sampler := watch(t, "127.0.0.1:"+strconv.Itoa(int(w.figures["port"])))
	if !strings.HasPrefix(sampler.Detail, "process "+w.spec()+" (") {
		t.Errorf("detail %q, want process %d", sampler.Detail, w.pid)
	}
	expectAll(t, readOne(t, sampler), map[string]float64{"processes": 4})
}

// TestProcessRestart ends a process named by its socket. The counters continue with its successor.
func TestProcessRestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "socket")
	spec := "unix:" + path
	listening := func(burns int) *watched {
		t.Helper()
		_ = os.Remove(path) // of the one before
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		listener.SetUnlinkOnClose(false)
		file, err := listener.File()
		if err != nil {
			t.Fatal(err)
		}
		w := start(t, "burn", burns, 0, file)
		if err := errors.Join(listener.Close(), file.Close()); err != nil { // the child has it
			t.Fatal(err)
		}
		return w
	}
	first := listening(200)
	sampler := watch(t, spec)
	before := readOne(t, sampler)
	first.end()
	_, err := sampler.Read(context.Background())
	want := "process " + first.spec() + " (" + spec + ") ended: nothing listens on " + path
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("after its end: %v, want %s…", err, want)
	}
	second := listening(300)
	samples, err := sampler.Read(context.Background())
	if err != nil || len(samples) != 1 || samples[0].Gap == nil {
		t.Fatalf("%+v, %v: want that process %s took the place", samples, err, second.spec())
	}
	if reason, want := samples[0].Gap.Reason, "process "+first.spec()+" ("+spec+") ended; process "+second.spec()+" ("; !strings.HasPrefix(reason, want) {
		t.Errorf("gap %q, want %s…", reason, want)
	}
	after := samples[0].Values
	if before["cpu_resolution_seconds"] != 1e-9 || after["cpu_resolution_seconds"] != tick.Seconds() {
		t.Errorf("resolution %g s, and %g s after the end of a process", before["cpu_resolution_seconds"], after["cpu_resolution_seconds"])
	}
	expect(t, difference(before, after), "cpu_user_seconds_total", second.figures["user"])
}

func TestProcessEnded(t *testing.T) {
	t.Parallel()
	w := start(t, "burn", 0, 0)
	sampler := watch(t, w.spec())
	readOne(t, sampler)
	w.end()
	for range 2 {
		samples, err := sampler.Read(context.Background())
		if err == nil || err.Error() != "process "+w.spec()+" ended" || len(samples) > 0 {
			t.Errorf("%v, %v: want that it ended", samples, err)
		}
	}
}

// BenchmarkProcess reads one process, and a tree of 51 processes, like a database with 50 backends.
func BenchmarkProcess(b *testing.B) {
	for _, children := range []int{0, 50} {
		b.Run(benchName(children, "children"), func(b *testing.B) {
			w := start(b, "share", children, 0)
			sampler := watch(b, w.spec())
			if values := readOne(b, sampler); values["processes"] != float64(children+1) {
				b.Fatalf("%g processes", values["processes"])
			}
			benchmarkRead(b, sampler)
		})
	}
}
