package main

import (
	"archive/zip"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// imageMax is what the files of the image may weigh.
const imageMax = 55 << 20

// The image's files, mounted read-only and run by its user without rights, pass the image's own health check. They have certificates
// and time zones, and no shell.
func TestImage(t *testing.T) {
	apptest.NeedRoot(t)
	dir := t.TempDir()
	r, err := describe(t.Context(), repository, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "spillway")
	if err := r.compile(t.Context(), arch, binary); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "image.tar")
	if err := r.writeImage(t.Context(), file, binary, arch); err != nil {
		t.Fatal(err)
	}
	root, config := unpackImage(t, file)
	if size := total(t, root); size > imageMax {
		t.Errorf("the image has %d bytes, more than %d", size, imageMax)
	}
	if found, err := filepath.Glob(filepath.Join(root, "*", "*sh")); err != nil || len(found) > 0 {
		t.Errorf("there is a shell: %v, %v", found, err)
	}
	if config.User != "65532:65532" || len(config.Healthcheck.Test) < 3 || config.Healthcheck.Test[0] != "CMD" {
		t.Fatalf("the image runs as %+v", config)
	}
	zones, err := zip.OpenReader(filepath.Join(root, "usr", "share", "zoneinfo.zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer zones.Close()
	if _, err := zones.Open("Asia/Shanghai"); err != nil {
		t.Error(err)
	}
	if roots, err := os.ReadFile(filepath.Join(root, "etc", "ssl", "certs", "ca-certificates.crt")); err != nil || !x509.NewCertPool().AppendCertsFromPEM(roots) {
		t.Errorf("the certificates cannot be read: %v", err)
	}
	c := &container{t, root, config}
	c.serve(total(t, root))
}

// serve starts the image's command, waits for its health check, and stops it.
func (c *container) serve(bytes int64) {
	t, config := c.t, c.config
	admin := freeAddress(t)
	settings := fmt.Sprintf("data: /data\nlisten: %s\nadmin: {listen: %q}\nprobes: true\n", freeAddress(t), admin)
	if err := os.WriteFile(filepath.Join(c.root, "etc", "spillway", "spillway.yaml"), []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cmd := c.command(append(config.Entrypoint, config.Cmd...)...)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cmd.Process.Kill(); err == nil {
			_ = cmd.Wait()
		}
	}()
	apptest.AwaitState(t, "the image's health check succeeds", func() (string, bool) {
		out, err := c.command(config.Healthcheck.Test[1:]...).CombinedOutput()
		return string(out) + log.String(), err == nil
	})
	t.Logf("%.1f MB, ready after %v with %d MB resident", float64(bytes)/1e6, time.Since(began).Round(time.Millisecond), resident(t, cmd.Process.Pid)/1000)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the stop: %v\n%s", err, &log)
	}
}

// imageSettings are those of an image's configuration that the test applies.
type imageSettings struct {
	User, WorkingDir     string
	Env, Entrypoint, Cmd []string
	Healthcheck          struct{ Test []string }
}

// unpackImage returns the root directory that an image describes, and how it is run.
func unpackImage(t *testing.T, file string) (root string, config imageSettings) {
	t.Helper()
	dir, root := t.TempDir(), t.TempDir()
	run(t, dir, "tar", "-xf", file)
	var manifest []struct {
		Config string
		Layers []string
	}
	readJSON(t, filepath.Join(dir, "manifest.json"), &manifest)
	var whole struct{ Config imageSettings }
	readJSON(t, filepath.Join(dir, manifest[0].Config), &whole)
	for _, layer := range manifest[0].Layers {
		run(t, root, "tar", "--same-owner", "-xzf", filepath.Join(dir, layer))
	}
	return root, whole.Config
}

func readJSON(t *testing.T, file string, to any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// container runs commands in the image's root directory.
type container struct {
	t      *testing.T
	root   string
	config imageSettings
}

// command is a command as the image's user, without capabilities and with a read-only root; only /data can be written to.
func (c *container) command(args ...string) *exec.Cmd {
	const script = `mount --bind "$1" "$1" && mount --bind "$1/data" "$1/data" && mount -o remount,bind,ro "$1" && root=$1 user=$2 && shift 2 &&
exec setpriv --no-new-privs chroot --userspec="$user" "$root" "$@"`
	args = append([]string{"-m", "--propagation", "private", "sh", "-c", script, "sh", c.root, c.config.User}, args...)
	cmd := exec.CommandContext(c.t.Context(), "unshare", args...)
	cmd.Env = c.config.Env
	cmd.Env = append(cmd.Env, "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// resident returns the memory of a process in kB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
