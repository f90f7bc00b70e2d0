package apptest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// copyTemplate makes data a copy of a data directory that create makes in the directory it is
// given. The first call of a user for a kind and version of a program creates it, later ones
// and other test processes copy it, which takes a tenth of the time. Version must change with
// all that the content depends on; program is the file that creates it.
func copyTemplate(program, version string, owner *syscall.Credential, data string, create func(dir string) error) error {
	info, err := os.Stat(program)
	if err != nil {
		return err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %s", program, info.Size(), info.ModTime().UnixNano(), version))
	parent, err := cacheDirectory(owner)
	if err != nil {
		return err
	}
	template := filepath.Join(parent, filepath.Base(program)+"-"+hex.EncodeToString(key[:8]))
	if err := createOnce(template, owner, create); err != nil {
		return fmt.Errorf("create %s: %w", template, err)
	}
	cp := exec.Command("cp", "-a", template, data)
	cp.Dir = parent // the caller's may be closed to the owner
	cp.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	if output, err := cp.CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w\n%s", template, err, output)
	}
	return nil
}

// cacheDirectory returns the directory for templates of a user, which only that user can
// write to.
func cacheDirectory(owner *syscall.Credential) (string, error) {
	uid, gid := os.Getuid(), os.Getgid()
	if owner != nil {
		uid, gid = int(owner.Uid), int(owner.Gid)
	}
	dir := filepath.Join(parentDirectory(owner), fmt.Sprintf("%stemplates-%d", directoryPrefix, uid))
	err := os.Mkdir(dir, 0o700)
	switch {
	case err == nil:
		return dir, os.Chown(dir, uid, gid)
	case !errors.Is(err, os.ErrExist):
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(stat.Uid) != uid && int(stat.Uid) != os.Getuid() {
		return "", fmt.Errorf("%s belongs to somebody else: remove it", dir)
	}
	return dir, os.Chown(dir, uid, gid)
}

// createOnce creates a template unless it exists. Of several processes one creates it, and the
// others wait.
func createOnce(template string, owner *syscall.Credential, create func(dir string) error) error {
	lock, err := os.OpenFile(template+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock it: %w", err)
	}
	if _, err := os.Stat(template); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	partial, err := os.MkdirTemp(filepath.Dir(template), "partial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(partial)
	if owner != nil {
		if err := os.Chown(partial, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	data := filepath.Join(partial, "data")
	if err := create(data); err != nil {
		return err
	}
	return os.Rename(data, template)
}

// initialize is a command that creates a data directory.
func initialize(owner *syscall.Credential, dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, output)
	}
	return nil
}
