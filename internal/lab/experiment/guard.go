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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prefixVariable passes the prefix to the inner process.
const prefixVariable = "SPILLWAY_EXPERIMENT"

// orphanGrace is the time in which services may end after the inner process has died. The kernel has sent them their signal.
const orphanGrace = 3 * time.Second

var prefixed = regexp.MustCompile(`^spillway-(\d+)-(\d+)-`)

// prefixOf returns the prefix of everything that a run makes: the process id and its start time, which are unique together.
func prefixOf(one identity) string { return fmt.Sprintf("spillway-%d-%s-", one.pid, one.start) }

// inner returns the prefix if this process is the inner process of a guard, and "" otherwise. Call it once: it removes the
// environment variable, which services must not inherit. From then on a second SIGINT or SIGTERM does not end the process,
// because the kernel can report the death of the guard once per thread.
func inner() string {
	prefix := os.Getenv(prefixVariable)
	os.Unsetenv(prefixVariable)
	if prefix != prefixOf(identify(os.Getppid())) {
		return ""
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	return prefix
}

// guard runs this program again, with the same arguments, as its inner process and returns the exit code. It passes on the
// first signal and kills the inner process at the second. When the inner process is gone, for any reason, guard kills every
// process that it left behind and removes its control groups, namespaces and folders. At its start it does the same for runs
// whose guard is gone.
//
// guard takes over this process: it adopts and reaps all its descendants.
func guard(program string, args []string, stdout, stderr io.Writer) (int, error) {
	if err := adoptOrphans(); err != nil {
		return 0, err
	}
	removeAbandoned()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	prefix := prefixOf(identify(os.Getpid()))
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Env = append(os.Environ(), prefixVariable+"="+prefix)
	// In its own process group, the inner process gets the terminal's Ctrl-C only from here.
	cmd.SysProcAttr = attributes(nil, syscall.SIGTERM)
	child := &running{done: make(chan struct{})}
	if err := child.launch(cmd); err != nil {
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
			_ = cmd.Process.Signal(s) // it may just have ended
		case <-child.done:
			code := cmd.ProcessState.ExitCode()
			if code < 0 {
				code = 3 // it was killed
			}
			return code, cleanUp(prefix)
		}
	}
}

// cleanUp removes what is left of this process's run: descendants, control groups, namespaces, folders.
func cleanUp(prefix string) error {
	related := descendants(os.Getpid())
	for begin := time.Now(); anyAlive(related) && time.Since(begin) < orphanGrace; {
		time.Sleep(20 * time.Millisecond)
	}
	killAll(append(related, descendants(os.Getpid())...))
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return removeRun(prefix)
}

// removeRun removes the control groups, namespaces and folders of a run, and kills the processes that use them.
func removeRun(prefix string) error {
	killAll(processesOf(prefix))
	var errs []error
	for _, group := range runGroups(prefix) {
		errs = append(errs, group.remove())
	}
	return errors.Join(append(errs, removeNamespaces(context.Background(), prefix),
		os.RemoveAll(filepath.Join(os.TempDir(), prefix+"run")))...)
}

// removeAbandoned removes what is left of runs whose guard is gone. It ignores errors: what remains belongs to another user.
func removeAbandoned() {
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

// processesOf finds the processes in a run's folders and namespaces.
func processesOf(prefix string) []identity {
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
