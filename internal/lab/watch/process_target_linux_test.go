package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"spillway/internal/apptest"
)

func TestParseProcessTarget(t *testing.T) {
	for text, want := range map[string]ProcessTarget{
		"app=:8080":               {Name: "app", port: 8080},
		"db=127.0.0.1:5432":       {Name: "db", port: 5432, host: "127.0.0.1"},
		"db=[::1]:5432":           {Name: "db", port: 5432, host: "::1"},
		"app=1234":                {Name: "app", pid: 1234},
		"db=unit:postgresql":      {Name: "db", unit: "postgresql"},
		"db=unit:my@15.service":   {Name: "db", unit: "my@15"},
		"web=/run/nginx.pid":      {},
		"a=b=c":                   {},
		"app=localhost:http-none": {},
		"app=:0":                  {},
		"app=:65536":              {},
		"app=0":                   {},
		"app=99999999999999":      {},
		"app=unix:/run/app:1":     {Name: "app", socket: "/run/app:1"},
		"app=unix:":               {},
		"app=unit:":               {},
		"app=unit:../x":           {},
		"app=":                    {},
		"=:80":                    {},
		"my app=:80":              {},
		"app":                     {},
	} {
		got, err := ParseProcess(text)
		if want.Name == "" {
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %+v, %v: want one line of error", text, got, err)
			}
			continue
		}
		_, want.Spec, _ = strings.Cut(text, "=")
		want.cgroup = "/sys/fs/cgroup"
		if got != want || err != nil {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// resolveError returns the error of a target.
func resolveError(t *testing.T, text string) string {
	t.Helper()
	target, err := ParseProcess(text)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Process(target)
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%s: error %v, want one line", text, err)
	}
	return err.Error()
}

func TestResolveErrors(t *testing.T) {
	free := listen(t, 0, 1)
	_ = unix.Shutdown(free.fd, unix.SHUT_RD) // it keeps the port and listens no more
	for text, want := range map[string]string{
		"app=2147483646":                  "process 2147483646 does not run",
		"app=unit:nothing-of-this-name":   "no running unit nothing-of-this-name",
		"app=unix:/nothing/of/this/name":  "nothing listens on /nothing/of/this/name",
		fmt.Sprintf("app=:%d", free.port): "nothing listens on port",
	} {
		if got := resolveError(t, text); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want … %q", text, got, want)
		}
	}
}

// TestResolvePortAddress distinguishes listeners on one port by address.
func TestResolvePortAddress(t *testing.T) {
	w := start(t, "share", 1, 0)
	port := int(w.figures["port"])
	if got := resolveError(t, fmt.Sprintf("app=127.0.0.2:%d", port)); !strings.Contains(got, "not at 127.0.0.2") {
		t.Error(got)
	}
	for _, spec := range []string{fmt.Sprintf(":%d", port), fmt.Sprintf("localhost:%d", port), fmt.Sprintf("[::ffff:127.0.0.1]:%d", port)} {
		if sampler := watch(t, spec); !strings.HasPrefix(sampler.Detail, fmt.Sprintf("process %d (", w.pid)) {
			t.Errorf("%s: %s", spec, sampler.Detail)
		}
	}
}

// TestResolveUnit creates control groups as systemd does: a plain service, and an instance with a group below it.
func TestResolveUnit(t *testing.T) {
	w := start(t, "share", 2, 0)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", w.pid))
	if err != nil {
		t.Fatal(err)
	}
	proc, err := openProc()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	write := func(path, content string) {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.ReplaceAll(strings.TrimSpace(string(children)), " ", "\n") + "\n"
	write("system.slice/web.service/cgroup.procs", lines+strconv.Itoa(w.pid)+"\n")
	write("system.slice/empty.service/cgroup.procs", "")
	write(`unified/system.slice/system-my\x2ddb.slice/my-db@15.service/cgroup.procs`, "")
	write(`unified/system.slice/system-my\x2ddb.slice/my-db@15.service/main/cgroup.procs`, strconv.Itoa(w.pid)+"\n")
	for unit, want := range map[string]string{"web": "", "my-db@15": "", "empty": "has no process"} {
		target, err := ParseProcess("app=unit:" + unit)
		if err != nil {
			t.Fatal(err)
		}
		target.cgroup = root
		roots, err := target.resolve(proc)
		switch {
		case want != "":
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", unit, err, want)
			}
		case err != nil || len(roots) != 1 || roots[0].pid != w.pid:
			t.Errorf("%s: %v, %v, want process %d", unit, roots, err, w.pid)
		}
	}
}

// TestNotPermitted watches processes of root as user nobody. The owner of a port cannot be found; everything else can be read,
// except open files on older kernels.
func TestNotPermitted(t *testing.T) {
	apptest.NeedRoot(t) // which it gives up
	w := start(t, "share", 1, 0)
	runtime.LockOSThread()              // and never unlock: the thread ends with the test
	if unix.Gettid() == unix.Getpid() { // The first thread never ends, and /proc/self shows it.
		defer runtime.UnlockOSThread()
		t.Run("another thread", func(t *testing.T) {
			runtime.LockOSThread()
			watchAsNobody(t, w)
		})
		return
	}
	watchAsNobody(t, w)
}

func watchAsNobody(t *testing.T, w *watched) {
	t.Helper()
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
		t.Fatal(errno)
	}
	if got := resolveError(t, fmt.Sprintf("app=:%d", int(w.figures["port"]))); !strings.Contains(got, "belongs to another user") {
		t.Error(got)
	}
	samples, err := watch(t, w.spec()).Read(context.Background())
	if len(samples) != 1 {
		t.Fatalf("%v, %v", samples, err)
	}
	values := samples[0].Values
	_, told := values["fds"]
	if told == (err != nil) || err != nil && !strings.Contains(err.Error(), "count open files") {
		t.Errorf("fds told: %v, error %v", told, err)
	}
	if values["processes"] != 2 || values["rss_bytes"] <= 0 || values["threads"] < 2 {
		t.Errorf("%v", values)
	}
}

func FuzzParseProcessTarget(f *testing.F) {
	for _, text := range []string{"app=:8080", "db=unit:x", "a=[::1]:1", "a=1", "a=/x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseProcess(text)
		if err != nil {
			return
		}
		ways := 0
		for _, set := range []bool{target.port != 0, target.pid != 0, target.unit != ""} {
			if set {
				ways++
			}
		}
		if ways != 1 || target.Name == "" || target.Name+"="+target.Spec != text {
			t.Errorf("%q is taken for %+v", text, target)
		}
	})
}

// TestSocketTarget finds the process that listens on a Unix socket, which is this one.
func TestSocketTarget(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	target, err := ParseProcess("app=unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := target.Members()
	if err != nil || pids[0] != os.Getpid() {
		t.Errorf("%v: %v", pids, err)
	}
	used, err := target.CPUTime()
	if err != nil {
		t.Fatal(err)
	}
	if before, err := used(); err != nil || before < 0 {
		t.Errorf("%v: %v", before, err)
	}
}
