package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"spillway/internal/apptest"
)

// A package is installed, upgraded, removed and purged on a Debian without systemd. What an administrator has written stays, and so do
// records that no database has.
func TestPackageOnDebian(t *testing.T) {
	apptest.NeedRoot(t)
	old, next := packages(t)
	d := newDebian(t, old, next)
	config := d.path("etc/spillway/spillway.yaml")

	out := d.run("dpkg", "-i", "/tmp/old.deb")
	if !strings.Contains(out, "complete /etc/spillway/spillway.yaml") || !strings.Contains(out, "database: unknown kind of database") {
		t.Errorf("the first installation does not say what to do next:\n%s", out)
	}
	if out := d.run("stat", "-c", "%U:%G %a", "/etc/spillway/spillway.yaml", "/var/lib/spillway"); out != "root:spillway 640\nspillway:spillway 750\n" {
		t.Errorf("owners are %s", out)
	}
	if _, err := os.Lstat(d.path("etc/systemd/system/multi-user.target.wants/spillway.service")); err != nil {
		t.Error("the unit is not enabled")
	}
	if out, err := d.try("runuser", "-u", "spillway", "--", "spillway", "serve", "/etc/spillway/spillway.yaml"); err == nil ||
		!strings.Contains(out, "spillway.yaml:") {
		t.Errorf("without a database it is served: %v\n%s", err, out)
	}

	listen, admin := freeAddress(t), freeAddress(t)
	own := fmt.Sprintf("database: sqlite:/var/lib/spillway/own.db\ndata: /var/lib/spillway\nlisten: %s\nadmin: {listen: %q}\n"+
		"feeds: [{path: /numbers, sql: SELECT 1 AS n, key: n}]\n", listen, admin)
	writeInPlace(t, config, own)
	d.serves(listen)

	out = d.run("dpkg", "-i", "/tmp/next.deb")
	if text, err := os.ReadFile(config); err != nil || string(text) != own || strings.Contains(out, "complete /etc") {
		t.Errorf("after the upgrade the configuration is %s, %v\n%s", text, err, out)
	}
	if out := d.run("spillway", "version"); !strings.HasPrefix(out, "spillway ") || !strings.Contains(d.run("dpkg", "-s", "spillway"), "Version: 99.0.0") {
		t.Errorf("after the upgrade: %s", out)
	}
	d.serves(listen)
	if out := d.run("dpkg", "-i", "--force-downgrade", "/tmp/old.deb"); strings.Contains(out, "complete") {
		t.Errorf("after a downgrade: %s", out)
	}

	d.run("dpkg", "-r", "spillway")
	if _, err := os.Stat(config); err != nil {
		t.Errorf("a removal takes the configuration: %v", err)
	}
	d.run("dpkg", "-i", "/tmp/next.deb")
	d.wantPurge("is kept: it has own.db", "own.db") // a database
	d.run("rm", "-r", "/var/lib/spillway")
	d.run("dpkg", "-i", "/tmp/next.deb")
	d.wantPurge("", "")

	d.run("dpkg", "-i", "/tmp/next.deb")
	if err := os.CopyFS(d.path("var/lib/spillway"), os.DirFS(repository+"/internal/serve/servetest/testdata/0.1.0/data")); err != nil {
		t.Fatal(err)
	}
	d.run("chown", "-R", "spillway:spillway", "/var/lib/spillway")
	d.wantPurge("has records that no database has", "popups.spool")
}

// debian is the root directory of a system.
type debian struct {
	t    *testing.T
	root string
}

// newDebian unpacks a small Debian, which the first test fetches, with the packages in /tmp.
func newDebian(t *testing.T, old, next string) *debian {
	t.Helper()
	d := &debian{t, t.TempDir()}
	run(t, ".", "tar", "-C", d.root, "-xf", debianRoot(t))
	for name, file := range map[string]string{"old.deb": old, "next.deb": next} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.path("tmp", name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// debianRoot returns an archive of a minimal Debian.
func debianRoot(t *testing.T) string {
	t.Helper()
	return fetchDebian(t, "debian", "essential", "passwd")
}

// fetchDebian returns an archive of a Debian of the release that this host has, with further packages. It is kept in bin/.
func fetchDebian(t *testing.T, name, variant, include string) string {
	t.Helper()
	release := strings.TrimSpace(run(t, ".", "sh", "-c", `. /etc/os-release; echo "$VERSION_CODENAME"`))
	file, err := filepath.Abs(filepath.Join(repository, "bin", name+"-"+release+".tar"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	// One at a time, again if a download fails, and without files that are open by inheritance, with which apt fails below mmdebstrap.
	const fetch = `exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
for attempt in 1 2 3 4; do flock -o "$0.lock" mmdebstrap "$@" && exit; done; exit 1`
	run(t, ".", "sh", "-c", fetch, filepath.Dir(file)+"/debian", "--quiet", "--format=tar", "--variant="+variant, "--include="+include, release,
		file+".new")
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	return file
}

func (d *debian) path(names ...string) string {
	return filepath.Join(append([]string{d.root}, names...)...)
}

func (d *debian) run(args ...string) string {
	d.t.Helper()
	out, err := d.try(args...)
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (d *debian) try(args ...string) (string, error) {
	d.t.Helper()
	inside := []string{d.root, "env", "-i", "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}
	return try(d.t, ".", "chroot", append(inside, args...)...)
}

// serves starts the installed program as its user, asks for the list, and stops it.
func (d *debian) serves(listen string) {
	d.t.Helper()
	ctx, stop := context.WithCancel(d.t.Context())
	defer stop()
	cmd := exec.CommandContext(ctx, "chroot", d.root, "runuser", "-u", "spillway", "--", "/usr/bin/spillway", "serve", "/etc/spillway/spillway.yaml")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = io.Discard, &log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	apptest.AwaitState(d.t, "the installed program is ready", func() (string, bool) {
		out, err := d.try("spillway", "ready", "/etc/spillway/spillway.yaml")
		return out, err == nil && out == "ready\n"
	})
	if a := apptest.Fetch(d.t, "http://"+listen+"/numbers"); a.Status != 200 {
		d.t.Errorf("the list answers %d %s", a.Status, a.Body)
	}
	stop()
	_ = cmd.Wait()
	if d.t.Failed() {
		d.t.Log(log.String())
	}
}

// wantPurge purges the package, which says something, and keeps a file; "" is nothing at all.
func (d *debian) wantPurge(says, keeps string) {
	d.t.Helper()
	out := d.run("dpkg", "-P", "spillway")
	if !strings.Contains(out, says) || (says == "" && strings.Contains(out, "kept")) {
		d.t.Errorf("purge says %q, want %q", out, says)
	}
	_, err := os.Stat(d.path("var/lib/spillway", keeps))
	if kept := err == nil; kept != (keeps != "") {
		d.t.Errorf("after a purge, /var/lib/spillway/%s is there: %t", keeps, kept)
	}
	if _, err := os.Stat(d.path("etc/spillway")); err == nil {
		d.t.Error("after a purge, the configuration is there")
	}
}

// packages returns two packages of this source; the second has a higher version.
func packages(t *testing.T) (old, next string) {
	t.Helper()
	stage := t.TempDir()
	var files []string
	for i, version := range []string{"", "99.0.0"} {
		r, err := describe(t.Context(), repository, t.TempDir(), version)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := r.compile(t.Context(), arch, filepath.Join(stage, "spillway")); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.writePackage(stage, arch); err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Join(r.out, "spillway_"+r.version+"_"+arch+".deb"))
	}
	return files[0], files[1]
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := apptest.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// writeInPlace keeps the file's owner and mode.
func writeInPlace(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}
