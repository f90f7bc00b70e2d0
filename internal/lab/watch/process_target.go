package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"spillway/internal/controlgroup"
	"spillway/internal/netstat"
)

// lookupTimeout bounds the look-up of a host's name.
const lookupTimeout = 5 * time.Second

// A ProcessTarget says how to find a process, also after a restart.
type ProcessTarget struct {
	Name string // given by the user
	Spec string // as the user wrote it

	// One of these is set.
	port   int // with host, which may be ""
	host   string
	pid    int
	unit   string
	group  string // directory of a control group
	socket string // path of a Unix socket

	cgroup string // where control groups are mounted
}

// ParseProcess reads NAME=SPEC. SPEC is one of
//
//	:PORT or HOST:PORT  the process that listens there, in the network namespace of the calling thread
//	PID                 that process, until it ends
//	unit:NAME           the processes of a systemd service, NAME or NAME.service
//	cgroup:PATH         the processes of a control group, whose counter has their CPU time
//	unix:PATH           the process that listens on that Unix socket
//
// It does not look for the process; Process does.
func ParseProcess(text string) (ProcessTarget, error) {
	name, spec, found := strings.Cut(text, "=")
	if !found || name == "" || spec == "" {
		return ProcessTarget{}, fmt.Errorf("%q: write NAME=SPEC, such as app=:8080, db=1234 or web=unit:nginx", text)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' }) || len(name) > 64 {
		return ProcessTarget{}, fmt.Errorf("%q: a name has up to 64 characters without blanks and slashes, such as app", name)
	}
	t := ProcessTarget{Name: name, Spec: spec, cgroup: controlgroup.Mount}
	unit, isUnit := strings.CutPrefix(spec, "unit:")
	group, isGroup := strings.CutPrefix(spec, "cgroup:")
	socket, isSocket := strings.CutPrefix(spec, "unix:")
	colon := strings.LastIndexByte(spec, ':')
	switch {
	case isUnit:
		t.unit = strings.TrimSuffix(unit, ".service")
		if t.unit == "" || strings.ContainsAny(t.unit, "/\x00") {
			return ProcessTarget{}, fmt.Errorf("%s: write the name of a unit, such as unit:postgresql", text)
		}
	case isGroup:
		if !filepath.IsAbs(group) {
			return ProcessTarget{}, fmt.Errorf("%s: write the directory of a control group, such as cgroup:/sys/fs/cgroup/app", text)
		}
		t.group = filepath.Clean(group)
	case isSocket:
		if socket == "" {
			return ProcessTarget{}, fmt.Errorf("%s: write the path of a Unix socket, such as unix:/run/app.sock", text)
		}
		t.socket = socket
	case colon >= 0:
		port, err := strconv.ParseUint(spec[colon+1:], 10, 16)
		if err != nil || port == 0 {
			return ProcessTarget{}, fmt.Errorf("%s: a port is a number from 1 to 65535", text)
		}
		t.port, t.host = int(port), strings.Trim(spec[:colon], "[]")
	default:
		pid, err := strconv.ParseUint(spec, 10, 31)
		if err != nil || pid == 0 {
			return ProcessTarget{}, fmt.Errorf("%s: write :PORT, a process id up to %d, unit:NAME, cgroup:PATH or unix:PATH", text, math.MaxInt32)
		}
		t.pid = int(pid)
	}
	return t, nil
}

// resolve finds the topmost processes of the target, at least one.
func (t ProcessTarget) resolve(proc procfs.FS) ([]identity, error) {
	var pids []int
	var err error
	switch {
	case t.port != 0:
		pids, err = t.listening(proc)
	case t.socket != "":
		pids, err = t.socketProcesses(proc)
	case t.unit != "":
		pids, err = t.unitProcesses()
	case t.group != "":
		pids, err = controlgroup.Processes(t.group)
		if err == nil && len(pids) == 0 {
			err = fmt.Errorf("control group %s has no process", t.group)
		}
	default:
		pids = []int{t.pid}
	}
	if err != nil {
		return nil, err
	}
	var roots []identity
	for _, pid := range pids {
		if hasAncestor(proc, pid, pids) {
			continue
		}
		if s, err := readStat(proc, pid); err == nil && !isZombie(&s) {
			roots = append(roots, identity{pid, s.Starttime})
		}
	}
	switch {
	case len(roots) > 0:
		return roots, nil
	case t.pid != 0:
		return nil, fmt.Errorf("process %d does not run (ps -e lists the processes that do)", t.pid)
	}
	return nil, fmt.Errorf("%s ended while it was looked up", t.Spec)
}

// ended says that the target's process ended.
func (t ProcessTarget) ended(roots []identity) string {
	text := fmt.Sprintf("process %d ended", roots[0].pid)
	if t.pid == 0 {
		text = fmt.Sprintf("process %d (%s) ended", roots[0].pid, t.Spec)
	}
	return text
}

// detail describes what is watched.
func (t ProcessTarget) detail(proc procfs.FS, roots []identity) string {
	names := make([]string, len(roots))
	for i, root := range roots {
		names[i] = fmt.Sprintf("%d (%s)", root.pid, command(proc, root.pid))
	}
	text := "process " + names[0]
	if len(names) > 1 {
		text = "processes " + strings.Join(names, ", ")
	}
	switch {
	case t.port != 0:
		text += ", listening on " + net.JoinHostPort(t.host, strconv.Itoa(t.port))
	case t.socket != "":
		text += ", listening on " + t.socket
	case t.unit != "":
		text += ", of unit " + t.unit
	case t.group != "":
		return text + ", with all of its control group; CPU time by " + (&group{dir: t.group}).counter()
	}
	return text + ", with all descendants"
}

// command is the name of a process's program.
func command(proc procfs.FS, pid int) string {
	s, err := readStat(proc, pid)
	if err != nil {
		return "ended"
	}
	return s.Comm
}

func hasAncestor(proc procfs.FS, pid int, among []int) bool {
	const deepest = 1000 // ends the search if parents change while they are read
	for range deepest {
		s, err := readStat(proc, pid)
		if err != nil || s.PPID == 0 {
			return false
		}
		if pid = s.PPID; slices.Contains(among, pid) {
			return true
		}
	}
	return false
}

// unitProcesses returns the processes in the unit's control group.
func (t ProcessTarget) unitProcesses() ([]int, error) {
	for _, dir := range t.unitDirs() {
		pids, err := controlgroup.Processes(dir)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, fmt.Errorf("read unit %s: %w", t.unit, err)
		case len(pids) == 0:
			return nil, fmt.Errorf("unit %s has no process (systemctl status %s shows why)", t.unit, t.unit)
		}
		return pids, nil
	}
	return nil, fmt.Errorf("no running unit %s below %s/system.slice (systemctl list-units --type=service lists them)", t.unit, t.cgroup)
}

// unitDirs are the directories where systemd puts a service: below system.slice, an instance "name@x" in a slice of its
// template. If version 1 of control groups is in use too, systemd has a separate hierarchy.
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

// listening returns the processes that own a socket which listens on the target's address. It reads the open files of
// every process.
func (t ProcessTarget) listening(proc procfs.FS) ([]int, error) {
	sockets, err := t.listeningSockets()
	if err != nil {
		return nil, err
	}
	owners, err := ownersOf(proc, fmt.Sprintf("port %d", t.port), sockets)
	if err != nil {
		return nil, err
	}
	// systemd owns the sockets that it opens for its services, and is an ancestor of everything.
	services := slices.DeleteFunc(owners, func(pid int) bool { return pid == 1 && command(proc, 1) == "systemd" })
	if len(services) == 0 {
		return nil, fmt.Errorf("systemd listens on port %d for a service that has not started yet: send it one request first", t.port)
	}
	return services, nil
}

// ownersOf returns the processes that own one of the sockets that listen at a place, at least one.
func ownersOf(proc procfs.FS, place string, sockets []uint32) ([]int, error) {
	owners, denied, err := netstat.Owners(proc, sockets...)
	switch {
	case err != nil:
		return nil, fmt.Errorf("find the owner of %s: %w", place, err)
	case len(owners) > 0:
		return owners, nil
	case denied > 0:
		return nil, fmt.Errorf("the process that listens on %s belongs to another user: run as that user or as root, or name the "+
			"process by its PID", place)
	}
	return nil, fmt.Errorf("no process owns the socket that listens on %s: it belongs to the kernel or to another container; name "+
		"the process by its PID", place)
}

// listeningSockets returns the inode numbers of the sockets that listen on the target's port: those at its address, or else
// those at all addresses.
func (t ProcessTarget) listeningSockets() ([]uint32, error) {
	addresses, err := t.addresses()
	if err != nil {
		return nil, err
	}
	client, err := netstat.Open()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var same, wildcard, other []uint32
	err = client.Sockets(netstat.Listening(uint16(t.port)), func(s *netstat.Socket) {
		address := s.Local.Addr().Unmap()
		switch {
		case address.IsUnspecified():
			wildcard = append(wildcard, s.Inode)
		case len(addresses) == 0 || slices.Contains(addresses, address):
			same = append(same, s.Inode)
		default:
			other = append(other, s.Inode)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case t.host == "" && len(same) > 0:
		return append(same, wildcard...), nil
	case len(same) > 0:
		return same, nil
	case len(wildcard) > 0:
		return wildcard, nil
	case len(other) > 0:
		return nil, fmt.Errorf("a process listens on port %d, but not at %s: write :%d", t.port, t.host, t.port)
	}
	return nil, fmt.Errorf("nothing listens on port %d in this network namespace: start the process first (ss -ltn lists listeners)", t.port)
}

// addresses returns the addresses of the target's host, none for any address.
func (t ProcessTarget) addresses() ([]netip.Addr, error) {
	if t.host == "" {
		return nil, nil
	}
	if address, err := netip.ParseAddr(t.host); err == nil {
		return []netip.Addr{address.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", t.host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w (write :%d for a listener of this host)", t.host, err, t.port)
	}
	for i := range addresses {
		addresses[i] = addresses[i].Unmap()
	}
	return addresses, nil
}
