package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prefixVariable tells the inner process the prefix of what it makes.
const prefixVariable = "SPILLWAY_EXPERIMENT"

// orphanGrace is what services get to end by themselves when the inner process is gone: the kernel has told them to.
const orphanGrace = 3 * time.Second

var prefixed = regexp.MustCompile(`^spillway-(\d+)-(\d+)-`)

// prefixOf begins the name of all that a process's run makes: its number and the time of its start tell it from others
// for good.
func prefixOf(one identity) string { return fmt.Sprintf("spillway-%d-%s-", one.pid, one.start) }

// Inner returns the prefix when this process is the inner one of a guard, and "" otherwise. It takes the variable away:
// what the run starts must not have it. From then on a second SIGINT or SIGTERM does not end the inner process: the
// kernel can send the death of its parent twice, once for each thread that it had. Call it once.
func Inner() string {
	prefix := os.Getenv(prefixVariable)
	os.Unsetenv(prefixVariable)
	if prefix != prefixOf(identify(os.Getppid())) {
		return ""
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	return prefix
}

// Guard runs this program again, with the same arguments, as its inner process, and returns its exit code. It passes
// the first signal on, and kills the inner process at the second. When the inner process is gone, however it went, Guard kills every process that it left behind and
// removes its namespaces and folders; before, it does so for runs whose guard is gone.
//
// It takes this process over: it adopts and reaps all its descendants.
func Guard(program string, args []string, stdout, stderr io.Writer) (int, error) {
	if err := adoptOrphans(); err != nil {
		return 0, err
	}
	removeDead()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	prefix := prefixOf(identify(os.Getpid()))
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Env = append(os.Environ(), prefixVariable+"="+prefix)
	// A group of its own: the terminal's Ctrl-C reaches it once, through here.
	cmd.SysProcAttr = attributes(nil, syscall.SIGTERM)
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the kernel sends Pdeathsig when the thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its exit code tells
		}
		close(done)
	}()
	if err := <-started; err != nil {
		return 0, fmt.Errorf("start the inner process: %w", err)
	}
	for asked := false; ; {
		select {
		case s := <-signals:
			if s == syscall.SIGHUP {
				s = syscall.SIGTERM
			}
			if asked {
				s = syscall.SIGKILL
			}
			asked = true
			_ = cmd.Process.Signal(s) // it may end at this moment
		case <-done:
			return code(cmd.ProcessState), clearAway(prefix)
		}
	}
}

// code is the exit code of the inner process; one that was killed could not run.
func code(state *os.ProcessState) int {
	if state.ExitCode() < 0 {
		return 3
	}
	return state.ExitCode()
}

// clearAway removes what is left of a run: this process's descendants, namespaces, folders.
func clearAway(prefix string) error {
	family := descendants(os.Getpid())
	for begin := time.Now(); anyAlive(family) && time.Since(begin) < orphanGrace; {
		time.Sleep(20 * time.Millisecond)
	}
	killAll(append(family, descendants(os.Getpid())...))
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return removeRun(prefix)
}

// removeRun removes the namespaces and folders of a run, and the processes that still use them.
func removeRun(prefix string) error {
	killAll(users(prefix))
	var errs []error
	for _, group := range runGroups(prefix) {
		errs = append(errs, group.remove())
	}
	return errors.Join(append(errs, removeNamespaces(context.Background(), prefix), os.RemoveAll(filepath.Join(os.TempDir(), prefix+"run")))...)
}

// removeDead removes what is left of runs whose guard is gone. What cannot be removed is another user's.
func removeDead() {
	var names []string
	for _, dir := range []string{namespaceDir, os.TempDir()} {
		found, _ := filepath.Glob(filepath.Join(dir, "spillway-*"))
		names = append(names, found...)
	}
	for _, group := range runGroups("spillway-") {
		names = append(names, group.dir)
	}
	for _, name := range names {
		match := prefixed.FindStringSubmatch(filepath.Base(name))
		if match == nil {
			continue
		}
		pid, _ := strconv.Atoi(match[1])
		if owner := (identity{pid: pid, start: match[2]}); !owner.alive() {
			_ = removeRun(match[0])
		}
	}
}

// users finds the processes that work in a run's folders or are in one of its namespaces.
func users(prefix string) []identity {
	folder := filepath.Join(os.TempDir(), prefix+"run")
	namespaces := map[string]bool{}
	files, _ := filepath.Glob(filepath.Join(namespaceDir, prefix+"*"))
	for _, file := range files {
		var stat unix.Stat_t
		if unix.Stat(file, &stat) == nil {
			namespaces[fmt.Sprintf("net:[%d]", stat.Ino)] = true
		}
	}
	var found []identity
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range processes {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		namespace, _ := os.Readlink(dir + "/ns/net")
		place, _ := os.Readlink(dir + "/cwd")
		if namespaces[namespace] || place == folder || strings.HasPrefix(place, folder+"/") {
			found = append(found, identify(pid))
		}
	}
	return found
}
