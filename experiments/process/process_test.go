//go:build linux

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/controlgroup"
)

// TestGroup: in version 2 of control groups, a process is made in its group.
func TestGroup(t *testing.T) {
	top := controlgroup.Top()
	if os.Geteuid() != 0 || top == "" {
		fmt.Fprintln(os.Stderr, t.Name()+" is not root, or has no control groups of version 2, so that it tests nothing")
		return
	}
	dir, err := os.MkdirTemp(top, "spillway-process-")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Launch(t.Context(), Command{Name: "sleep", Args: []string{"sleep", "100"}, Group: dir}, filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID))
	p.End()
	if err != nil || !strings.Contains(string(groups), "/"+filepath.Base(dir)+"\n") {
		t.Errorf("%v:\n%s", err, groups)
	}
	apptest.Await(t, "the group is empty", func() bool { return syscall.Rmdir(dir) == nil })
}
