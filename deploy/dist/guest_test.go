package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// Variables of make long: how often the guest loses its power, and a directory for the guest, which later runs start again instead of a
// new one.
const (
	cutsVariable  = "SPILLWAY_POWER_CUTS"
	guestVariable = "SPILLWAY_GUEST"
)

// A Debian guest gets the package, serves a list of its own PostgreSQL, reloads, is killed and loses its power while records come.
// Afterwards every acknowledged record is in the table. Its only way out is a port of 127.0.0.1 for each of its services.
func TestGuest(t *testing.T) {
	apptest.Long(t)
	cuts, err := strconv.Atoi(os.Getenv(cutsVariable))
	if err != nil {
		t.Logf("make long boots a guest: %s is no number", cutsVariable)
		return
	}
	apptest.NeedRoot(t)
	g := newGuest(t)
	g.boot()
	if g.fresh {
		g.setUp()
		run(t, g.dir, "touch", "installed")
	}
	w := &writers{url: "http://" + g.http, last: g.lastRecord()}
	for range cuts {
		w.during(t, func() {
			w.await(t, 50+rand.IntN(400))
			g.cut()
		})
		g.boot()
		g.wantServed()
	}
	g.wantStored(w)
}

// setUp installs the package, reloads the service, gives it a socket, and kills it.
func (g *guest) setUp() {
	t := g.t
	_, deb := packages(t)
	began := time.Now()
	g.install(deb)
	t.Logf("from the package to a served list: 5 commands, %v", time.Since(began).Round(time.Second))

	g.run("sed -i 's/limit: 5/limit: 7/' /etc/spillway/spillway.yaml && systemctl reload spillway")
	g.wantServed()
	g.run(`mkdir -p /etc/systemd/system/spillway.socket.d &&
		printf '[Socket]\nListenStream=\nListenStream=0.0.0.0:8080\n' >/etc/systemd/system/spillway.socket.d/address.conf &&
		systemctl daemon-reload && systemctl stop spillway && systemctl enable -q --now spillway.socket && systemctl restart spillway`)
	g.wantServed()
	before := g.run("systemctl show -p MainPID --value spillway")
	g.run("kill -9 " + strings.TrimSpace(before))
	apptest.AwaitState(t, "systemd has started it again", func() (string, bool) {
		after := g.run("systemctl show -p MainPID --value spillway")
		return after, after != before && strings.TrimSpace(after) != "0"
	})
	g.wantServed()
	if out := g.run("systemd-analyze security --no-pager spillway.service | tail -1"); !strings.Contains(out, "OK") {
		t.Errorf("in the guest: %s", out)
	}

	g.run("sync") // the administrator's files, which an editor would have synced
}

// lastRecord returns the highest id in the table.
func (g *guest) lastRecord() int {
	g.t.Helper()
	g.wantServed()
	n, err := strconv.Atoi(strings.TrimSpace(g.run(`cd / && runuser -u postgres -- psql -qAt app -c "SELECT coalesce(max(id), 0) FROM records"`)))
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// guest is a machine with a disk that outlives its power.
type guest struct {
	t         *testing.T
	dir       string
	disk, key string
	ssh, http string // addresses on this host
	machine   *exec.Cmd
	ended     chan error // gets how the machine ended
	console   string     // file
	processor []string   // arguments of qemu
	fresh     bool       // nothing is installed yet
}

// newGuest makes the disk and the key, unless there is a guest already.
func newGuest(t *testing.T) *guest {
	t.Helper()
	dir := os.Getenv(guestVariable)
	if dir == "" {
		dir = t.TempDir()
	}
	g := &guest{t: t, dir: dir, disk: filepath.Join(dir, "disk"), key: filepath.Join(dir, "key"), ssh: freeAddress(t), http: freeAddress(t)}
	g.console = filepath.Join(dir, "console")
	t.Cleanup(g.cut)
	if _, err := os.Stat(filepath.Join(dir, "installed")); err != nil {
		g.fresh = true
		run(t, dir, "rm", "-rf", "root", "key", "key.pub", "disk") // of a run that has not come so far
		g.create()
	}
	g.processor = g.findProcessor()
	return g
}

// create makes the disk, the kernel and the key.
func (g *guest) create() {
	t, dir := g.t, g.dir
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "tar", "-C", root, "-xf", guestRoot(t))
	run(t, dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", g.key)
	public, err := os.ReadFile(g.key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"root/.ssh/authorized_keys":          string(public),
		"etc/hostname":                       "guest\n",
		"etc/fstab":                          "/dev/vda / ext4 errors=remount-ro 0 1\n",
		"etc/systemd/network/10-all.network": "[Match]\nName=e*\n[Network]\nAddress=10.0.2.15/24\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, "chmod", "755", filepath.Join(root, "etc/systemd/network"))
	run(t, dir, "chmod", "644", filepath.Join(root, "etc/systemd/network/10-all.network"), filepath.Join(root, "etc/hostname"), filepath.Join(root, "etc/fstab"))
	run(t, dir, "chroot", root, "systemctl", "enable", "systemd-networkd")
	for _, name := range []string{"vmlinuz", "initrd.img"} {
		run(t, dir, "sh", "-c", "cp -L "+root+"/boot/"+name+"-* "+filepath.Join(dir, name))
	}
	run(t, dir, "mke2fs", "-q", "-t", "ext4", "-d", root, g.disk, "3G")
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
}

// findProcessor returns qemu's arguments for /dev/kvm, or for emulation where that is missing or cannot run Debian's kernel, as within
// some virtual machines.
func (g *guest) findProcessor() []string {
	ctx, stop := context.WithTimeout(g.t.Context(), 20*time.Second)
	defer stop()
	kvm := []string{"-accel", "kvm", "-cpu", "host,arch-capabilities=off"}
	args := append(g.hardware(), "-append", "console=ttyS0 panic=1", "-no-reboot", "-serial", "stdio")
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", append(args, kvm...)...).CombinedOutput()
	if strings.Contains(string(out), "No root device specified") {
		return kvm
	}
	g.t.Logf("/dev/kvm is missing or does not run Debian's kernel, so the guest is emulated: %v", err)
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
}

// hardware returns the arguments of qemu that every boot has.
func (g *guest) hardware() []string {
	return []string{
		"-m", "768", "-smp", "2", "-display", "none", "-monitor", "none", "-kernel", filepath.Join(g.dir, "vmlinuz"), "-initrd",
		filepath.Join(g.dir, "initrd.img"),
	}
}

// guestRoot returns an archive of a Debian with a kernel, systemd and PostgreSQL.
func guestRoot(t *testing.T) string {
	t.Helper()
	return fetchDebian(t, "guest", "minbase",
		"linux-image-cloud-amd64,systemd-sysv,udev,openssh-server,postgresql,iproute2,passwd,curl,init-system-helpers")
}

// boot starts the machine and returns when it can be reached.
func (g *guest) boot() {
	g.t.Helper()
	network := fmt.Sprintf("user,id=n,restrict=on,hostfwd=tcp:%s-10.0.2.15:22,hostfwd=tcp:%s-10.0.2.15:8080", g.ssh, g.http)
	args := append(g.hardware(), "-serial", "file:"+g.console, "-append", "root=/dev/vda rw console=ttyS0 quiet", "-drive",
		"file="+g.disk+",format=raw,if=virtio,cache=writeback", "-netdev", network, "-device", "virtio-net-pci,netdev=n",
		"-device", "virtio-rng-pci")
	g.machine = exec.Command("qemu-system-x86_64", append(args, g.processor...)...)
	g.machine.Stderr = os.Stderr
	g.machine.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.machine.Start(); err != nil {
		g.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func(machine *exec.Cmd) { ended <- machine.Wait() }(g.machine)
	g.ended = ended
	deadline := time.Now().Add(3 * time.Minute)
	for {
		out, err := g.try("true")
		if err == nil {
			return
		}
		if time.Now().After(deadline) || len(ended) > 0 {
			console, _ := os.ReadFile(g.console)
			g.t.Fatalf("the guest cannot be reached: %v %s\n%s", err, out, console[max(0, len(console)-4000):])
		}
		apptest.Pause(g.t)
	}
}

// cut ends the machine at once. What its disk was told is there; what only its memory knew is lost.
func (g *guest) cut() {
	if g.machine != nil {
		_ = g.machine.Process.Kill()
		<-g.ended
		g.machine = nil
	}
}

// run runs a command in the guest, as root.
func (g *guest) run(command string) string {
	g.t.Helper()
	out, err := g.try(command)
	if err != nil {
		g.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

func (g *guest) try(command string) (string, error) {
	g.t.Helper()
	host, port, _ := strings.Cut(g.ssh, ":")
	return try(g.t, ".", "ssh", "-i", g.key, "-p", port, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
		"-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=5", "root@"+host, command)
}

// guestConfig has a list, a stream that PostgreSQL acknowledges and one that the spool does.
const guestConfig = `database: postgres://spillway@/app?host=/var/run/postgresql
data: /var/lib/spillway
listen: 0.0.0.0:8080
keys: [key-of-the-guest-0123456789]
feeds: [{path: /records, sql: 'SELECT id, source FROM records', key: id, limit: 5}]
streams:
  - {path: /database, table: records, columns: {id: {type: integer, required: true}, source: text}}
  - {path: /spool, table: records, ack: spool, columns: {id: {type: integer, required: true}, source: text}}
`

// install does what a new user does: the package, the table, the configuration, the grants, the start.
func (g *guest) install(deb string) {
	t := g.t
	content, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"/tmp/spillway.deb": string(content), "/tmp/spillway.yaml": guestConfig} {
		g.put(name, text)
	}
	g.run(`runuser -u postgres -- sh -c 'createdb app && psql -q app -c "CREATE TABLE records (id integer PRIMARY KEY, source text)"'`)
	if out := g.run("dpkg -i /tmp/spillway.deb"); !strings.Contains(out, "complete /etc/spillway/spillway.yaml") {
		t.Errorf("the package says %s", out)
	}
	if out, err := g.try("systemctl start spillway; systemctl is-active spillway"); err == nil {
		t.Errorf("without a database the service runs: %s", out)
	}
	g.run("cat /tmp/spillway.yaml >/etc/spillway/spillway.yaml && spillway config check /etc/spillway/spillway.yaml")
	g.run("runuser -u postgres -- spillway grants /tmp/spillway.yaml --role spillway --database 'postgres://postgres@/app?host=/var/run/postgresql' >/tmp/grants.sql")
	g.run("runuser -u postgres -- psql -q -v ON_ERROR_STOP=1 app </tmp/grants.sql")
	g.run("systemctl start spillway")
	g.wantServed()
}

// put writes a file in the guest.
func (g *guest) put(name, text string) {
	g.t.Helper()
	host, port, _ := strings.Cut(g.ssh, ":")
	cmd := exec.CommandContext(g.t.Context(), "ssh", "-i", g.key, "-p", port, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "LogLevel=ERROR", "root@"+host, "umask 022; cat >"+name)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		g.t.Fatalf("write %s: %v %s", name, err, out)
	}
}

// wantServed waits until the list is served and every part answers.
func (g *guest) wantServed() {
	g.t.Helper()
	apptest.AwaitState(g.t, "the guest serves its list", func() (string, bool) {
		ctx, stop := context.WithTimeout(g.t.Context(), 5*time.Second)
		defer stop()
		a, err := apptest.TryFetch(ctx, http.DefaultClient, "http://"+g.http+"/records")
		if err == nil && a.Status == http.StatusOK {
			return "", true
		}
		units, _ := g.try("systemctl --no-pager -n 5 status spillway.service spillway.socket postgresql@*")
		return fmt.Sprint(a.Status, string(a.Body), err, "\n", units), false
	})
}

// wantStored waits until the table has every acknowledged record.
func (g *guest) wantStored(w *writers) {
	g.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	apptest.AwaitState(g.t, "every acknowledged record is stored", func() (string, bool) {
		stored := map[string]bool{}
		for id := range strings.FieldsSeq(g.run(`cd / && runuser -u postgres -- psql -qAt app -c "SELECT id FROM records"`)) {
			stored[id] = true
		}
		lost := 0
		for _, id := range w.acknowledged {
			if !stored[strconv.Itoa(id)] {
				lost++
			}
		}
		state := fmt.Sprintf("%d acknowledged, %d stored, %d lost", len(w.acknowledged), len(stored), lost)
		if lost == 0 {
			g.t.Log(state)
		}
		return state, lost == 0
	})
}

// writers send records to both streams until they are stopped.
type writers struct {
	url string

	mu           sync.Mutex
	last         int
	acknowledged []int
}

// during runs do while eight writers send.
func (w *writers) during(t *testing.T, do func()) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			path := []string{"/database", "/spool"}[i%2]
			for ctx.Err() == nil {
				w.send(ctx, t, path)
			}
		})
	}
	do()
	stop()
	running.Wait()
}

func (w *writers) send(ctx context.Context, t *testing.T, path string) {
	w.mu.Lock()
	w.last++
	id := w.last
	w.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	a, err := apptest.TryPost(ctx, http.DefaultClient, w.url+path, fmt.Sprintf(`{"id":%d,"source":%q}`, id, path), "Authorization",
		"Bearer key-of-the-guest-0123456789")
	if err != nil || a.Status >= http.StatusMultipleChoices {
		apptest.Pause(t)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acknowledged = append(w.acknowledged, id)
}

// await returns when so many more records are acknowledged.
func (w *writers) await(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.acknowledged)
	}
	before := count()
	apptest.AwaitState(t, fmt.Sprintf("%d more records are acknowledged", more), func() (string, bool) {
		n := count() - before
		return fmt.Sprint(n), n >= more
	})
}
