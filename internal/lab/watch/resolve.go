package watch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A ProcessTarget names a process: Name is what the user calls it, and the rest says how to find it, again after it was
// started anew.
type ProcessTarget struct {
	Name string
	Spec string // as the user wrote it

	// One of these is set.
	port    int // with host, which may be ""
	host    string
	pid     int
	pidfile string
	unit    string

	proc, cgroup string // where the kernel tells of processes and of units
}

// ParseProcess reads NAME=SPEC. SPEC is one of
//
//	:PORT or HOST:PORT  the process that listens there, in the network namespace of the calling thread
//	PID                 that process, until it ends
//	unit:NAME           the processes of a systemd service, NAME or NAME.service
//	PATH                a pidfile, whose first line is the process id
//
// It looks nothing up; Process does.
func ParseProcess(text string) (ProcessTarget, error) {
	name, spec, found := strings.Cut(text, "=")
	if !found || name == "" || spec == "" {
		return ProcessTarget{}, fmt.Errorf("%q: want NAME=SPEC, such as app=:8080, db=1234, web=/run/nginx.pid or db=unit:postgresql", text)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }) || len(name) > 64 {
		return ProcessTarget{}, fmt.Errorf("%q: a name is up to 64 characters without blanks and slashes, such as app", name)
	}
	t := ProcessTarget{Name: name, Spec: spec, proc: "/proc", cgroup: "/sys/fs/cgroup"}
	unit, isUnit := strings.CutPrefix(spec, "unit:")
	colon := strings.LastIndexByte(spec, ':')
	switch {
	case isUnit:
		t.unit = strings.TrimSuffix(unit, ".service")
		if t.unit == "" || strings.ContainsAny(t.unit, "/\x00") {
			return ProcessTarget{}, fmt.Errorf("%s: want a unit's name, such as unit:postgresql", text)
		}
	case strings.ContainsRune(spec, '/'):
		t.pidfile = spec
	case colon >= 0:
		port, err := strconv.ParseUint(spec[colon+1:], 10, 16)
		if err != nil || port == 0 {
			return ProcessTarget{}, fmt.Errorf("%s: a port is a number from 1 to 65535", text)
		}
		t.port, t.host = int(port), strings.Trim(spec[:colon], "[]")
	case strings.Trim(spec, "0123456789") == "":
		pid, ok := pidNumber([]byte(spec))
		if !ok {
			return ProcessTarget{}, fmt.Errorf("%s: no process has that id", text)
		}
		t.pid = pid
	default:
		t.pidfile = spec
	}
	return t, nil
}

// resolve finds the topmost processes of the target, at least one.
func (t ProcessTarget) resolve() ([]identity, error) {
	var pids []int
	var err error
	switch {
	case t.port != 0:
		pids, err = t.listening()
	case t.unit != "":
		pids, err = t.unitProcesses()
	case t.pidfile != "":
		pids, err = t.pidfileProcess()
	default:
		pids = []int{t.pid}
	}
	if err != nil {
		return nil, err
	}
	var roots []identity
	for _, pid := range t.topmost(pids) {
		if s, err := t.stat(pid); err == nil && !s.zombie() {
			roots = append(roots, identity{pid, s.start})
		}
	}
	if len(roots) == 0 {
		return nil, t.notThere(pids)
	}
	return roots, nil
}

func (t ProcessTarget) notThere(pids []int) error {
	switch {
	case t.pidfile != "":
		return fmt.Errorf("%s names process %d, which does not run: the file is left over, or the process of another pid namespace", t.pidfile, pids[0])
	case t.pid != 0:
		return fmt.Errorf("process %d does not run (ps -e lists those that do)", t.pid)
	}
	return fmt.Errorf("%s ended while it was looked up", t.Spec)
}

// ended says that the target's process is gone.
func (t ProcessTarget) ended(roots []identity) string {
	text := fmt.Sprintf("process %d ended", roots[0].pid)
	if t.pid == 0 {
		text = fmt.Sprintf("process %d (%s) ended", roots[0].pid, t.Spec)
	}
	return text
}

// detail says in a sentence what is watched.
func (t ProcessTarget) detail(roots []identity) string {
	names := make([]string, len(roots))
	for i, root := range roots {
		names[i] = fmt.Sprintf("%d (%s)", root.pid, t.command(root.pid))
	}
	text := "process " + names[0]
	if len(names) > 1 {
		text = "processes " + strings.Join(names, ", ")
	}
	switch {
	case t.port != 0:
		text += ", listening on " + net.JoinHostPort(t.host, strconv.Itoa(t.port))
	case t.unit != "":
		text += ", of unit " + t.unit
	case t.pidfile != "":
		text += ", of " + t.pidfile
	}
	return text + ", with all descendants"
}

func (t ProcessTarget) stat(pid int) (procStat, error) {
	buf := make([]byte, 4096)
	content, err := readOnce(filepath.Join(t.proc, strconv.Itoa(pid), "stat"), &buf)
	if err != nil {
		return procStat{}, err
	}
	return parseStat(content)
}

func (t ProcessTarget) command(pid int) string {
	s, err := t.stat(pid)
	if err != nil {
		return "ended"
	}
	return string(s.command)
}

// topmost leaves out the processes of which an ancestor is among them.
func (t ProcessTarget) topmost(pids []int) []int {
	among := make(map[int]bool, len(pids))
	for _, pid := range pids {
		among[pid] = true
	}
	var tops []int
	for _, pid := range pids {
		if !t.hasAncestor(pid, among) {
			tops = append(tops, pid)
		}
	}
	return tops
}

func (t ProcessTarget) hasAncestor(pid int, among map[int]bool) bool {
	const deepest = 1000 // of a chain of parents; a loop cannot be, but for a torn reading
	for range deepest {
		s, err := t.stat(pid)
		if err != nil || s.ppid == 0 {
			return false
		}
		if pid = s.ppid; among[pid] {
			return true
		}
	}
	return false
}

// pidfileProcess reads the first line of the pidfile.
func (t ProcessTarget) pidfileProcess() ([]int, error) {
	content, err := os.ReadFile(t.pidfile)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("no pidfile %s: is it started? A port is written :8080 and a unit unit:NAME", t.pidfile)
	case err != nil:
		return nil, fmt.Errorf("read pidfile: %w", err)
	}
	first, _ := line(content)
	text, _ := word(first)
	pid, ok := pidNumber(text)
	if !ok {
		return nil, fmt.Errorf("%s is no pidfile: its first line is no process id", t.pidfile)
	}
	return []int{pid}, nil
}

// unitProcesses returns the processes in the unit's control group and in those below it.
func (t ProcessTarget) unitProcesses() ([]int, error) {
	for _, dir := range t.unitDirs() {
		var pids []int
		err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return err
			}
			content, err := os.ReadFile(path)
			for text := range strings.FieldsSeq(string(content)) {
				if pid, ok := pidNumber([]byte(text)); ok {
					pids = append(pids, pid)
				}
			}
			if errors.Is(err, unix.EOPNOTSUPP) { // a threaded group
				return nil
			}
			return err
		})
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("read unit %s: %w", t.unit, err)
		case len(pids) == 0:
			return nil, fmt.Errorf("unit %s has no process (systemctl status %s says why)", t.unit, t.unit)
		}
		return pids, nil
	}
	return nil, fmt.Errorf("no running unit %s below %s/system.slice (systemctl list-units --type=service lists them)", t.unit, t.cgroup)
}

// unitDirs are the places where systemd puts a service: below system.slice, an instance "name@x" in a slice of its
// template, and all that in a hierarchy of its own where version 1 of control groups is in use too.
func (t ProcessTarget) unitDirs() []string {
	places := []string{t.unit + ".service"}
	if template, _, found := strings.Cut(t.unit, "@"); found {
		slice := "system-" + strings.ReplaceAll(template, "-", `\x2d`) + ".slice"
		places = append(places, filepath.Join(slice, t.unit+".service"))
	}
	var dirs []string
	for _, hierarchy := range []string{"", "unified", "systemd"} {
		for _, place := range places {
			dirs = append(dirs, filepath.Join(t.cgroup, hierarchy, "system.slice", place))
		}
	}
	return dirs
}
