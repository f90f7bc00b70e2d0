package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"spillway/internal/apptest"
)

// hereAddress is the address of the host that runs the test: of the database, of the balancer and of the load.
const hereAddress = "10.0.0.1"

// standIns are the programs that a host without systemd and without sshd has instead of the real ones.
func standIns() map[string]string {
	return map[string]string{
		// starts the unit's command as its user with its variables, and returns when it is ready
		"systemctl": `#!/bin/sh
for unit; do :; done
[ "$unit" = spillway ] || exit 5
case $1 in stop | restart)
	if [ -e /run/spillway.pid ]; then
		kill $(cat /run/spillway.pid)
		while kill -0 $(cat /run/spillway.pid) 2>/dev/null; do sleep 0.1; done
		rm /run/spillway.pid
	fi ;;
esac
case $1 in start | restart | enable)
	set -a; . /etc/default/spillway; set +a
	command=$(sed -n s/^ExecStart=//p /usr/lib/systemd/system/spillway.service)
	cd /var/lib/spillway
	setpriv --reuid spillway --regid spillway --init-groups $command </dev/null >>/var/log/spillway 2>&1 &
	echo $! >/run/spillway.pid
	until spillway ready /etc/spillway/spillway.yaml >/dev/null 2>&1; do
		kill -0 $! 2>/dev/null || { tail /var/log/spillway; exit 1; }
		sleep 0.1
	done ;;
esac
`,
		"journalctl": "#!/bin/sh\ntail -n $4 /var/log/$2\n",
		// enters the root directory and the network of the other host
		"ssh": "#!/bin/sh\nhost=$1; shift\nexec nsenter -t $(cat /etc/pid-of-$host) -n -r -w sh -c \"$*\"\n",
	}
}

// runIsolated runs this test again in a network, with mounts and with processes of its own, which end with it. The last of the files is a
// directory for the hosts, which are gone by the time that it is removed.
func runIsolated(t *testing.T, files ...string) {
	t.Helper()
	const script = `ip link set lo up && mount -t tmpfs tmpfs /dev/shm && "$@"; exit $?`
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "-n", "-p", "-f", "--kill-child", "--mount-proc", "--propagation", "private",
		"sh", "-c", script, "sh", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideVariable+"="+strings.Join(append(files, t.TempDir()), " "))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// host is a Debian of its own, with a root shell.
type host struct {
	t          *testing.T
	name, root string
	pid        int // of a process in its root directory and network
	shell      io.Writer
	out        *bufio.Reader
}

// newHosts starts app-1 and app-2, each in a network with a wire to this one, and a host in this one. files are two packages, the archive
// of a root directory, and a directory.
func newHosts(t *testing.T, files []string, certificate string) map[string]*host {
	t.Helper()
	hosts := map[string]*host{}
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, address := range hostAddresses() {
		h := &host{t: t, name: name, root: filepath.Join(files[3], name)}
		run(t, ".", "mkdir", h.root)
		run(t, ".", "tar", "-C", h.root, "-xf", files[2])
		run(t, ".", "mount", "-t", "proc", "proc", h.root+"/proc")
		for i, name := range []string{"spillway_0.1.0_amd64.deb", "spillway_NEW.deb"} {
			run(t, ".", "cp", files[i], h.root+"/root/"+name)
		}
		for name, script := range standIns() {
			h.write("/usr/local/bin/"+name, script, 0o755)
		}
		h.write("/etc/hosts", "127.0.0.1 localhost "+own+"\n"+hereAddress+" db-1\n10.0.0.5 app-1\n10.0.0.6 app-2\n", 0o644)
		h.write("/etc/ssl/certs/ca-certificates.crt", certificate, 0o644)
		h.start(name != "here")
		if name != "here" {
			h.connect(address)
		}
		hosts[name] = h
	}
	for _, h := range hosts {
		for _, other := range hosts {
			h.write("/etc/pid-of-"+other.name, strconv.Itoa(other.pid), 0o644)
		}
	}
	return hosts
}

func hostAddresses() map[string]string {
	return map[string]string{"app-1": "10.0.0.5", "app-2": "10.0.0.6", "here": hereAddress}
}

// write writes a file of the host. One that is there keeps its owner and mode.
func (h *host) write(name, text string, mode os.FileMode) {
	h.t.Helper()
	if err := os.WriteFile(h.root+name, []byte(text), mode); err != nil {
		h.t.Fatal(err)
	}
}

// start starts a process that holds the host's namespaces, and its shell. Both end with the test.
func (h *host) start(network bool) {
	holder := exec.CommandContext(h.t.Context(), "chroot", h.root, "sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{}
	if network {
		holder.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	if err := holder.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.pid = holder.Process.Pid
	apptest.Await(h.t, "the process is in its root directory", func() bool {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/root", h.pid))
		return err == nil && at == h.root
	})
	shell := exec.CommandContext(h.t.Context(), "nsenter", "-t", strconv.Itoa(h.pid), "-n", "-r", "-w", "env", "-i", "HOME=/root", "LC_ALL=C",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-eo", "pipefail")
	in, err := shell.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	out, err := shell.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	shell.Stderr = shell.Stdout
	if err := shell.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _, _ = shell.Wait(), holder.Wait() })
	h.shell, h.out = in, bufio.NewReader(out)
	h.run("cd /root")
}

// connect gives the host an address, and a wire to this network.
func (h *host) connect(address string) {
	h.t.Helper()
	pid := strconv.Itoa(h.pid)
	for _, command := range []string{
		"link add " + h.name + " type veth peer name eth0 netns " + pid,
		"link set " + h.name + " up",
		"route add " + address + " dev " + h.name + " src " + hereAddress,
	} {
		run(h.t, ".", "ip", strings.Fields(command)...)
	}
	run(h.t, ".", "nsenter", "-t", pid, "-n", "sh", "-c", "ip link set lo up && ip link set eth0 up && ip address add "+address+
		"/32 dev eth0 && ip route add "+hereAddress+" dev eth0")
}

// endOfBlock is what the shell prints after the commands.
const endOfBlock = "end of block\n"

// run runs commands in the host's shell and returns what they print. None may fail.
func (h *host) run(commands string) string {
	h.t.Helper()
	h.write("/root/block", commands, 0o600)
	if _, err := fmt.Fprint(h.shell, ". /root/block </dev/null; echo; echo "+endOfBlock); err != nil {
		h.t.Fatal(err)
	}
	var out strings.Builder
	for {
		line, err := h.out.ReadString('\n')
		if err != nil {
			h.t.Fatalf("%s: a command fails:\n%s\nIt has printed\n%s%s", h.name, commands, &out, line)
		}
		if line == endOfBlock {
			h.t.Logf("%s\n%s\n%s", h.name, commands, &out)
			return out.String()
		}
		out.WriteString(line)
	}
}
